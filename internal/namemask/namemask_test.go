package namemask

import (
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
)

func TestHides(t *testing.T) {
	m, err := New([]string{".env", ".env.*", "*.pem", ".aws/credentials", ".ssh", "/top", "a?c"}, []string{".env.example", "public.pem"})
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{
		".env": true, "a/.env": true, ".ENV": true, ".env.local": true, ".env.example": false, "x/.Env.Example": false, "env": false,
		"key.pem": true, "a/b/KEY.PEM": true, "public.pem": false, "key.pem.txt": false,
		".aws/credentials": true, "home/.aws/credentials": true, ".aws/config": false, "credentials": false,
		".ssh": true, ".ssh/known_hosts": true, "a/.ssh/x/y": true, ".ssh/public.pem": true, // below a hidden directory
		"top": true, "a/top": false, "abc": true, "abbc": false, "": false, ".": false,
	} {
		if got := m.Hides(path); got != want {
			t.Errorf("Hides(%q) is %v", path, got)
		}
	}
}

func TestRefused(t *testing.T) {
	for _, p := range []string{"", "/", "a//b", "..", "a/../b", ".", "[", strings.Repeat("x", MaxPattern+1), "a\x00"} {
		if _, err := New([]string{p}, nil); caisson.KindOf(err) != caisson.Invalid || caisson.FieldOf(err) != "hide" {
			t.Errorf("%q in hide: %v", p, err)
		}
		if _, err := New(nil, []string{p}); caisson.FieldOf(err) != "show" {
			t.Errorf("%q in show: %v", p, err)
		}
	}
	if _, err := New(make([]string, MaxPatterns+1), nil); caisson.KindOf(err) != caisson.Invalid {
		t.Errorf("too many: %v", err)
	}
}

func FuzzHides(f *testing.F) {
	f.Add(".env.*", "a/.env.b")
	f.Add("[a-z]*/x", "q/x/y")
	f.Fuzz(func(t *testing.T, pattern, path string) {
		m, err := New([]string{pattern}, nil)
		if err != nil {
			return
		}
		// HidesHere says the same where the directories above are shown.
		dir := path[:max(0, strings.LastIndexByte(path, '/'))]
		if (dir == "" || !m.Hides(dir)) && m.Hides(path) != m.HidesHere(path) {
			t.Errorf("pattern %q, path %q: %v and %v", pattern, path, m.Hides(path), m.HidesHere(path))
		}
	})
}
