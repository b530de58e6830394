package namemask

import (
	"slices"
	"strconv"
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
		".ssh": true, ".ssh/known_hosts": true, "a/.ssh/x/y": true, ".ssh/public.pem": true, // Below a hidden directory.
		"top": true, "a/top": false, "abc": true, "abbc": false, "": false, ".": false,
	} {
		if got := m.Hides(path); got != want {
			t.Errorf("Hides(%q) is %v", path, got)
		}
	}
}

func TestLister(t *testing.T) {
	m, err := New([]string{".env", ".SSH", "*.pem"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	l := m.Lister()
	for _, path := range []string{"a", ".Env", "b/.ssh", "b/.ssh/x", "b/.ssh/y/z", "b/c", "c\xff.pem"} {
		if l.Hides(path) != m.Hides(path) {
			t.Errorf("%q: the list says %v", path, !m.Hides(path))
		}
	}
	if want := []string{".Env", "b/.ssh", "c\ufffd.pem"}; !slices.Equal(l.Hidden, want) || l.Count != len(want) {
		t.Errorf("%d are hidden: %q", l.Count, l.Hidden)
	}
	for i := range MaxListed {
		l.Hides(strconv.Itoa(i) + ".pem")
	}
	if len(l.Hidden) != MaxListed || l.Count != MaxListed+3 {
		t.Errorf("of %d hidden %d are listed", l.Count, len(l.Hidden))
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
		// HidesName returns the same as Hides if the parent directories are not hidden.
		dir := path[:max(0, strings.LastIndexByte(path, '/'))]
		if (dir == "" || !m.Hides(dir)) && m.Hides(path) != m.HidesName(path) {
			t.Errorf("pattern %q, path %q: %v and %v", pattern, path, m.Hides(path), m.HidesName(path))
		}
	})
}

// TestWithin tests that a pattern also applies if the directory itself, or a parent of it, matches a part of the
// pattern.
func TestWithin(t *testing.T) {
	m, err := New([]string{".config/gh/hosts.yml", ".config/gcloud", ".ssh", "*.pem", "/top/secret"}, []string{"shown.pem"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		dir, path string
		want      bool
	}{
		{"/home/a/.config", "gh/hosts.yml", true},
		{"/home/a/.CONFIG/", "GH/hosts.yml", true},
		{"/home/a/.config", "gcloud/x/y", true},
		{"/home/a/.config", "other/gh/hosts.yml", false},
		{"/home/a/.config/gh", "hosts.yml", true},
		{"/home/a/.config/gh", "config.yml", false},
		{"/home/a/.config/gcloud", "anything", true},
		{"/home/a/.config/gcloud/deep", "any/thing", true},
		{"/home/a/.ssh", "work", true},
		{"/home/a", ".ssh/work", true},
		{"/home/a", "gh/hosts.yml", false},
		{"/top", "secret", false},
		{"/top/secret/x", "a", false},
		{"/", "top/secret", true},
		{"/", "a.pem", true},
		{"/x/shown.pem", "a", false},
	} {
		within, err := m.Within(c.dir)
		if err != nil {
			t.Fatal(err)
		}
		if within.Hides(c.path) != c.want {
			t.Errorf("%s in %s: %t", c.path, c.dir, !c.want)
		}
	}
}
