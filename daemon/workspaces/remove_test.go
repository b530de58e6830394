package workspaces_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// deep creates nested directories in the layer of a workspace, deeper than the maximum length of a path.
func (w *world) deep(ws *caisson.Workspace, name string) {
	w.t.Helper()
	fd, err := unix.Open(filepath.Join(w.data, "workspaces", string(ws.ID), "layers/upper"), unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	w.must(err)
	for i := range 2500 {
		if i > 0 {
			name = "d"
		}
		w.must(unix.Mkdirat(fd, name, 0o755))
		next, err := unix.Openat(fd, name, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		w.must(err)
		w.must(unix.Fchown(next, w.base, w.base))
		w.must(unix.Close(fd))
		fd = next
	}
	w.must(unix.Close(fd))
}

// descriptors returns the open file descriptors of this process.
func descriptors(t *testing.T) []int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	var list []int
	for _, e := range names {
		if n, err := strconv.Atoi(e.Name()); err == nil {
			list = append(list, n)
		}
	}
	return list
}

// withFewDescriptors calls f while this process can open only few more descriptors.
func withFewDescriptors(t *testing.T, f func()) {
	t.Helper()
	var had unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &had); err != nil {
		t.Fatal(err)
	}
	few := had
	few.Cur = uint64(slices.Max(descriptors(t)) + 200)
	if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, &few, nil); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, &had, nil); err != nil {
			t.Fatal(err)
		}
	}()
	f()
}

// TestDeep: a tree that is deeper than the daemon's limit of descriptors is dropped, reset and removed like any other.
func TestDeep(t *testing.T) {
	w := newWorld(t)
	dir := w.tree(map[string]string{"f": "a"})
	outside := filepath.Join(t.TempDir(), "outside")
	w.must(os.WriteFile(outside, []byte("the host's"), 0o644))
	ws := w.lay(dir)
	w.inside(ws, func(in string) {
		put(t, in, map[string]string{"moved-1/moved-2": "x", "link": "->" + outside, "up": "->../../.."}) // names that a removal uses
	})

	w.deep(ws, "dropped")
	d := w.review(ws)
	req := caisson.SyncRequest{Review: d.Review}
	for _, ch := range d.Changes {
		req.Drop = append(req.Drop, ch.Path)
	}
	withFewDescriptors(t, func() {
		_, err := w.sync(ws, req)
		w.must(err)
	})
	w.shows(ws)

	w.deep(ws, "reset")
	withFewDescriptors(t, func() {
		_, err := w.gate.Reset(w.ctx(), string(ws.ID))
		w.must(err)
	})
	w.shows(ws)

	w.deep(ws, "removed")
	w.must(w.store.Sandboxes().Delete(t.Context(), caisson.AllAccounts(), string(ws.Sandbox)))
	w.must(w.core.Layers().Detach(w.ctx(), ws.ID))
	withFewDescriptors(t, func() { w.must(w.gate.RemoveWorkspace(w.ctx(), string(ws.ID))) })
	if _, err := os.Lstat(filepath.Join(w.data, "workspaces", string(ws.ID))); !os.IsNotExist(err) {
		t.Errorf("the workspace's directory: %v", err)
	}

	lost := w.lay(dir)
	w.deep(lost, "lost")
	w.must(w.store.Workspaces().Delete(t.Context(), caisson.AllAccounts(), lost.ID))
	w.must(w.core.Close())
	w.open()
	withFewDescriptors(t, func() { w.must(w.core.Reconcile(t.Context())) })
	if _, err := os.Lstat(filepath.Join(w.data, "workspaces", string(lost.ID))); !os.IsNotExist(err) {
		t.Errorf("the directory of no workspace: %v", err)
	}
	if b, err := os.ReadFile(outside); err != nil || string(b) != "the host's" {
		t.Errorf("a file outside holds %q, %v", b, err)
	}
}

// endsAfter is a context that ends after a number of calls of its methods.
type endsAfter struct {
	context.Context
	left atomic.Int32
}

func (c *endsAfter) Err() error {
	if c.left.Add(-1) < 0 {
		return context.Canceled
	}
	return nil
}

// TestResetEndsAnywhere: a reset that is cancelled leaves only files in the layer that the sandbox has created.
func TestResetEndsAnywhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ws := w.lay(w.tree(map[string]string{"f": "a"}))
	upper := filepath.Join(w.data, "workspaces", string(ws.ID), "layers/upper")
	for asked := range int32(20) {
		w.inside(ws, func(in string) { put(t, in, map[string]string{"a/b/c/d": "x", "a/e/f/g": "x", "h/i/j": "x"}) })
		ctx := &endsAfter{Context: w.ctx()}
		ctx.left.Store(asked)
		_, err := w.gate.Reset(ctx, string(ws.ID))
		list, rerr := os.ReadDir(upper)
		w.must(rerr)
		for _, e := range list {
			if e.Name() != "a" && e.Name() != "h" {
				t.Fatalf("after %d looks at the context, %v: the layer has %s", asked, err, e.Name())
			}
		}
		_, err = w.gate.Reset(w.ctx(), string(ws.ID))
		w.must(err)
		w.shows(ws)
	}
}
