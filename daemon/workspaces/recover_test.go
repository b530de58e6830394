package workspaces_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/workspaces"
	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/job/gate"
	"github.com/caisson-dev/caisson/job/gate/apply"
	"github.com/caisson-dev/caisson/job/gate/baseline"
	"github.com/caisson-dev/caisson/job/gate/overlay"
)

// dying is a tool whose daemon is killed during a write: before the job, after it, or at an unknown point.
type dying struct {
	workspaces.Tool
	before, after bool
}

func (d *dying) died() error { return caisson.Errorf(caisson.Internal, "the daemon has died") }

func (d *dying) Apply(ctx context.Context, host, saved, frozen *os.File, plan *gate.Plan) (apply.Outcome, error) {
	if d.before {
		return apply.Outcome{}, d.died()
	}
	out, err := d.Tool.Apply(ctx, host, saved, frozen, plan)
	if d.after {
		return apply.Outcome{}, d.died()
	}
	return out, err
}

func (d *dying) Undo(ctx context.Context, host, saved *os.File) (apply.Outcome, error) {
	if d.before {
		return apply.Outcome{}, d.died()
	}
	out, err := d.Tool.Undo(ctx, host, saved)
	if d.after {
		return apply.Outcome{}, d.died()
	}
	return out, err
}

// TestReconcile: after a crash, a sync is either complete or rolled back, as the store reports.
func TestReconcile(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		tool dying
		want string
	}{"before": {dying{before: true}, "a"}, "after": {dying{after: true}, "b"}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			real := w.tool
			tool := c.tool
			tool.Tool = real
			w.tool = &tool
			w.open()
			dir := w.tree(map[string]string{"f": "a"})
			ws := w.lay(dir)
			w.edit(ws, map[string]string{"f": "b"})
			_, err := w.sync(ws, pick(t, w.review(ws)))
			w.wants(err, caisson.Internal, "died")
			w.must(w.core.Close())

			w.tool = real
			w.open()
			w.must(w.core.Reconcile(t.Context()))
			w.wantFiles(dir, map[string]string{"f": c.want})
			list, _, err := w.gate.ListReceipts(w.ctx(), caisson.WorkspaceFilter{})
			w.must(err)
			if c.want == "a" {
				if len(list) != 0 {
					t.Fatalf("%d receipts of nothing", len(list))
				}
				w.shows(ws, "modified f")
				return
			}
			if len(list) != 1 || list[0].By != "local" || len(list[0].Entries) != 1 {
				t.Fatalf("%+v", list)
			}
			w.shows(ws)
			w.must(w.core.Reconcile(t.Context()))
			if n := len(w.saw("sync.applied")); n != 1 {
				t.Errorf("%d events", n)
			}

			// The same for the undo.
			tool.Tool = real
			w.must(w.core.Close())
			w.tool = &tool
			w.open()
			_, err = w.gate.Undo(w.ctx(), list[0].ID, handle(t, dir))
			w.wants(err, caisson.Internal, "died")
			w.must(w.core.Close())
			w.tool = real
			w.open()
			// Without a restart, the next operation does it.
			_, err = w.gate.Undo(w.ctx(), list[0].ID, handle(t, dir))
			w.wants(err, caisson.Conflict, "undone already")
			w.wantFiles(dir, map[string]string{"f": "a"})
			w.shows(ws, "modified f")
		})
	}
}

// TestReconcileUndoNotBegun: an undo that has not begun can be requested again.
func TestReconcileUndoNotBegun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	real := w.tool
	dir := w.tree(map[string]string{"f": "a"})
	ws := w.lay(dir)
	w.edit(ws, map[string]string{"f": "b"})
	receipt, err := w.sync(ws, pick(t, w.review(ws)))
	w.must(err)
	w.edit(ws, map[string]string{"g": "new"})
	w.must(w.store.Sandboxes().Delete(t.Context(), caisson.AllAccounts(), string(ws.Sandbox)))
	w.must(w.core.Layers().Detach(w.ctx(), ws.ID))
	w.shows(ws, "added g")
	w.tool = &dying{Tool: real, before: true}
	w.open()
	_, err = w.gate.Undo(w.ctx(), receipt.ID, handle(t, dir))
	w.wants(err, caisson.Internal, "died")
	w.tool = real
	w.open()
	w.must(w.core.Reconcile(t.Context()))
	w.wantFiles(dir, map[string]string{"f": "b"})
	if got := w.get(ws); got.State != caisson.WorkspaceDetached || got.Changes != 1 { // otherwise it would be removed too early
		t.Errorf("with a change that waits it is %s, with %d changes", got.State, got.Changes)
	}
	_, err = w.gate.Undo(w.ctx(), receipt.ID, handle(t, dir))
	w.must(err)
	w.wantFiles(dir, map[string]string{"f": "a"})
}

// TestReconcileRemains: objects that belong to no workspace are removed, and a workspace whose sandbox was removed is
// detached.
func TestReconcileRemains(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := w.tree(map[string]string{"f": "a"})
	lone, lost, stays := w.lay(dir), w.lay(dir), w.lay(dir)
	w.edit(lone, map[string]string{"f": "b"})
	w.must(w.store.Sandboxes().Delete(t.Context(), caisson.AllAccounts(), string(lone.Sandbox)))
	w.must(os.RemoveAll(filepath.Join(w.data, "workspaces", string(lost.ID))))
	stray := filepath.Join(w.data, "workspaces", "ws-aaaaaaaaaaaaaaaa")
	w.must(os.MkdirAll(filepath.Join(stray, "layers/upper"), 0o700))
	w.must(w.core.Close())
	w.open()
	w.must(w.core.Reconcile(t.Context()))
	if _, err := os.Lstat(stray); !os.IsNotExist(err) {
		t.Errorf("a directory of nobody: %v", err)
	}
	_, err := w.gate.GetWorkspace(w.ctx(), string(lost.ID))
	w.wants(err, caisson.NotFound, "no workspace")
	poll.Until(t, patience, func() bool { return w.get(lone).Changes == 1 })
	if got := w.get(lone); got.State != caisson.WorkspaceDetached {
		t.Errorf("%+v", got)
	}
	if got := w.get(stays); got.State != caisson.WorkspaceLive {
		t.Errorf("%+v", got)
	}
}

// TestCapture captures the content of the layer.
func TestCapture(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ws := w.lay(w.tree(map[string]string{"f": "a"}))
	w.edit(ws, map[string]string{"f": "b", "n": "n"})
	to := filepath.Join(t.TempDir(), "capture")
	w.must(w.core.Layers().Capture(w.ctx(), ws.ID, to))
	dir := handle(t, to)
	defer dir.Close()
	frozen, err := overlay.OpenFrozen(dir)
	w.must(err)
	defer frozen.Close()
	if n := len(frozen.Entries()); n != 2 {
		t.Errorf("%d entries", n)
	}
	if err := w.core.Layers().Capture(w.ctx(), ws.ID, to); err == nil {
		t.Error("a directory that is there was written to")
	}
}

// baseless is a tool whose daemon is killed before the base for merges is saved.
type baseless struct{ workspaces.Tool }

func (b baseless) Base(context.Context, *os.File, *os.File, *os.File, baseline.Limits) error {
	return caisson.Errorf(caisson.Internal, "the daemon has died")
}

// TestNoBase: a workspace without a base for merges can be reviewed nevertheless.
func TestNoBase(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tool = baseless{w.tool}
	w.open()
	dir := w.tree(map[string]string{"f": "a"})
	ws := w.lay(dir)
	w.edit(ws, map[string]string{"f": "b"})
	_, err := w.sync(ws, pick(t, w.shows(ws, "modified f")))
	w.must(err)
	w.wantFiles(dir, map[string]string{"f": "b"})
}
