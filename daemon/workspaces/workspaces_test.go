package workspaces_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/hostdir/hostdirtest"
	"github.com/caisson-dev/caisson/internal/poll"
)

// TestElsewhere: a directory that was opened in another mount namespace is rejected with the reason if it cannot be
// used.
func TestElsewhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := w.tree(map[string]string{"a": "a"})
	_, err := w.core.Layers().Create(w.ctx(), w.sandbox(), caisson.WorkspaceRequest{Source: dir, Directory: hostdirtest.Open(t, dir, true)})
	w.wants(err, caisson.Invalid, "another mount namespace")
	ws := w.lay(dir, func(r *caisson.WorkspaceRequest) { r.Directory = hostdirtest.Open(t, dir, false) }) // the same namespace
	w.edit(ws, map[string]string{"a": "A"})
	req := pick(t, w.review(ws))
	req.Directory = hostdirtest.Open(t, dir, false)
	_, err = w.gate.Sync(w.ctx(), string(ws.ID), req)
	w.wants(err, caisson.Conflict, "another mount namespace")
	w.wantFiles(dir, map[string]string{"a": "a"})
	req.Directory = handle(t, dir)
	_, err = w.gate.Sync(w.ctx(), string(ws.ID), req)
	w.must(err)
	w.wantFiles(dir, map[string]string{"a": "A"})
}

// TestSuspects: files that may contain secrets are reported immediately if their name indicates it, and soon if their
// content does.
func TestSuspects(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.must(w.core.Close())
	w.search = time.Millisecond
	w.open()
	ws := w.lay(w.tree(map[string]string{
		"a.tfstate": "{}", "key": "-----BEGIN PRIVATE KEY-----\n" + strings.Repeat("MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQ\n", 4) + "-----END PRIVATE KEY-----\n",
		"main.go": "package main\n",
	}))
	if ws.SuspectCount != 1 || ws.Suspects[0].Path != "a.tfstate" {
		t.Errorf("by their names: %+v", ws.Suspects)
	}
	var got *caisson.Workspace
	poll.Until(t, patience, func() bool {
		var err error
		got, err = w.core.Workspaces().GetWorkspace(w.ctx(), string(ws.ID))
		w.must(err)
		return got.Search != nil
	})
	if got.SuspectCount != 2 || len(got.Suspects) != 2 || got.Suspects[1].Path != "key" || *got.Search != (caisson.WorkspaceSearch{Searched: 2}) {
		t.Errorf("by their content: %+v of %+v", got.Suspects, got.Search)
	}
}

// TestLife tests one workspace from its creation to its removal.
func TestLife(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	start := map[string]string{
		"a.txt": "one\ntwo\nthree\n", "src/b.go": "package b\n", "src/c.go": "package c\n", "run.sh": "#!/bin/sh\n", "old/x": "a long enough text to be found again\n",
		"link": "->a.txt", ".env": "PASSWORD=1", "deep/er/.env": "PASSWORD=2",
	}
	dir := w.tree(start)
	ws := w.lay(dir)
	if ws.State != caisson.WorkspaceLive || ws.HiddenCount != 2 || len(ws.Hidden) != 2 || ws.UID != hostUID || ws.Run == "" || ws.Target != "/workspace" {
		t.Fatalf("%+v", ws)
	}
	w.inside(ws, func(in string) {
		for name := range start {
			_, err := os.Lstat(filepath.Join(in, name))
			if hidden := strings.HasSuffix(name, ".env"); hidden != os.IsNotExist(err) {
				t.Errorf("%s: %v", name, err)
			}
		}
		put(t, in, map[string]string{"a.txt": "one\nTWO\nthree\n", "new/n.txt": "new\n", "same": "x"})
		w.must(os.Remove(filepath.Join(in, "src/c.go")))
		w.must(os.Rename(filepath.Join(in, "old/x"), filepath.Join(in, "old/y")))
		w.must(os.Chmod(filepath.Join(in, "src/b.go"), 0o600))
		w.must(os.Remove(filepath.Join(in, "same")))
	})
	w.wantFiles(dir, start) // no change has been applied

	d := w.shows(ws, "added new", "added new/n.txt", "mode src/b.go", "modified a.txt", "removed src/c.go", "renamed old/x old/y")
	if d.Workspace.Changes != 6 || len(d.Checks) == 0 || d.Cut {
		t.Errorf("%+v", d)
	}
	changed := w.saw("workspace.changed")
	if len(changed) != 6 || changed[0].Data["sandbox"] != string(ws.Sandbox) || changed[0].Data["run"] != string(ws.Run) || changed[0].Subject != string(ws.ID) {
		t.Errorf("%d events: %+v", len(changed), changed)
	}

	// A part of the changes, with the directory that it needs.
	receipt, err := w.sync(ws, pick(t, d, "a.txt", "new/n.txt", "old/y"))
	w.must(err)
	part := maps.Clone(start)
	delete(part, "old/x")
	part["a.txt"], part["new/n.txt"], part["old/y"] = "one\nTWO\nthree\n", "new\n", start["old/x"]
	w.wantFiles(dir, part)
	if receipt.ID == "" || receipt.By != "local" || receipt.Waiting != 2 || len(receipt.Entries) != 5 || receipt.State != caisson.ReceiptApplied {
		t.Errorf("%+v", receipt)
	}
	for _, ref := range []caisson.ID{ws.ID, ws.Sandbox, ws.Run} {
		if got := w.get(&caisson.Workspace{ID: ref}); got.Changes != 2 || got.SyncedAt.IsZero() {
			t.Errorf("%s: %+v", ref, got)
		}
	}
	d = w.shows(ws, "mode src/b.go", "removed src/c.go")
	if n := len(w.saw("workspace.changed")); n != 6 {
		t.Errorf("%d events for 6 changes", n)
	}
	_, err = w.sync(ws, pick(t, d))
	w.must(err)
	delete(part, "src/c.go")
	w.wantFiles(dir, part)
	if fi, err := os.Stat(filepath.Join(dir, "src/b.go")); err != nil || fi.Mode() != 0o600 {
		t.Errorf("%v %v", fi.Mode(), err)
	}
	w.shows(ws)

	// The first sync is undone. Its changes are shown again.
	undone, err := w.gate.Undo(w.ctx(), receipt.ID, handle(t, dir))
	w.must(err)
	if undone.State != caisson.ReceiptUndone || undone.UndoneAt.IsZero() {
		t.Errorf("%+v", undone)
	}
	back := maps.Clone(start)
	delete(back, "src/c.go")
	w.wantFiles(dir, back)
	w.shows(ws, "added new", "added new/n.txt", "modified a.txt", "renamed old/x old/y")
	_, err = w.gate.Undo(w.ctx(), receipt.ID, handle(t, dir))
	w.wants(err, caisson.Conflict, "undone already")

	// The sandbox is removed; its changes wait, and can still be applied.
	w.must(w.core.Layers().Detach(w.ctx(), ws.ID))
	w.must(w.core.Layers().Detach(w.ctx(), ws.ID))
	poll.Until(t, patience, func() bool { return w.get(ws).Changes == 4 })
	if got := w.get(ws); got.State != caisson.WorkspaceDetached || got.EndedAt.IsZero() {
		t.Errorf("%+v", got)
	}
	_, err = w.core.Layers().Open(w.ctx(), ws.ID)
	w.wants(err, caisson.Conflict, "gone")
	_, err = w.sync(ws, pick(t, w.review(ws)))
	w.must(err)
	w.wantFiles(dir, map[string]string{
		"a.txt": "one\nTWO\nthree\n", "src/b.go": "package b\n", "run.sh": "#!/bin/sh\n", "old/y": start["old/x"], "new/n.txt": "new\n",
		"link": "->a.txt", ".env": "PASSWORD=1", "deep/er/.env": "PASSWORD=2",
	})
	if got := w.get(ws); got.State != caisson.WorkspaceSettled || got.Changes != 0 {
		t.Errorf("%+v", got)
	}
	if n, u := len(w.saw("sync.applied")), len(w.saw("sync.undone")); n != 3 || u != 1 {
		t.Errorf("%d applied, %d undone", n, u)
	}
	page, _, err := w.gate.ListReceipts(w.ctx(), caisson.WorkspaceFilter{Workspace: ws.ID})
	if err != nil || len(page) != 3 || page[2].State != caisson.ReceiptUndone {
		t.Errorf("%d receipts, %v", len(page), err)
	}
	w.must(w.gate.RemoveWorkspace(w.ctx(), string(ws.ID)))
	if _, err := os.Lstat(filepath.Join(w.data, "workspaces", string(ws.ID))); !os.IsNotExist(err) {
		t.Errorf("its directory: %v", err)
	}
	_, err = w.gate.GetWorkspace(w.ctx(), string(ws.ID))
	w.wants(err, caisson.NotFound, "workspace")
}

// TestIterate: later changes are compared with the applied content, so that a file can be changed and applied
// repeatedly, on both sides.
func TestIterate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := w.tree(map[string]string{"f": "1\n2\n3\n4\n5\n6\n7\n8\n9\n", "big": strings.Repeat("x", 2<<20)})
	ws := w.lay(dir)
	for _, line := range []string{"a", "b", "c"} {
		w.edit(ws, map[string]string{"f": line + "\n2\n3\n4\n5\n6\n7\n8\n9\n", "big": strings.Repeat(line, 2<<20), "n": line})
		_, err := w.sync(ws, pick(t, w.review(ws)))
		w.must(err)
		w.wantFiles(dir, map[string]string{"f": line + "\n2\n3\n4\n5\n6\n7\n8\n9\n", "big": strings.Repeat(line, 2<<20), "n": line})
	}
	// The host's user changes another part of the file: the sandbox's file does not count as changed because of that.
	put(t, dir, map[string]string{"f": "c\n2\n3\n4\n5\n6\n7\n8\nNINE\n"})
	w.shows(ws)
	w.edit(ws, map[string]string{"f": "d\n2\n3\n4\n5\n6\n7\n8\n9\n"})
	d := w.shows(ws, "modified f")
	if c := d.Changes[0]; !c.HostChanged || !c.Merge {
		t.Errorf("%+v", c)
	}
	_, err := w.sync(ws, pick(t, d))
	w.must(err)
	w.wantFiles(dir, map[string]string{"f": "d\n2\n3\n4\n5\n6\n7\n8\nNINE\n", "big": strings.Repeat("c", 2<<20), "n": "c"})
	w.shows(ws)
}

// TestHunks applies a part of the changes in a file, and the rest later.
func TestHunks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var lines []string
	for i := range 30 {
		lines = append(lines, fmt.Sprint("line ", i))
	}
	text := func(change map[int]string) string {
		list := slices.Clone(lines)
		for i, s := range change {
			list[i] = s
		}
		return strings.Join(list, "\n") + "\n"
	}
	dir := w.tree(map[string]string{"f": text(nil), "bin": "a\x00"})
	ws := w.lay(dir)
	w.edit(ws, map[string]string{"f": text(map[int]string{1: "one", 15: "two", 28: "three"}), "bin": "b\x00", "new": "n\n"})
	d := w.shows(ws, "added new", "modified bin", "modified f")
	for _, c := range []struct {
		path  string
		hunks []int
	}{{"f", []int{3}}, {"f", []int{-1}}, {"bin", []int{0}}, {"new", []int{0}}} {
		req := pick(t, d, c.path)
		req.Apply[0].Hunks = c.hunks
		_, err := w.sync(ws, req)
		w.wants(err, caisson.Invalid, "")
	}
	req := pick(t, d, "f")
	req.Apply[0].Hunks = []int{0, 2}
	receipt, err := w.sync(ws, req)
	w.must(err)
	if receipt.Waiting != 3 || len(receipt.Entries) != 1 {
		t.Errorf("%+v", receipt)
	}
	w.wantFiles(dir, map[string]string{"f": text(map[int]string{1: "one", 28: "three"}), "bin": "a\x00"})
	d = w.shows(ws, "added new", "modified bin", "modified f")
	_, err = w.sync(ws, pick(t, d))
	w.must(err)
	w.wantFiles(dir, map[string]string{"f": text(map[int]string{1: "one", 15: "two", 28: "three"}), "bin": "b\x00", "new": "n\n"})
	w.shows(ws)
}

// TestHostMoved: changes that the host's user has made in the meantime are kept.
func TestHostMoved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := w.tree(map[string]string{"a": "a\n", "b": "b\n"})
	ws := w.lay(dir)
	w.edit(ws, map[string]string{"a": "sandbox\n", "b": "sandbox\n"})
	d := w.shows(ws, "modified a", "modified b")
	put(t, dir, map[string]string{"b": "host\n"})
	_, err := w.sync(ws, pick(t, d))
	w.wants(err, caisson.Conflict, "b")
	w.wantFiles(dir, map[string]string{"a": "a\n", "b": "host\n"}) // all or none
	d = w.shows(ws, "modified a", "modified b clash")
	_, err = w.sync(ws, pick(t, d))
	w.wants(err, caisson.Conflict, "cannot be put together")
	receipt, err := w.sync(ws, pick(t, d, "a"))
	w.must(err)
	put(t, dir, map[string]string{"a": "host again\n"})
	_, err = w.gate.Undo(w.ctx(), receipt.ID, handle(t, dir))
	w.wants(err, caisson.Conflict, "a")
	w.wantFiles(dir, map[string]string{"a": "host again\n", "b": "host\n"})
	put(t, dir, map[string]string{"a": "sandbox\n"})
	_, err = w.gate.Undo(w.ctx(), receipt.ID, handle(t, dir))
	w.must(err)
	w.wantFiles(dir, map[string]string{"a": "a\n", "b": "host\n"})
}

// TestAuto applies changes that pass automatically, repeatedly, and never those that were undone.
func TestAuto(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := w.tree(map[string]string{"a": "a\n"})
	ws := w.lay(dir, func(r *caisson.WorkspaceRequest) { r.Mode = caisson.SyncYolo })
	safe := w.lay(dir)
	w.edit(safe, map[string]string{"safe": "x"})
	w.edit(ws, map[string]string{"a": "A\n", "d/n": "n\n", ".git/hooks/post-checkout": "#!/bin/sh\n"})
	applied := func(n int) func() bool {
		return func() bool { return len(w.saw("sync.applied")) == n }
	}
	w.autoApply(applied(1))
	w.wantFiles(dir, map[string]string{"a": "A\n", "d/n": "n\n"})
	list, _, err := w.gate.ListReceipts(w.ctx(), caisson.WorkspaceFilter{})
	if err != nil || len(list) != 1 || list[0].By != "auto" || list[0].Workspace != ws.ID || list[0].Waiting == 0 {
		t.Fatalf("%+v, %v", list, err)
	}
	_, err = w.gate.Undo(w.ctx(), list[0].ID, handle(t, dir))
	w.must(err)
	w.edit(ws, map[string]string{"e": "e\n", "a": "again\n"})
	w.autoApply(applied(2))
	w.wantFiles(dir, map[string]string{"a": "a\n", "e": "e\n"})
	// After a person has applied it, it is applied automatically again.
	_, err = w.sync(ws, pick(t, w.review(ws), "a"))
	w.must(err)
	w.edit(ws, map[string]string{"a": "and again\n"})
	w.must(w.core.Layers().Detach(w.ctx(), ws.ID))
	w.wantFiles(dir, map[string]string{"a": "and again\n", "e": "e\n"})
	if got := w.get(ws); got.State != caisson.WorkspaceDetached || got.Changes == 0 {
		t.Errorf("%+v", got)
	}
}

// TestUndoneRename: a file whose rename was undone can be renamed again, but no part of that is applied automatically.
func TestUndoneRename(t *testing.T) {
	t.Parallel()
	for how, again := range map[string][][2]string{
		"further":        {{"b", "c"}},
		"back and again": {{"b", "a"}, {"a", "d/c"}},
		"onto another":   {{"b", "other"}},
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			start := map[string]string{"a": "a text that is long enough to be found again\n", "other": "o\n", "d/x": "x\n"}
			dir := w.tree(start)
			ws := w.lay(dir, func(r *caisson.WorkspaceRequest) { r.Mode = caisson.SyncYolo })
			rename := func(names [2]string) {
				w.inside(ws, func(in string) { w.must(os.Rename(filepath.Join(in, names[0]), filepath.Join(in, names[1]))) })
			}
			rename([2]string{"a", "b"})
			w.autoApply(func() bool { return len(w.saw("sync.applied")) == 1 })
			list, _, err := w.gate.ListReceipts(w.ctx(), caisson.WorkspaceFilter{})
			w.must(err)
			_, err = w.gate.Undo(w.ctx(), list[0].ID, handle(t, dir))
			w.must(err)
			w.wantFiles(dir, start)
			for _, names := range again {
				rename(names)
			}
			receipt, err := w.sync(ws, caisson.SyncRequest{Auto: true})
			w.must(err)
			if got := have(t, dir); got["a"] != start["a"] || receipt.Waiting == 0 {
				t.Errorf("after the undo %+v is applied automatically: %q", receipt.Entries, got)
			}
			_, err = w.sync(ws, pick(t, w.review(ws)))
			w.must(err)
			w.wantFiles(dir, w.sees(ws))
			w.shows(ws)
		})
	}
}

// TestAutoRequest: automatic applies on request, with patterns.
func TestAutoRequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := w.tree(nil)
	ws := w.lay(dir)
	w.edit(ws, map[string]string{"a.go": "a", "b.txt": "b", "sub/c.go": "c"})
	receipt, err := w.sync(ws, caisson.SyncRequest{Auto: true, Only: []string{"/*.go"}})
	w.must(err)
	w.wantFiles(dir, map[string]string{"a.go": "a"})
	if receipt.Waiting != 3 { // including the directory
		t.Errorf("%+v", receipt)
	}
	receipt, err = w.sync(ws, caisson.SyncRequest{Auto: true, Only: []string{"nothing"}})
	if err != nil || receipt.ID != "" || len(receipt.Entries) != 0 {
		t.Errorf("%+v, %v", receipt, err)
	}
	if _, err = w.sync(ws, caisson.SyncRequest{Auto: true, Only: []string{"[a"}}); caisson.FieldOf(err) != "only" {
		t.Error(err)
	}
	if list, err := os.ReadDir(filepath.Join(w.data, "workspaces", string(ws.ID), "frozen")); err != nil || len(list) != 0 {
		t.Errorf("%v is left of reviews, %v", list, err)
	}
}

// TestDrop drops single changes from the layer, and all of them.
func TestDrop(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	start := map[string]string{"a": "a\n", "b": "b\n", "d/e": "this is the text of e\n"}
	dir := w.tree(start)
	ws := w.lay(dir)
	w.edit(ws, map[string]string{"a": "A\n", "b": "B\n", "x/y": "y\n"})
	w.inside(ws, func(in string) { w.must(os.Rename(filepath.Join(in, "d/e"), filepath.Join(in, "d/f"))) })
	d := w.shows(ws, "added x", "added x/y", "modified a", "modified b", "renamed d/e d/f")
	w.running[ws.Sandbox] = true
	_, err := w.sync(ws, caisson.SyncRequest{Review: d.Review, Drop: []string{"a"}})
	w.wants(err, caisson.Conflict, "stop it")
	_, err = w.gate.Reset(w.ctx(), string(ws.ID))
	w.wants(err, caisson.Conflict, "stop it")
	w.running[ws.Sandbox] = false
	req := pick(t, d, "b")
	req.Drop = []string{"a", "d/f"}
	_, err = w.sync(ws, req)
	w.must(err)
	w.wantFiles(dir, map[string]string{"a": "a\n", "b": "B\n", "d/e": start["d/e"]})
	w.shows(ws, "added x", "added x/y")
	w.inside(ws, func(in string) {
		if got := have(t, in); got["a"] != "a\n" || got["d/e"] != start["d/e"] || got["x/y"] != "y\n" {
			t.Errorf("the sandbox sees %q", got)
		}
	})
	for _, name := range []string{"nope", "../upper", "x/y/../../a"} {
		_, err = w.sync(ws, caisson.SyncRequest{Review: w.review(ws).Review, Drop: []string{name}})
		w.wants(err, caisson.Conflict, "no change")
	}
	// A directory is not dropped with changes that are not named, and its permissions can be restored separately.
	d = w.review(ws)
	_, err = w.sync(ws, caisson.SyncRequest{Review: d.Review, Drop: []string{"x"}})
	w.wants(err, caisson.Conflict, "x/y")
	w.inside(ws, func(in string) {
		w.must(os.Chmod(filepath.Join(in, "d"), 0o700))
		put(t, in, map[string]string{"d/new": "n"})
	})
	d = w.shows(ws, "added d/new", "added x", "added x/y", "mode d")
	_, err = w.sync(ws, caisson.SyncRequest{Review: d.Review, Drop: []string{"d", "x/y", "x"}})
	w.must(err)
	w.shows(ws, "added d/new")
	got, err := w.gate.Reset(w.ctx(), string(ws.ID))
	if err != nil || got.Changes != 0 {
		t.Fatalf("%+v, %v", got, err)
	}
	w.shows(ws)
	_, err = w.sync(ws, req)
	w.wants(err, caisson.Conflict, "is over")
}

// TestDirect tests a workspace that is the directory itself.
func TestDirect(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := w.tree(map[string]string{"a": "a", ".env": "x"})
	ws := w.lay(dir, func(r *caisson.WorkspaceRequest) { r.Kind = caisson.WorkspaceDirect })
	if ws.Mode != caisson.SyncUnsafe || ws.Warning == "" || ws.HiddenCount != 0 {
		t.Errorf("%+v", ws)
	}
	m, err := w.core.Layers().Open(w.ctx(), ws.ID)
	w.must(err)
	m.Source.Close()
	if !m.Writable || m.Overlay != nil {
		t.Errorf("%+v", m)
	}
	_, err = w.gate.Diff(w.ctx(), string(ws.ID), caisson.DiffRequest{})
	w.wants(err, caisson.Conflict, "nothing to review")
	w.must(w.core.Layers().Detach(w.ctx(), ws.ID))
	if got := w.get(ws); got.State != caisson.WorkspaceSettled {
		t.Errorf("%+v", got)
	}
}

// TestScopes: a workspace of another account is not found.
func TestScopes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := w.tree(map[string]string{"a": "a"})
	ws := w.lay(dir)
	w.edit(ws, map[string]string{"a": "b"})
	d := w.review(ws)
	req := pick(t, d)
	other := caisson.WithCaller(t.Context(), caisson.Caller{Account: "other", Local: true})
	calls := map[string]func(ctx context.Context) error{
		"get": func(ctx context.Context) error { _, err := w.gate.GetWorkspace(ctx, string(ws.Run)); return err },
		"diff": func(ctx context.Context) error {
			_, err := w.gate.Diff(ctx, string(ws.ID), caisson.DiffRequest{})
			return err
		},
		"reset":  func(ctx context.Context) error { _, err := w.gate.Reset(ctx, string(ws.ID)); return err },
		"remove": func(ctx context.Context) error { return w.gate.RemoveWorkspace(ctx, string(ws.ID)) },
		"sync": func(ctx context.Context) error {
			req := req
			req.Directory = handle(t, dir)
			_, err := w.gate.Sync(ctx, string(ws.ID), req)
			return err
		},
		"undo": func(ctx context.Context) error { _, err := w.gate.Undo(ctx, "rc-x", handle(t, dir)); return err },
	}
	for name, call := range calls {
		w.wants(call(other), caisson.NotFound, "there is no")
		if err := call(t.Context()); caisson.KindOf(err) != caisson.Unauthed {
			t.Errorf("%s by nobody: %v", name, err)
		}
	}
	page, _, err := w.gate.ListWorkspaces(other, caisson.WorkspaceFilter{})
	if err != nil || len(page) != 0 {
		t.Errorf("%d of another account's, %v", len(page), err)
	}
	w.wantFiles(dir, map[string]string{"a": "a"})
}

// TestOpen: a directory that has been replaced is not mounted, and nothing is applied to it.
func TestOpen(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := w.tree(map[string]string{"a": "a"})
	ws := w.lay(dir)
	w.edit(ws, map[string]string{"a": "b"})
	d := w.review(ws)
	w.must(os.Rename(dir, dir+"2"))
	_, err := w.core.Layers().Open(w.ctx(), ws.ID)
	w.wants(err, caisson.Conflict, "not there any more")
	w.must(os.Mkdir(dir, 0o755))
	_, err = w.core.Layers().Open(w.ctx(), ws.ID)
	w.wants(err, caisson.Conflict, "no longer the directory")
	_, err = w.gate.Diff(w.ctx(), string(ws.ID), caisson.DiffRequest{})
	w.wants(err, caisson.Conflict, "no longer the directory")
	_, err = w.sync(ws, pick(t, d))
	w.wants(err, caisson.Conflict, "not")
	w.must(unix.Rmdir(dir))
	w.must(os.Rename(dir+"2", dir))
	w.must(os.Chown(dir, hostUID+1, hostUID+1))
	_, err = w.core.Layers().Open(w.ctx(), ws.ID)
	w.wants(err, caisson.Conflict, "another user")
	_, err = w.sync(ws, pick(t, d))
	w.wants(err, caisson.Conflict, "another user")
	w.must(os.Chown(dir, hostUID, hostUID))
	_, err = w.sync(ws, pick(t, d))
	w.must(err)
}

// TestTogether: concurrent reviews and applies, in which nothing is applied twice.
func TestTogether(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := w.tree(map[string]string{"a": "a"})
	ws := w.lay(dir)
	w.edit(ws, map[string]string{"a": "b", "n": "n"})
	d := w.review(ws)
	var wg sync.WaitGroup
	var mu sync.Mutex
	won := 0
	for range 4 {
		wg.Go(func() {
			req := pick(t, d)
			req.Directory = handle(t, dir)
			_, err := w.gate.Sync(w.ctx(), string(ws.ID), req)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				won++
			case caisson.KindOf(err) != caisson.Conflict:
				t.Error(err)
			}
		})
		wg.Go(func() {
			if _, err := w.gate.Diff(w.ctx(), string(ws.ID), caisson.DiffRequest{Freeze: true}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if won != 1 {
		t.Errorf("%d of 4 have applied", won)
	}
	w.wantFiles(dir, map[string]string{"a": "b", "n": "n"})
	// Only the newest reviews are kept.
	for range 9 {
		w.review(ws)
	}
	if list, err := os.ReadDir(filepath.Join(w.data, "workspaces", string(ws.ID), "frozen")); err != nil || len(list) != 16 {
		t.Errorf("%d files of reviews are kept, %v", len(list), err)
	}
}
