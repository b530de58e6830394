package remoteurl

import (
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
)

func TestParseURL(t *testing.T) {
	tests := []struct {
		raw  string
		want URL
		out  string // "" if it equals raw
	}{
		{"https://github.com/a/b.git", URL{HTTPS, "", "github.com", "", "/a/b.git"}, ""},
		{"https://GitHub.com:443/a/b/", URL{HTTPS, "", "github.com", "", "/a/b"}, "https://github.com/a/b"},
		{"https://git.example.org:8443/g/s/p", URL{HTTPS, "", "git.example.org", "8443", "/g/s/p"}, ""},
		{"https://dev.azure.com/org/My%20Project/_git/x", URL{HTTPS, "", "dev.azure.com", "", "/org/My%20Project/_git/x"}, ""},
		{"https://git.sr.ht/~sircmpwn/x", URL{HTTPS, "", "git.sr.ht", "", "/~sircmpwn/x"}, ""},
		{"http://127.0.0.1:3000/a/b", URL{HTTP, "", "127.0.0.1", "3000", "/a/b"}, ""},
		{"http://[::1]:3000/a/b", URL{HTTP, "", "::1", "3000", "/a/b"}, ""},
		{"http://[0:0:0:0:0:0:0:1]:80/a", URL{HTTP, "", "::1", "", "/a"}, "http://[::1]/a"},
		{"ssh://git@host/a/b", URL{SSH, "git", "host", "", "/a/b"}, ""},
		{"ssh://git@host:22/a/b", URL{SSH, "git", "host", "", "/a/b"}, "ssh://git@host/a/b"},
		{"ssh://git@host:2222/~me/b", URL{SSH, "git", "host", "2222", "/~me/b"}, ""},
		{"git@github.com:a/b.git", URL{SSH, "git", "github.com", "", "a/b.git"}, ""},
		{"git@host:/srv/b.git", URL{SSH, "git", "host", "", "/srv/b.git"}, "ssh://git@host/srv/b.git"},
		{"git@[::1]:b", URL{SSH, "git", "::1", "", "b"}, ""},
		{"/srv/git/b.git", URL{Local, "", "", "", "/srv/git/b.git"}, ""},
		{"/srv/git/b x/", URL{Local, "", "", "", "/srv/git/b x"}, "/srv/git/b x"},
	}
	for _, tt := range tests {
		got, err := ParseURL(tt.raw)
		if err != nil || got != tt.want {
			t.Errorf("%q: %+v, %v", tt.raw, got, err)
			continue
		}
		if tt.out == "" {
			tt.out = tt.raw
		}
		if got.String() != tt.out {
			t.Errorf("%q is written %q", tt.raw, got)
		}
	}
}

func TestParseURLRefuses(t *testing.T) {
	for _, raw := range []string{
		"", "x", "a/b", "./a", "../a", "~/a", "host:path", "C:/x", "file:///etc", "ext::sh -c id", "git@ext::sh", "fd::17", "git://host/x", "ftp://h/x",
		"HTTPS://host/a", "https://", "https:///a", "https://host", "https://host/", "https://host//", "https://host//a", "https://host/a//b",
		"https://host/../a", "https://host/a/..", "https://host/%2e%2e/a", "https://host/a%2fb", "https://host/a%", "https://host/a%0ab", "https://host/a%00",
		"https://user@host/a", "https://user:pw@host/a", "https://@host/a", "https://host/a?x=1", "https://host/a#x", "https://host?/a",
		"https://-host/a", "https://host-/a", "https://.host/a", "https://host./a", "https://a..b/c", "https://hö.st/a", "https://h st/a", "https://host/a b",
		"https://host:/a", "https://host:0/a", "https://host:65536/a", "https://host:+1/a", "https://host:080/a", "https://host:a/b", "https://host:1:2/b",
		"https://127.1/a", "https://2130706433/a", "https://0x7f.0.0.1/a", "https://1.2.3.0x4/a", "https://[::1/a", "https://[::1]x/a", "https://[fe80::1%25eth0]/a", "https://[1.2.3.4]/a",
		"https://ho\\st/a", "https://host/a\nb", "https://host/a\x00", "https://host/<a>", "https://host/'a'", "https://host/`a`", "https://host/\u202ea",
		"ssh://host/a", "ssh://-oProxyCommand=x/a", "ssh://git@-oProxyCommand=x/a", "ssh://-x@host/a", "ssh://git:pw@host/a", "ssh://git@host", "ssh://git@host/",
		"ssh://git@host/a'b", "ssh://git@host/$(id)", "ssh://git@host/a;b", "ssh://git@host/a%20b", "ssh://git@host:x/a", "ssh://a@b@host/x",
		"git@host:", "git@host:-x", "git@-host:x", "git@host:a b", "git@host:a'b", "git@host::x", "-x@host:a", "git@host", "git@host:../a", "git:pw@host:a",
		"git@[::1]", "git@[::1]a", "git@[x]:a", "@host:a",
		"/", "//", "/a/../b", "/a//b", "/a/./b", "/a\nb", "/a\x00b", "/a\xffb", "/a\u202eb", "//host/share",
		"https://host/" + strings.Repeat("a", MaxLength), "https://" + strings.Repeat("a", 64) + "/b",
	} {
		u, err := ParseURL(raw)
		if caisson.KindOf(err) != caisson.Invalid || caisson.FieldOf(err) != "url" {
			t.Errorf("%.80q: %+v, %v", raw, u, err)
		}
		if u != (URL{}) {
			t.Errorf("%.80q: an error and %+v", raw, u)
		}
	}
}

// TestErrorsKeepSecrets checks that errors do not contain tokens from URLs, because errors are displayed and logged.
func TestErrorsKeepSecrets(t *testing.T) {
	for _, raw := range []string{"https://s3cret@host/a", "https://u:s3cret@host/a", "ssh://u:s3cret@host/a", "u:s3cret@host:a", "https://host/a?token=s3cret", "https://host:s3cret/a"} {
		if _, err := ParseURL(raw); err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%q: %v", raw, err)
		}
	}
}

func TestConfidential(t *testing.T) {
	for raw, want := range map[string]bool{
		"https://host/a": true, "http://host/a": false, "http://127.0.0.1/a": true, "http://127.9.9.9/a": true, "http://[::1]/a": true,
		"http://[::ffff:127.0.0.1]/a": true, "http://localhost/a": true, "http://x.localhost/a": true, "http://localhost.example.org/a": false,
		"http://xlocalhost/a": false, "http://10.0.0.1/a": false, "ssh://git@host/a": true, "/a": true,
	} {
		u, err := ParseURL(raw)
		if err != nil || u.Confidential() != want {
			t.Errorf("%q: %v, %v", raw, u.Confidential(), err)
		}
	}
}

func FuzzParseURL(f *testing.F) {
	for _, s := range []string{
		"https://github.com/a/b.git", "http://[::1]:80/a%20b", "ssh://git@host:22/~a/b", "git@host:a/b", "git@[::1]:/b", "/a/b", "ext::sh", "https://a@b/c",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		u, err := ParseURL(raw)
		if err != nil {
			if caisson.KindOf(err) != caisson.Invalid || u != (URL{}) {
				t.Fatalf("%+v, %v", u, err)
			}
			return
		}
		out := u.String()
		again, err := ParseURL(out)
		if err != nil || again != u {
			t.Fatalf("%q is written %q, which reads %+v, %v", raw, out, again, err)
		}
		if strings.HasPrefix(u.Host, "-") || strings.HasPrefix(u.User, "-") || strings.HasPrefix(u.Path, "-") || strings.Contains(out, "::") && !strings.Contains(u.Host, ":") && u.Scheme == SSH {
			t.Fatalf("%q is let through as %+v", raw, u)
		}
		if strings.ContainsFunc(out, func(r rune) bool { return r < ' ' || r == 0x7f }) || strings.Contains(u.Path, "/../") {
			t.Fatalf("%q has dangerous parts", out)
		}
	})
}
