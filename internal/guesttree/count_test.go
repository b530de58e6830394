package guesttree_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/caisson-dev/caisson/internal/guesttree"
)

func TestCount(t *testing.T) {
	top := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	outside := filepath.Join(t.TempDir(), "outside")
	must(os.WriteFile(outside, make([]byte, 1<<20), 0o600))
	must(os.MkdirAll(filepath.Join(top, "a/b/c"), 0o755))
	must(os.WriteFile(filepath.Join(top, "a/file"), make([]byte, 100<<10), 0o600))
	must(os.Link(filepath.Join(top, "a/file"), filepath.Join(top, "a/b/again")))
	must(os.Symlink(outside, filepath.Join(top, "a/link")))
	must(os.Symlink("..", filepath.Join(top, "a/up")))
	sparse, err := os.Create(filepath.Join(top, "a/b/c/sparse"))
	must(err)
	must(sparse.Truncate(1 << 40))
	must(sparse.Close())
	dir, err := os.Open(top)
	must(err)
	defer dir.Close()
	n, err := guesttree.Count(t.Context(), dir, 4)
	if err != nil || n.Files != 7 || n.Bytes < 100<<10 || n.Bytes > 200<<10 {
		t.Errorf("there is %+v, %v", n, err)
	}
	_, err = dir.Seek(0, 0)
	must(err)
	if n, err := guesttree.Count(t.Context(), dir, 3); !errors.Is(err, guesttree.ErrDeep) || n.Files == 0 {
		t.Errorf("three deep: %+v, %v", n, err)
	}
	_, err = dir.Seek(0, 0)
	must(err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := guesttree.Count(ctx, dir, 4); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}
