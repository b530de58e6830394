package hostdir

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/caisson-dev/caisson/internal/hostdir/hostdirtest"
)

// TestElsewhere tests that a directory opened in another mount namespace is distinguished from a removed one.
func TestElsewhere(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		open  func(dir string) *os.File
		here  bool
		reach error
	}{
		"here":                    {func(dir string) *os.File { return open(t, dir) }, true, nil},
		"elsewhere, the same":     {func(dir string) *os.File { return hostdirtest.Open(t, dir, false) }, false, nil},
		"elsewhere, and not here": {func(dir string) *os.File { return hostdirtest.Open(t, dir, true) }, false, ErrOtherNamespace},
		"here, and moved": {func(dir string) *os.File {
			f := open(t, dir)
			if err := errors.Join(os.Rename(dir, dir+"-moved"), os.Mkdir(dir, 0o755)); err != nil {
				t.Fatal(err)
			}
			return f
		}, true, nil},
	} {
		f := c.open(mkdir(t, t.TempDir(), "dir"))
		d, err := FromFD(f.Fd())
		if err != nil {
			t.Fatal(err)
		}
		if here, err := InMountNamespace(f.Fd()); err != nil || here != c.here {
			t.Errorf("%s: here is %v, %v", name, here, err)
		}
		if err := d.CheckReachable(f.Fd()); !errors.Is(err, c.reach) {
			t.Errorf("%s: %v", name, err)
		}
	}
	dir := mkdir(t, t.TempDir(), "dir")
	f := open(t, dir)
	d, err := FromFD(f.Fd())
	if err := errors.Join(err, os.Remove(dir)); err != nil {
		t.Fatal(err)
	}
	if err := d.CheckReachable(f.Fd()); !errors.Is(err, ErrRemoved) {
		t.Errorf("removed: %v", err)
	}
}

func open(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func mkdir(t *testing.T, path ...string) string {
	t.Helper()
	p := filepath.Join(path...)
	if err := os.MkdirAll(p, 0o750); err != nil {
		t.Fatal(err)
	}
	return p
}

// TestOpen tests that Open opens the same directory at its path, and no other one.
func TestOpen(t *testing.T) {
	top := t.TempDir()
	path := mkdir(t, top, "a")
	d, err := FromFD(open(t, path).Fd())
	if err != nil || d.Path != path || d.Mode != 0o750 || d.UID != uint32(os.Getuid()) {
		t.Fatalf("%+v, %v", d, err)
	}
	f, err := d.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if err := os.Rename(path, path+"2"); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		put  func() error
		want error
	}{
		"nothing":   {func() error { return nil }, ErrRemoved},
		"other":     {func() error { return os.Mkdir(path, 0o700) }, ErrReplaced},
		"a file":    {func() error { return os.WriteFile(path, nil, 0o600) }, ErrReplaced},
		"a symlink": {func() error { return os.Symlink(path+"2", path) }, ErrReplaced},
	} {
		if err := c.put(); err != nil {
			t.Fatal(err)
		}
		if f, err := d.Open(0); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, %v", name, f, err)
		}
		os.RemoveAll(path)
	}
}

func TestOf(t *testing.T) {
	dir := mkdir(t, t.TempDir(), "a")
	gone := open(t, dir)
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := FromFD(gone.Fd()); !errors.Is(err, ErrRemoved) {
		t.Errorf("a removed directory: %v", err)
	}
	if _, err := FromFD(open(t, "/dev/null").Fd()); !errors.Is(err, ErrNotDir) {
		t.Errorf("a device: %v", err)
	}
}

func TestOverlap(t *testing.T) {
	top := t.TempDir()
	mkdir(t, top, "a", "b", "c")
	mkdir(t, top, "ab")
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"a", "a", true}, {"a", "a/b/c", true}, {"a/b/c", "a", true}, {"a", "ab", false}, {"ab", "a/b", false}, {".", "ab", true},
	} {
		got, err := Overlap(open(t, filepath.Join(top, c.a)).Fd(), open(t, filepath.Join(top, c.b)).Fd())
		if err != nil || got != c.want {
			t.Errorf("%s and %s: %v, %v", c.a, c.b, got, err)
		}
	}
	if got, err := Overlap(open(t, "/").Fd(), open(t, top).Fd()); err != nil || !got {
		t.Errorf("the root of everything: %v, %v", got, err)
	}
}
