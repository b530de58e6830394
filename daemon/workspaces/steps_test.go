package workspaces_test

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/workspaces"
	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/internal/steptest"
	"github.com/caisson-dev/caisson/job/gate"
	"github.com/caisson-dev/caisson/job/gate/apply"
	"github.com/caisson-dev/caisson/job/gate/baseline"
	"github.com/caisson-dev/caisson/job/gate/check"
	"github.com/caisson-dev/caisson/job/gate/compare"
	"github.com/caisson-dev/caisson/job/gate/overlay"
)

// killing means that the daemon is killed just before the step, and the next one starts.
const killing steptest.Effect = "is not reached"

// steps are the calls of a core to its store and to jobs.
type steps struct {
	steptest.Injector
	next func() // starts the next daemon, for killing
}

// newSteps returns steps of which those of the store cannot lose their answer: a write succeeds or has no effect.
func newSteps() *steps {
	s := &steps{}
	s.Skips = func(op string, e steptest.Effect) bool { return e == steptest.Loses && strings.Contains(op, " ") }
	return s
}

func step[T any](s *steps, op string, do func() (T, error)) (T, error) {
	e := s.Take(op)
	if e == killing {
		s.next()
		e = steptest.Fails // the killed daemon does no more work; here it ends with an error
	}
	return steptest.Execute(e, op, do)
}

type stepTool struct {
	workspaces.Tool
	s *steps
}

func (t stepTool) Scan(ctx context.Context, root *os.File, hide, show []string, manifest *os.File) (baseline.ScanResult, error) {
	return step(t.s, "scan", func() (baseline.ScanResult, error) { return t.Tool.Scan(ctx, root, hide, show, manifest) })
}
func (t stepTool) Cover(ctx context.Context, manifest, layer *os.File) error {
	_, err := step(t.s, "cover", func() (int, error) { return 0, t.Tool.Cover(ctx, manifest, layer) })
	return err
}
func (t stepTool) Copy(ctx context.Context, root, manifest, dst *os.File, limits baseline.CopyLimits) (baseline.Copied, error) {
	return step(t.s, "copy", func() (baseline.Copied, error) { return t.Tool.Copy(ctx, root, manifest, dst, limits) })
}
func (t stepTool) Rebase(ctx context.Context, host, base *os.File, applied []baseline.Applied) error {
	_, err := step(t.s, "rebase", func() (int, error) { return 0, t.Tool.Rebase(ctx, host, base, applied) })
	return err
}
func (t stepTool) Freeze(ctx context.Context, upper, dst *os.File, limits overlay.FreezeLimits) (entries int, cut bool, err error) {
	entries, err = step(t.s, "freeze", func() (int, error) {
		n, c, err := t.Tool.Freeze(ctx, upper, dst, limits)
		cut = c
		return n, err
	})
	return entries, cut, err
}
func (t stepTool) Compare(ctx context.Context, host, manifest, base, frozen *os.File, opts compare.Options) (*compare.Result, error) {
	return step(t.s, "compare", func() (*compare.Result, error) { return t.Tool.Compare(ctx, host, manifest, base, frozen, opts) })
}
func (t stepTool) Check(ctx context.Context, host, frozen *os.File, changes []caisson.Change, rules check.Rules) error {
	_, err := step(t.s, "check", func() (int, error) { return 0, t.Tool.Check(ctx, host, frozen, changes, rules) })
	return err
}
func (t stepTool) Apply(ctx context.Context, host, saved, frozen *os.File, plan *gate.Plan) (apply.Outcome, error) {
	return step(t.s, "apply", func() (apply.Outcome, error) { return t.Tool.Apply(ctx, host, saved, frozen, plan) })
}
func (t stepTool) Recover(ctx context.Context, host, saved *os.File) (apply.Outcome, error) {
	return step(t.s, "recover", func() (apply.Outcome, error) { return t.Tool.Recover(ctx, host, saved) })
}
func (t stepTool) Undo(ctx context.Context, host, saved *os.File) (apply.Outcome, error) {
	return step(t.s, "undo", func() (apply.Outcome, error) { return t.Tool.Undo(ctx, host, saved) })
}

type stepStore struct {
	caisson.Store
	s *steps
}

func (s stepStore) Workspaces() caisson.WorkspaceStore {
	return stepWorkspaces{s.Store.Workspaces(), s.s}
}

type stepWorkspaces struct {
	caisson.WorkspaceStore
	s *steps
}

func (t stepWorkspaces) Insert(ctx context.Context, w *caisson.Workspace) error {
	_, err := step(t.s, "insert workspace", func() (int, error) { return 0, t.WorkspaceStore.Insert(ctx, w) })
	return err
}
func (t stepWorkspaces) Get(ctx context.Context, in caisson.Scope, ref string) (*caisson.Workspace, error) {
	return step(t.s, "get workspace", func() (*caisson.Workspace, error) { return t.WorkspaceStore.Get(ctx, in, ref) })
}
func (t stepWorkspaces) Update(ctx context.Context, in caisson.Scope, id caisson.ID, change func(*caisson.Workspace) error) (*caisson.Workspace, error) {
	return step(t.s, "update workspace", func() (*caisson.Workspace, error) { return t.WorkspaceStore.Update(ctx, in, id, change) })
}
func (t stepWorkspaces) InsertReceipt(ctx context.Context, r *caisson.SyncReceipt) error {
	_, err := step(t.s, "insert receipt", func() (int, error) { return 0, t.WorkspaceStore.InsertReceipt(ctx, r) })
	return err
}
func (t stepWorkspaces) GetReceipt(ctx context.Context, in caisson.Scope, id caisson.ID) (*caisson.SyncReceipt, error) {
	return step(t.s, "get receipt", func() (*caisson.SyncReceipt, error) { return t.WorkspaceStore.GetReceipt(ctx, in, id) })
}
func (t stepWorkspaces) UpdateReceipt(ctx context.Context, in caisson.Scope, id caisson.ID, change func(*caisson.SyncReceipt) error) (*caisson.SyncReceipt, error) {
	return step(t.s, "update receipt", func() (*caisson.SyncReceipt, error) { return t.WorkspaceStore.UpdateReceipt(ctx, in, id, change) })
}

// TestAnywhere: whichever step of a diff, a sync, an undo or a reset fails, the directory contains all changes or none,
// a retry applies them once, and no lock stays held. It takes a sample of steps, see [steptest.Every].
func TestAnywhere(t *testing.T) {
	t.Parallel()
	var record steptest.Record
	t.Run("step", func(t *testing.T) {
		for _, what := range []steptest.Effect{steptest.Fails, steptest.Loses, steptest.Cancelled} {
			t.Run(strings.ReplaceAll(string(what), " ", "-"), func(t *testing.T) {
				t.Parallel()
				w, s := newWorld(t), newSteps()
				w.tool, w.store = stepTool{w.tool, s}, stepStore{w.store, s}
				w.open()
				sample := steptest.Every(4, t.Name())
				at := sample.From(1)
				var ops []string
				for op := "?"; op != ""; at = sample.From(at + 1) {
					s.Arm(at, what)
					w.liveThrough(s)
					if op, ops = s.Disarm(); op != "" {
						t.Logf("step %d: %s", at, op)
					}
				}
				record.Of("life")(ops)
			})
		}
	})
	record.Check(t)
}

// TestLayAnywhere: whichever step of creating a workspace fails, the workspace is complete or does not exist. It takes
// every step.
func TestLayAnywhere(t *testing.T) {
	t.Parallel()
	var record steptest.Record
	t.Run("step", func(t *testing.T) {
		for _, what := range []steptest.Effect{steptest.Fails, steptest.Loses, steptest.Cancelled, killing} {
			t.Run(strings.ReplaceAll(string(what), " ", "-"), func(t *testing.T) {
				t.Parallel()
				w, s := newWorld(t), newSteps()
				real, store := w.tool, w.store
				dir := w.tree(map[string]string{"a": "a\n", "d/b": "b\n", ".env": "KEY=hunter2\n"})
				none := func() {
					if list, _, err := w.gate.ListWorkspaces(w.ctx(), caisson.WorkspaceFilter{}); err != nil || len(list) > 0 {
						t.Errorf("%s: left are %+v, %v", s.Hit(), list, err)
					}
					if left, err := os.ReadDir(filepath.Join(w.data, "workspaces")); err != nil || len(left) > 0 {
						t.Errorf("%s: left are the directories %v, %v", s.Hit(), left, err)
					}
				}
				for at, op := 1, "?"; op != ""; at++ {
					w.tool, w.store = stepTool{real, s}, stepStore{store, s}
					w.open()
					sb := w.sandbox()
					s.next = func() {
						w.must(store.Sandboxes().Delete(t.Context(), caisson.AllAccounts(), string(sb.ID))) // was being created, too
						w.tool, w.store = real, store
						w.open()
						w.must(w.core.Reconcile(t.Context()))
						none()
					}
					layers := w.core.Layers()
					s.Arm(at, what)
					_, err := layers.Create(s.Context(w.ctx()), sb, caisson.WorkspaceRequest{Kind: caisson.WorkspaceCopy, Source: dir, Directory: handle(t, dir)})
					var ops []string
					if op, ops = s.Disarm(); op == "" {
						w.must(err)
						record.Of("lay")(ops)
						continue
					}
					if err == nil {
						t.Errorf("%s: it was made all the same", op)
					}
					none()
				}
				// An existing workspace was stored before the daemon was killed, and is complete.
				w.tool, w.store = real, store
				w.open()
				w.must(w.core.Reconcile(t.Context()))
				list, _, err := w.gate.ListWorkspaces(w.ctx(), caisson.WorkspaceFilter{})
				w.must(err)
				if len(list) != 1 || list[0].HiddenCount != 1 {
					t.Fatalf("there are %+v", list)
				}
				w.shows(list[0])
			})
		}
	})
	record.Check(t)
}

// liveThrough is the life of a workspace during which one step may fail.
func (w *world) liveThrough(s *steps) {
	w.t.Helper()
	old, now := map[string]string{"a": "a\n", "d/b": "b\n"}, map[string]string{"a": "A\n", "d/b": "b\n", "n/c": "c\n"}
	dir := w.tree(old)
	var ws *caisson.Workspace
	s.Without(func() { // the creation of the workspace is not counted
		ws = w.lay(dir)
		w.edit(ws, map[string]string{"a": "A\n", "n/c": "c\n"})
	})
	ask := func() context.Context { return s.Context(w.ctx()) }

	var d *caisson.Diff
	diff := func() (err error) {
		d, err = w.gate.Diff(ask(), string(ws.ID), caisson.DiffRequest{Freeze: true})
		return err
	}
	sync := func() error {
		req := pick(w.t, d)
		req.Directory = handle(w.t, dir)
		_, err := w.gate.Sync(ask(), string(ws.ID), req)
		return err
	}
	if diff() != nil {
		w.whole(ws)
		w.must(diff())
	}
	if sync() != nil {
		if got := have(w.t, dir); got["a"] != "a\n" && got["a"] != "A\n" {
			w.t.Fatalf("%s: the directory has %q", s.Hit(), got)
		}
		_, _ = w.gate.Sync(w.ctx(), string(ws.ID), caisson.SyncRequest{Auto: true, Directory: handle(w.t, dir)})
	}
	w.wantFiles(dir, now)
	receipts, _, err := w.gate.ListReceipts(w.ctx(), caisson.WorkspaceFilter{Workspace: ws.ID})
	w.must(err)
	if len(receipts) != 1 || w.told(ws, "sync.applied") != 1 {
		w.t.Fatalf("%s: %d receipts, %d events", s.Hit(), len(receipts), w.told(ws, "sync.applied"))
	}
	w.must(w.store.Sandboxes().Delete(w.ctx(), caisson.AllAccounts(), string(ws.Sandbox)))
	if w.core.Layers().Detach(ask(), ws.ID) != nil {
		w.must(w.core.Layers().Detach(w.ctx(), ws.ID))
	}
	w.whole(ws)

	undo := func() error {
		_, err := w.gate.Undo(ask(), receipts[0].ID, handle(w.t, dir))
		return err
	}
	if undo() != nil {
		if err := undo(); err != nil {
			w.wants(err, caisson.Conflict, "undone already")
		}
	}
	w.wantFiles(dir, old)
	s.Without(func() {
		if got := w.get(ws); got.State != caisson.WorkspaceDetached || w.told(ws, "sync.undone") != 1 {
			w.t.Fatalf("%s: after an undo it is %s, %d events", s.Hit(), got.State, w.told(ws, "sync.undone"))
		}
		w.shows(ws, "added n", "added n/c", "modified a")
	})

	reset := func() error {
		_, err := w.gate.Reset(ask(), string(ws.ID))
		return err
	}
	if reset() != nil {
		w.must(reset())
	}
	s.Without(func() { w.shows(ws) })
	w.whole(ws)
	if left, err := os.ReadDir(filepath.Join(w.data, "workspaces", string(ws.ID), "saved")); err != nil || len(left) > 0 {
		w.t.Errorf("%s: what was saved is left: %v, %v", s.Hit(), left, err)
	}
	for _, fd := range descriptors(w.t) {
		name, _ := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
		if strings.HasPrefix(name, dir) || strings.Contains(name, string(ws.ID)) {
			w.t.Errorf("%s: %s is open", s.Hit(), name)
		}
	}
}

// told returns the number of events of a type about a workspace.
func (w *world) told(ws *caisson.Workspace, kind string) (n int) {
	for _, e := range w.saw(kind) {
		if e.Subject == string(ws.ID) {
			n++
		}
	}
	return n
}

// whole waits until no workspace is in use, and only kept reviews exist.
func (w *world) whole(ws *caisson.Workspace) {
	w.t.Helper()
	poll.Until(w.t, patience, func() bool {
		list, err := os.ReadDir(filepath.Join(w.data, "workspaces", string(ws.ID), "frozen"))
		w.must(err)
		kept := 0
		for _, e := range list {
			if strings.HasSuffix(e.Name(), ".json") {
				kept++
			}
		}
		return len(list) == 2*kept && w.core.Busy() == 0
	})
}
