package workspaces_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/internal/steptest"
	"github.com/caisson-dev/caisson/job/worker"
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
	e := s.TakeStep(op)
	if e == killing {
		s.next()
		e = steptest.Fails // the killed daemon does no more work; here it ends with an error
	}
	return steptest.Execute(e, op, do)
}

// counted are the jobs that are steps. The others run in the background.
var counted = []string{
	"gate.scan", "gate.cover", "gate.copy", "gate.rebase", "gate.freeze", "gate.compare", "gate.check", "gate.apply", "gate.recover", "gate.undo",
}

// stepJobs returns a starter of jobs whose starts are steps. If the step of a write fails, the job that recovers from it fails,
// too.
func stepJobs(jobs worker.Starter, s *steps) worker.Starter {
	unknown := false // whether a write has failed; its recovery follows it in the same goroutine
	return starter(func(ctx context.Context, req worker.Request, reply any) error {
		if req.Job == "gate.recover" && unknown {
			unknown = false
			return caisson.Errorf(caisson.Internal, "the recovery went wrong")
		}
		if !slices.Contains(counted, req.Job) {
			return jobs.Run(ctx, req, reply)
		}
		var own error // of the job itself
		_, err := step(s, strings.TrimPrefix(req.Job, "gate."), func() (int, error) {
			own = jobs.Run(ctx, req, reply)
			return 0, own
		})
		if req.Job == "gate.apply" || req.Job == "gate.undo" {
			unknown = err != nil && own == nil
		}
		return err
	})
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
				w.jobs, w.store = stepJobs(w.jobs, s), stepStore{w.store, s}
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
				record.Recorder("life")(ops)
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
				real, store := w.jobs, w.store
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
					w.jobs, w.store = stepJobs(real, s), stepStore{store, s}
					w.open()
					sb := w.sandbox()
					s.next = func() {
						w.must(store.Sandboxes().Delete(t.Context(), caisson.AllAccounts(), string(sb.ID))) // was being created, too
						w.jobs, w.store = real, store
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
						record.Recorder("lay")(ops)
						continue
					}
					if err == nil {
						t.Errorf("%s: it was made all the same", op)
					}
					none()
				}
				// An existing workspace was stored before the daemon was killed, and is complete.
				w.jobs, w.store = real, store
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
	s.RunUncounted(func() { // the creation of the workspace is not counted
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
	s.RunUncounted(func() {
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
	s.RunUncounted(func() { w.shows(ws) })
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
