package workspaces_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/workspaces"
	"github.com/caisson-dev/caisson/internal/poll"
)

// TestLayRefuses: nothing remains of a request that is rejected.
func TestLayRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := w.tree(map[string]string{"a": "a"})
	inner := filepath.Join(w.data, "inner")
	w.must(os.Mkdir(inner, 0o755))
	gone := w.tree(nil)
	goneHandle := handle(t, gone)
	w.must(os.Remove(gone))
	type request = caisson.WorkspaceRequest
	for name, c := range map[string]struct {
		req  request
		kind caisson.Kind
		text string
	}{
		"no directory":        {request{Source: "x"}, caisson.Invalid, "unix socket"},
		"a file":              {request{Source: "x", Directory: handle(t, "/etc/passwd")}, caisson.Invalid, "not a directory"},
		"removed":             {request{Source: "x", Directory: goneHandle}, caisson.Conflict, "removed"},
		"the data directory":  {request{Source: "x", Directory: handle(t, w.data)}, caisson.Denied, "own data"},
		"what contains it":    {request{Source: "x", Directory: handle(t, filepath.Dir(w.data))}, caisson.Denied, "own data"},
		"everything":          {request{Source: "x", Directory: handle(t, "/")}, caisson.Denied, "own data"},
		"what is in it":       {request{Source: "x", Directory: handle(t, inner)}, caisson.Denied, "own data"},
		"an odd kind":         {request{Source: "x", Kind: "nfs", Directory: handle(t, dir)}, caisson.Invalid, "kind"},
		"an odd mode":         {request{Source: "x", Mode: "fast", Directory: handle(t, dir)}, caisson.Invalid, "mode"},
		"unsafe overlay":      {request{Source: "x", Kind: caisson.WorkspaceOverlay, Mode: caisson.SyncUnsafe, Directory: handle(t, dir)}, caisson.Invalid, "direct"},
		"reviewed direct":     {request{Source: "x", Kind: caisson.WorkspaceDirect, Mode: caisson.SyncYolo, Directory: handle(t, dir)}, caisson.Invalid, "direct"},
		"without a name":      {request{Directory: handle(t, dir)}, caisson.Invalid, "called"},
		"a relative target":   {request{Source: "x", Target: "w", Directory: handle(t, dir)}, caisson.Invalid, "absolute"},
		"the root as target":  {request{Source: "x", Target: "/", Directory: handle(t, dir)}, caisson.Invalid, "absolute"},
		"a target with dots":  {request{Source: "x", Target: "/a/../b", Directory: handle(t, dir)}, caisson.Invalid, "absolute"},
		"a malformed pattern": {request{Source: "x", Show: []string{"[a"}, Directory: handle(t, dir)}, caisson.Invalid, "pattern"},
	} {
		t.Run(name, func(t *testing.T) {
			w.t = t
			_, err := w.core.Layers().Create(w.ctx(), w.sandbox(), c.req)
			w.wants(err, c.kind, c.text)
		})
	}
	w.t = t
	for _, ctx := range []context.Context{w.token(), caisson.WithCaller(t.Context(), caisson.DaemonCaller("local", "test"))} {
		_, err := w.core.Layers().Create(ctx, w.sandbox(), request{Source: "x", Directory: handle(t, dir)})
		w.wants(err, caisson.Denied, "unix socket")
	}
	if list, err := os.ReadDir(filepath.Join(w.data, "workspaces")); err != nil || len(list) != 0 {
		t.Errorf("%v is left, %v", list, err)
	}
	if page, _, err := w.gate.ListWorkspaces(w.ctx(), caisson.WorkspaceFilter{}); err != nil || len(page) != 0 {
		t.Errorf("%d objects are left, %v", len(page), err)
	}
}

// TestSyncRefuses: a request that is rejected changes nothing.
func TestSyncRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	start := map[string]string{"a": "a", "d/e": "e", "d/f": "f"}
	dir := w.tree(start)
	ws := w.lay(dir)
	w.edit(ws, map[string]string{"a": "A", ".git/config": "[core]\n\thooksPath = /tmp\n", "n/o": "o", "key.pem": "x"})
	w.inside(ws, func(in string) { w.must(os.RemoveAll(filepath.Join(in, "d"))) })
	d := w.review(ws)
	other := w.tree(nil)
	byPath := map[string]caisson.Change{}
	for _, c := range d.Changes {
		byPath[c.Path] = c
	}
	one := func(path, hash string, change ...func(*caisson.SyncRequest)) caisson.SyncRequest {
		req := caisson.SyncRequest{Review: d.Review, Apply: []caisson.Selection{{Path: path, Hash: hash}}}
		for _, c := range change {
			c(&req)
		}
		return req
	}
	good := byPath["a"].Hash
	for name, c := range map[string]struct {
		req  caisson.SyncRequest
		kind caisson.Kind
		text string
	}{
		"nothing":               {caisson.SyncRequest{Review: d.Review}, caisson.Invalid, "no change"},
		"no review":             {caisson.SyncRequest{Apply: []caisson.Selection{{Path: "a", Hash: good}}}, caisson.Invalid, "review"},
		"no id of a review":     {one("a", good, func(r *caisson.SyncRequest) { r.Review = "../../x" }), caisson.Invalid, "review"},
		"another review":        {one("a", good, func(r *caisson.SyncRequest) { r.Review = caisson.NewID(caisson.ReviewPrefix) }), caisson.Conflict, "again"},
		"auto, and by name":     {one("a", good, func(r *caisson.SyncRequest) { r.Auto = true }), caisson.Invalid, "auto"},
		"another hash":          {one("a", byPath["n/o"].Hash), caisson.Conflict, "not what was reviewed"},
		"no hash":               {one("a", ""), caisson.Conflict, "not what was reviewed"},
		"no change":             {one("d/g", good), caisson.Conflict, "no change"},
		"an escape":             {one("../a", good), caisson.Conflict, "no change"},
		"denied":                {one(".git/config", byPath[".git/config"].Hash), caisson.Denied, "never applied"},
		"denied, though asked":  {one(".git/config", byPath[".git/config"].Hash, func(r *caisson.SyncRequest) { r.Confirmed = true }), caisson.Denied, "never applied"},
		"what it may not see":   {one("key.pem", byPath["key.pem"].Hash), caisson.Denied, "never applied"},
		"a directory by itself": {one("d", byPath["d"].Hash), caisson.Conflict, "all that is in it"},
		"twice":                 {one("a", good, func(r *caisson.SyncRequest) { r.Apply = append(r.Apply, r.Apply[0]) }), caisson.Invalid, "twice"},
		"applied and dropped":   {one("a", good, func(r *caisson.SyncRequest) { r.Drop = []string{"a"} }), caisson.Invalid, "drop"},
	} {
		t.Run(name, func(t *testing.T) {
			w.t = t
			_, err := w.sync(ws, c.req)
			w.wants(err, c.kind, c.text)
			w.wantFiles(dir, start)
		})
	}
	w.t = t
	_, err := w.gate.Sync(w.ctx(), string(ws.ID), one("a", good))
	w.wants(err, caisson.Invalid, "descriptor")
	_, err = w.gate.Sync(w.ctx(), string(ws.ID), one("a", good, func(r *caisson.SyncRequest) { r.Directory = handle(t, other) }))
	w.wants(err, caisson.Conflict, "name that one")
	_, err = w.gate.Sync(w.ctx(), string(ws.ID), one("a", good, func(r *caisson.SyncRequest) { r.Directory = handle(t, filepath.Join(dir, "d")) }))
	w.wants(err, caisson.Conflict, "name that one")
	work := caisson.WithCaller(t.Context(), caisson.HostCaller("local", "test"))
	for _, ctx := range []context.Context{w.token(), work} {
		_, err = w.gate.Sync(ctx, string(ws.ID), one("a", good, func(r *caisson.SyncRequest) { r.Directory = handle(t, dir) }))
		w.wants(err, caisson.Denied, "unix socket")
	}
	w.wantFiles(dir, start)
	w.wants(w.gate.RemoveWorkspace(w.ctx(), string(ws.ID)), caisson.Conflict, "remove the sandbox first")
	// And all changes together, without those that are denied.
	var all []string
	for _, c := range d.Changes {
		if c.Verdict == caisson.VerdictPass {
			all = append(all, c.Path)
		}
	}
	_, err = w.sync(ws, pick(t, d, all...))
	w.must(err)
	w.wantFiles(dir, map[string]string{"a": "A", "n/o": "o"})
}

// TestAsked: a change with the verdict ask needs the confirmation of a person.
func TestAsked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := w.tree(map[string]string{"a": "a"})
	ws := w.lay(dir, func(r *caisson.WorkspaceRequest) { r.Mode = caisson.SyncYolo })
	w.inside(ws, func(in string) { w.must(os.Chmod(filepath.Join(in, "a"), 0o755)) })
	d := w.shows(ws, "mode a ask")
	w.core.ApplyAll(t.Context())
	_, err := w.sync(ws, pick(t, d))
	w.wants(err, caisson.Denied, "confirmation")
	if fi, err := os.Stat(filepath.Join(dir, "a")); err != nil || fi.Mode().Perm() != 0o644 {
		t.Fatalf("%v, %v", fi.Mode(), err)
	}
	req := pick(t, d)
	req.Confirmed = true
	_, err = w.sync(ws, req)
	w.must(err)
	if fi, err := os.Stat(filepath.Join(dir, "a")); err != nil || fi.Mode().Perm() != 0o755 {
		t.Fatalf("%v, %v", fi.Mode(), err)
	}
}

// TestReplaced: content that the sandbox writes after the review is not applied.
func TestReplaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := w.tree(map[string]string{"a": "a"})
	ws := w.lay(dir)
	w.edit(ws, map[string]string{"a": "reviewed"})
	d := w.review(ws)
	w.inside(ws, func(in string) {
		w.must(os.Remove(filepath.Join(in, "a")))
		w.must(os.Symlink("/etc/passwd", filepath.Join(in, "a")))
	})
	_, err := w.sync(ws, pick(t, d))
	w.must(err)
	w.wantFiles(dir, map[string]string{"a": "reviewed"})
}

// TestShow: a file that the request shows explicitly is not hidden.
func TestShow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := w.tree(map[string]string{"t/a.pem": "a", "t/b.pem": "b", ".env": "c"})
	ws := w.lay(dir, func(r *caisson.WorkspaceRequest) { r.Show = []string{"a.pem"} })
	if ws.HiddenCount != 2 {
		t.Errorf("%q are hidden", ws.Hidden)
	}
	m, err := w.core.Layers().Open(w.ctx(), ws.ID)
	w.must(err)
	for _, f := range []*os.File{m.Source, m.Overlay.Upper, m.Overlay.Work, m.Overlay.Mask} {
		f.Close()
	}
	if m.Overlay.Root || len(m.Overlay.Hide) == 0 || !slices.Contains(m.Overlay.Show, "a.pem") || !slices.Contains(m.Overlay.Show, ".env.example") {
		t.Errorf("%+v", m.Overlay)
	}
	w.inside(ws, func(in string) {
		if got := have(t, in); len(got) != 1 || got["t/a.pem"] != "a" {
			t.Errorf("the sandbox sees %q", got)
		}
	})
}

// TestRootsDirectory: the host's root may use a directory that belongs to root as a workspace.
func TestRootsDirectory(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := w.tree(map[string]string{"a": "a"})
	w.own(dir, 0)
	ws := w.lay(dir)
	m, err := w.core.Layers().Open(w.ctx(), ws.ID)
	w.must(err)
	for _, f := range []*os.File{m.Source, m.Overlay.Upper, m.Overlay.Work, m.Overlay.Mask} {
		f.Close()
	}
	if !m.Overlay.Root {
		t.Error("its owner is not shown as the guest's root")
	}
	w.edit(ws, map[string]string{"a": "b"})
	_, err = w.sync(ws, pick(t, w.review(ws)))
	w.must(err)
	if got := have(t, dir); got["a"] != "b" || len(got) != 1 {
		t.Errorf("%q", got)
	}
}

// TestRetention: workspaces without waiting changes are removed after their retention time.
func TestRetention(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := w.tree(map[string]string{"a": "a"})
	live, settled, resting := w.lay(dir), w.lay(dir), w.lay(dir)
	w.edit(resting, map[string]string{"a": "b"})
	for _, ws := range []*caisson.Workspace{settled, resting} {
		w.must(w.core.Layers().Detach(w.ctx(), ws.ID))
		w.review(ws) // waits for the background work of Detach
	}
	there := func() (list []caisson.ID) {
		t.Helper()
		page, _, err := w.gate.ListWorkspaces(w.ctx(), caisson.WorkspaceFilter{})
		w.must(err)
		dirs, err := os.ReadDir(filepath.Join(w.data, "workspaces"))
		w.must(err)
		if len(dirs) != len(page) {
			t.Errorf("%d directories, %d workspaces", len(dirs), len(page))
		}
		for _, ws := range page {
			list = append(list, ws.ID)
		}
		return list
	}
	now := time.Now()
	w.core.Clean(t.Context(), now.Add(23*time.Hour))
	if got := there(); len(got) != 3 {
		t.Errorf("early, %q are there", got)
	}
	w.core.Clean(t.Context(), now.Add(25*time.Hour))
	if got := there(); len(got) != 2 || got[0] != resting.ID {
		t.Errorf("after a day %q are there", got)
	}
	poll.Until(t, patience, func() bool {
		w.core.Clean(t.Context(), now.Add(25*time.Hour)) // ignores workspaces that are in use, as the background work may be
		list, err := os.ReadDir(filepath.Join(w.data, "workspaces", string(resting.ID), "frozen"))
		return err == nil && len(list) == 0
	})
	w.core.Clean(t.Context(), now.Add(8*24*time.Hour))
	if got := there(); len(got) != 1 || got[0] != live.ID {
		t.Errorf("after a week %q are there", got)
	}
}

var _ caisson.WorkspaceLayers = (*workspaces.Layers)(nil)
