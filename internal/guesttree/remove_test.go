package guesttree_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/guesttree"
)

// grow creates a tree that is deeper than a path can be long, is wide, contains the names that a removal itself
// creates, and has a link that leads out.
func grow(t *testing.T, path, outside string) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(filepath.Join(path, "moved-1/moved-2"), 0o755))
	must(os.Symlink(outside, filepath.Join(path, "out")))
	for i := range 1500 {
		must(os.WriteFile(filepath.Join(path, "file"+strconv.Itoa(i)), nil, 0o600))
	}
	fd, err := unix.Open(path, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(err)
	for range 2500 {
		must(unix.Mkdirat(fd, "d", 0o755))
		must(unix.Symlinkat(outside, fd, "l"))
		next, err := unix.Openat(fd, "d", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(err)
		must(unix.Close(fd))
		fd = next
	}
	must(unix.Close(fd))
}

func TestRemove(t *testing.T) {
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "kept"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "tree")
	for _, removers := range []int{1, 2} {
		grow(t, path, outside)
		var wg sync.WaitGroup
		for range removers {
			wg.Go(func() {
				if err := guesttree.Remove(t.Context(), path); err != nil && removers == 1 {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		// Of two concurrent removals one may fail because of the other one's moves; the next removal removes the rest.
		if err := guesttree.Remove(t.Context(), path); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("with %d at work it is still there: %v", removers, err)
		}
	}
	if err := os.Symlink(outside, path); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := guesttree.Remove(t.Context(), path); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(filepath.Join(outside, "kept")); err != nil {
		t.Errorf("what symlinks led to: %v", err)
	}
}
