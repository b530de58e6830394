package main

import (
	"crypto/hmac"
	"crypto/sha1"
	"encoding/base64"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestRepoURL(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	if err := os.MkdirAll("there/below", 0o755); err != nil {
		t.Fatal(err)
	}
	for in, want := range map[string]string{
		".":                  dir,
		"./x":                filepath.Join(dir, "x"),
		"../x":               filepath.Join(filepath.Dir(dir), "x"),
		"there":              filepath.Join(dir, "there"),
		"there/below/":       filepath.Join(dir, "there/below"),
		"/srv/x/../y/":       "/srv/y",
		"not/there":          "not/there",
		"https://host/a":     "https://host/a",
		"ssh://git@host/a":   "ssh://git@host/a",
		"git@host:a/b":       "git@host:a/b",
		"host:there":         "host:there",
		"ext::sh -c x":       "ext::sh -c x",
		"file:///srv/x":      "file:///srv/x",
		"":                   "",
		"--upload-pack=evil": "--upload-pack=evil",
	} {
		if got, err := repoURL(in); err != nil || got != want {
			t.Errorf("%q became %q, %v; want %q", in, got, err, want)
		}
	}
}

const knownKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAD"

// hashedHost is a name as OpenSSH hashes it.
func hashedHost(name string) string {
	salt := []byte("01234567890123456789")
	mac := hmac.New(sha1.New, salt)
	mac.Write([]byte(name))
	return "|1|" + base64.StdEncoding.EncodeToString(salt) + "|" + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

func TestKnownKeys(t *testing.T) {
	for name, tt := range map[string]struct {
		file, host, port string
		want             []string
	}{
		"plain":         {"host " + knownKey, "host", "", []string{"host " + knownKey}},
		"port":          {"[host]:2222 " + knownKey, "host", "2222", []string{"[host]:2222 " + knownKey}},
		"usual port":    {"host " + knownKey, "host", "22", []string{"host " + knownKey}},
		"another port":  {"host " + knownKey, "host", "2222", nil},
		"hashed":        {hashedHost("host") + " " + knownKey, "host", "", []string{"host " + knownKey}},
		"hashed port":   {hashedHost("[host]:2222") + " " + knownKey, "host", "2222", []string{"[host]:2222 " + knownKey}},
		"hashed other":  {hashedHost("other") + " " + knownKey, "host", "", nil},
		"several names": {"a,HOST,b " + knownKey + " comment", "host", "", []string{"host " + knownKey}},
		"twice":         {"host " + knownKey + "\nhost " + knownKey + "\n", "host", "", []string{"host " + knownKey}},
		"authority":     {"@cert-authority host " + knownKey, "host", "", nil},
		"revoked":       {"@revoked host " + knownKey, "host", "", nil},
		"pattern":       {"*,!x " + knownKey, "host", "", nil},
		"nonsense":      {"host\n|1| " + knownKey + "\n|1|=|= " + knownKey + "\nhost ssh-rsa x\n\x00\xff", "host", "", nil},
	} {
		if got := knownKeys([]byte(tt.file), tt.host, tt.port); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

func FuzzKnownKeys(f *testing.F) {
	f.Add("host " + knownKey)
	f.Add(hashedHost("host") + " " + knownKey + "\n@revoked host " + knownKey)
	f.Add("|1||| \n,,, ssh-rsa AAAA\n")
	f.Fuzz(func(t *testing.T, file string) {
		for _, line := range knownKeys([]byte(file), "host", "") {
			if !strings.HasPrefix(line, "host ") || strings.ContainsAny(line, "\n\r\x00") || len(strings.Fields(line)) != 3 {
				t.Errorf("%q", line)
			}
		}
	})
}
