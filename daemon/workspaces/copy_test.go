package workspaces_test

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
)

func ofCopy(r *caisson.WorkspaceRequest) { r.Kind = caisson.WorkspaceCopy }

// kept waits until the base for merges is saved.
func (w *world) kept(ws *caisson.Workspace) {
	w.t.Helper()
	poll.Until(w.t, patience, func() bool {
		_, err := os.Stat(filepath.Join(w.data, "workspaces", string(ws.ID), "base/index"))
		return err == nil
	})
}

// TestBaseIsKeptFirst: the base for merges is saved before the first review, however early that is.
func TestBaseIsKeptFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := w.tree(map[string]string{"f": "1\n2\n3\n4\n5\n"})
	ws := w.lay(dir)
	w.shows(ws)
	put(t, dir, map[string]string{"f": "1\n2\n3\n4\nFIVE\n"})
	w.edit(ws, map[string]string{"f": "ONE\n2\n3\n4\n5\n"})
	if c := w.shows(ws, "modified f").Changes[0]; !c.Merge {
		t.Errorf("%+v", c)
	}
}

// sees returns the files that the sandbox of a workspace sees.
func (w *world) sees(ws *caisson.Workspace) (files map[string]string) {
	w.t.Helper()
	w.inside(ws, func(in string) { files = have(w.t, in) })
	return files
}

// TestCopy: the sandbox sees the files as they were at the start, and its changes are merged with the host's.
func TestCopy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	seven := "1\n2\n3\n4\n5\n6\n7\n"
	start := map[string]string{
		"a.txt": "a\n", "merge.txt": seven, "sub/deep/x": "x\n", "link": "->a.txt", "out": "->/etc/passwd", "empty/": "", ".env": "SECRET\n", "sub/.ssh/id": "SECRET\n",
		"index": "not ours\n", "pack": "not ours\n",
	}
	dir := w.tree(start)
	w.must(unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	w.must(os.WriteFile(filepath.Join(dir, "theirs"), []byte("x"), 0o600)) // belongs to root, so the owner cannot read it
	sparse, err := os.Create(filepath.Join(dir, "sparse"))
	w.must(err)
	w.must(sparse.Truncate(8 << 30)) // more than a copy may contain, if it were data
	w.must(sparse.Close())
	w.must(os.Chown(filepath.Join(dir, "sparse"), hostUID, hostUID))
	w.must(os.Chmod(filepath.Join(dir, "sub"), 0o710))
	old := time.Unix(1_000_000_000, 123)
	w.must(os.Chtimes(filepath.Join(dir, "a.txt"), old, old))

	ws := w.lay(dir, ofCopy)
	w.kept(ws)
	if ws.Kind != caisson.WorkspaceCopy || !strings.HasPrefix(ws.Warning, "2 files are not in the copy") || ws.HiddenCount != 2 {
		t.Errorf("%+v", ws)
	}
	copied := filepath.Join(w.data, "workspaces", string(ws.ID), "copy")
	for _, p := range []string{".env", "sub/.ssh", "fifo", "theirs"} {
		if _, err := os.Lstat(filepath.Join(copied, p)); err == nil {
			t.Errorf("%s was copied", p)
		}
	}
	for _, p := range []string{"", "sub", "a.txt", "link", "index", "pack", "sub/deep/x"} {
		var is, was unix.Stat_t
		w.must(unix.Lstat(filepath.Join(copied, p), &is))
		w.must(unix.Lstat(filepath.Join(dir, p), &was))
		if is.Uid != hostUID || is.Gid != hostUID || is.Mode != was.Mode || p != "" && is.Mtim != was.Mtim {
			t.Errorf("%q is %+v, and was %+v", p, is, was)
		}
	}
	// The host's user makes changes.
	w.must(os.Remove(filepath.Join(dir, "sparse")))
	w.must(os.Remove(filepath.Join(dir, "fifo")))
	w.must(os.Remove(filepath.Join(dir, "theirs")))
	put(t, dir, map[string]string{"a.txt": "host\n", "merge.txt": strings.Replace(seven, "7", "SEVEN", 1), "late": "late\n"})
	w.own(dir, hostUID)
	now := have(t, dir)
	fi, err := os.Stat(filepath.Join(copied, "sparse"))
	if err != nil || fi.Size() != 8<<30 {
		t.Errorf("sparse: %v, %v", fi, err)
	}
	w.must(os.Remove(filepath.Join(copied, "sparse"))) // it would be read
	saw := w.sees(ws)
	want := maps.Clone(start)
	delete(want, ".env")
	delete(want, "sub/.ssh/id")
	if !maps.Equal(saw, want) {
		t.Errorf("the sandbox sees %q, want %q", saw, want)
	}
	w.shows(ws)

	w.edit(ws, map[string]string{"merge.txt": strings.Replace(seven, "2", "TWO", 1), "sub/n": "n\n", "sub/deep/x": "X\n"})
	d := w.shows(ws, "added sub/n", "modified merge.txt", "modified sub/deep/x")
	receipt, err := w.sync(ws, pick(t, d))
	w.must(err)
	now["merge.txt"], now["sub/n"], now["sub/deep/x"] = "1\nTWO\n3\n4\n5\n6\nSEVEN\n", "n\n", "X\n"
	w.wantFiles(dir, now)
	w.shows(ws)
	// Files that were applied, and files that the host has changed, can be changed again, or conflict.
	w.edit(ws, map[string]string{"sub/deep/x": "XX\n", "a.txt": "box\n"})
	w.inside(ws, func(in string) { w.must(os.Remove(filepath.Join(in, "sub/n"))) })
	d = w.shows(ws, "modified a.txt clash", "modified sub/deep/x", "removed sub/n")
	_, err = w.sync(ws, pick(t, d, "sub/deep/x", "sub/n"))
	w.must(err)
	now["sub/deep/x"] = "XX\n"
	delete(now, "sub/n")
	w.wantFiles(dir, now)
	w.shows(ws, "modified a.txt clash")
	_, err = w.gate.Undo(w.ctx(), receipt.ID, handle(t, dir))
	w.wants(err, caisson.Conflict, "")
}

// TestCopyUndo: an undo restores the original files, and the changes wait again.
func TestCopyUndo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	start := map[string]string{"a": "a\n", "d/b": "b\n", "gone": "g\n"}
	dir := w.tree(start)
	ws := w.lay(dir, ofCopy)
	w.kept(ws)
	w.edit(ws, map[string]string{"a": "A\n", "n/m": "m\n"})
	w.inside(ws, func(in string) {
		w.must(os.RemoveAll(filepath.Join(in, "d")))
		w.must(os.Remove(filepath.Join(in, "gone")))
	})
	all := []string{"added n", "added n/m", "modified a", "removed d", "removed d/b", "removed gone"}
	receipt, err := w.sync(ws, pick(t, w.shows(ws, all...)))
	w.must(err)
	w.wantFiles(dir, map[string]string{"a": "A\n", "n/m": "m\n"})
	_, err = w.gate.Undo(w.ctx(), receipt.ID, handle(t, dir))
	w.must(err)
	w.wantFiles(dir, start)
	w.shows(ws, all...)
	// A directory that was created and applied disappears from the layer without a trace.
	_, err = w.sync(ws, pick(t, w.shows(ws, all...)))
	w.must(err)
	w.inside(ws, func(in string) { w.must(os.RemoveAll(filepath.Join(in, "n"))) })
	_, err = w.sync(ws, pick(t, w.shows(ws, "removed n", "removed n/m")))
	w.must(err)
	w.wantFiles(dir, map[string]string{"a": "A\n"})
	w.shows(ws)
}

// TestCopyStartsOver: a sandbox that sees the copy again, because its changes were dropped, is compared with the copy:
// applied changes stay applied.
func TestCopyStartsOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	seven := "1\n2\n3\n4\n5\n6\n7\n"
	dir := w.tree(map[string]string{"f": seven, "g": seven})
	ws := w.lay(dir, ofCopy)
	w.kept(ws)
	applied := strings.Replace(seven, "2", "TWO", 1)
	w.edit(ws, map[string]string{"f": applied, "g": applied, "n": "n\n"})
	_, err := w.sync(ws, pick(t, w.review(ws)))
	w.must(err)

	// A later change of one of the files is dropped: the sandbox has the file of the start.
	w.edit(ws, map[string]string{"g": "other\n"})
	d := w.shows(ws, "modified g")
	_, err = w.sync(ws, caisson.SyncRequest{Review: d.Review, Drop: []string{"g"}})
	w.must(err)
	if saw := w.sees(ws); saw["g"] != seven || saw["f"] != applied {
		t.Errorf("the sandbox sees %q", saw)
	}
	w.shows(ws)
	w.edit(ws, map[string]string{"g": strings.Replace(seven, "6", "SIX", 1)})
	if ch := w.review(ws).Changes; len(ch) != 1 || ch[0].Verdict != caisson.VerdictConflict && !ch[0].Merge {
		t.Errorf("what was applied would be taken back: %+v", ch)
	}

	// All changes are dropped.
	_, err = w.gate.Reset(w.ctx(), string(ws.ID))
	w.must(err)
	w.kept(ws)
	if saw := w.sees(ws); saw["f"] != seven || saw["n"] != "" {
		t.Errorf("the sandbox sees %q", saw)
	}
	w.shows(ws)
	w.edit(ws, map[string]string{"f": strings.Replace(seven, "6", "SIX", 1)})
	_, err = w.sync(ws, pick(t, w.shows(ws, "modified f")))
	w.must(err)
	w.wantFiles(dir, map[string]string{"f": strings.Replace(applied, "6", "SIX", 1), "g": applied, "n": "n\n"})
}

// TestCopyGoes: the copy is removed with the sandbox, and waiting changes can be applied without it.
func TestCopyGoes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := w.tree(map[string]string{"f": "a\nb\nc\nd\n"})
	ws := w.lay(dir, ofCopy)
	w.kept(ws)
	w.edit(ws, map[string]string{"f": "A\nb\nc\nd\n"})
	w.must(w.core.Layers().Detach(w.ctx(), ws.ID))
	poll.Until(t, patience, func() bool { return w.get(ws).Changes == 1 })
	poll.Until(t, patience, func() bool {
		w.core.Clean(t.Context(), time.Now()) // ignores workspaces that are in use
		_, err := os.Lstat(filepath.Join(w.data, "workspaces", string(ws.ID), "copy"))
		return os.IsNotExist(err)
	})
	put(t, dir, map[string]string{"f": "a\nb\nc\nD\n"})
	_, err := w.sync(ws, pick(t, w.shows(ws, "modified f")))
	w.must(err)
	w.wantFiles(dir, map[string]string{"f": "A\nb\nc\nD\n"})
}
