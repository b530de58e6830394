package workspaces_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/job/gate/overlay"
	"github.com/caisson-dev/caisson/job/worker"
)

// dying returns a starter of jobs whose daemon is killed during a write: before the job, or after it. No job recovers from that.
func dying(jobs worker.Starter, after bool) worker.Starter {
	return starter(func(ctx context.Context, req worker.Request, reply any) error {
		writes := req.Job == "gate.apply" || req.Job == "gate.undo"
		if !writes && req.Job != "gate.recover" {
			return jobs.Run(ctx, req, reply)
		}
		if writes && after {
			jobs.Run(ctx, req, reply)
		}
		return caisson.Errorf(caisson.Internal, "the daemon has died")
	})
}

// unknown is part of the error of a write whose daemon was killed.
const unknown = "it is not known whether the changes were applied"

// TestReconcile: after a crash, a sync is either complete or rolled back, as the store reports.
func TestReconcile(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		after bool
		want  string
	}{"before": {false, "a"}, "after": {true, "b"}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			real := w.jobs
			w.jobs = dying(real, c.after)
			w.open()
			dir := w.tree(map[string]string{"f": "a"})
			ws := w.lay(dir)
			w.edit(ws, map[string]string{"f": "b"})
			_, err := w.sync(ws, pick(t, w.review(ws)))
			w.wants(err, caisson.Internal, unknown)
			w.must(w.core.Close())

			w.jobs = real
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
			w.must(w.core.Close())
			w.jobs = dying(real, c.after)
			w.open()
			_, err = w.gate.Undo(w.ctx(), list[0].ID, handle(t, dir))
			w.wants(err, caisson.Internal, unknown)
			w.must(w.core.Close())
			w.jobs = real
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
	real := w.jobs
	dir := w.tree(map[string]string{"f": "a"})
	ws := w.lay(dir)
	w.edit(ws, map[string]string{"f": "b"})
	receipt, err := w.sync(ws, pick(t, w.review(ws)))
	w.must(err)
	w.edit(ws, map[string]string{"g": "new"})
	w.must(w.store.Sandboxes().Delete(t.Context(), caisson.AllAccounts(), string(ws.Sandbox)))
	w.must(w.core.Layers().Detach(w.ctx(), ws.ID))
	w.shows(ws, "added g")
	w.jobs = dying(real, false)
	w.open()
	_, err = w.gate.Undo(w.ctx(), receipt.ID, handle(t, dir))
	w.wants(err, caisson.Internal, unknown)
	w.jobs = real
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

// TestNoBase: a workspace whose daemon is killed before the base for merges is saved can be reviewed nevertheless.
func TestNoBase(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	real := w.jobs
	w.jobs = starter(func(ctx context.Context, req worker.Request, reply any) error {
		if req.Job == "gate.base" {
			return caisson.Errorf(caisson.Internal, "the daemon has died")
		}
		return real.Run(ctx, req, reply)
	})
	w.open()
	dir := w.tree(map[string]string{"f": "a"})
	ws := w.lay(dir)
	w.edit(ws, map[string]string{"f": "b"})
	_, err := w.sync(ws, pick(t, w.shows(ws, "modified f")))
	w.must(err)
	w.wantFiles(dir, map[string]string{"f": "b"})
}
