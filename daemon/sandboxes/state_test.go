package sandboxes_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/sandboxes"
)

// in creates a sandbox and brings it into a stable state.
func (w *world) in(s caisson.State) *caisson.Sandbox {
	w.t.Helper()
	l := w.Sandboxes()
	sb := w.create(caisson.CreateRequest{NoStart: s == caisson.Created})
	switch s {
	case caisson.Created, caisson.Running:
	case caisson.Paused:
		sb = got(l.Pause(w.ctx(), string(sb.ID)))(w.t)
	case caisson.Suspended:
		sb = got(l.Suspend(w.ctx(), string(sb.ID)))(w.t)
	case caisson.Stopped:
		sb = got(l.Stop(w.ctx(), string(sb.ID), 0))(w.t)
	case caisson.Failed:
		must(w.t, w.runtime.Kill(sb.ID))
		sb = w.waitState(sb.ID, caisson.Failed)
		waitFor(w.t, func() bool { return slices.Contains(w.events(string(sb.ID)), "sandbox.failed") })
	default: // a transient state lasts only in the store
		sb = got(w.store.Store.Sandboxes().Update(w.ctx(), caisson.AllAccounts(), string(sb.ID), func(x *caisson.Sandbox) error {
			x.State = s
			return nil
		}))(w.t)
	}
	w.wantState(sb.ID, s)
	return sb
}

func TestStateTable(t *testing.T) {
	t.Parallel()
	verbs := []struct {
		verb    caisson.Verb
		allowed map[caisson.State]caisson.State // allowed states → state afterwards
		do      func(context.Context, *world, string) error
	}{
		{caisson.VerbStart, map[caisson.State]caisson.State{caisson.Created: caisson.Running, caisson.Stopped: caisson.Running},
			func(ctx context.Context, w *world, ref string) error {
				_, err := w.Sandboxes().Start(ctx, ref)
				return err
			}},
		{caisson.VerbStop, map[caisson.State]caisson.State{caisson.Running: caisson.Stopped, caisson.Paused: caisson.Stopped, caisson.Suspended: caisson.Stopped},
			func(ctx context.Context, w *world, ref string) error {
				_, err := w.Sandboxes().Stop(ctx, ref, 0)
				return err
			}},
		{caisson.VerbPause, map[caisson.State]caisson.State{caisson.Running: caisson.Paused, caisson.Suspended: caisson.Paused},
			func(ctx context.Context, w *world, ref string) error {
				_, err := w.Sandboxes().Pause(ctx, ref)
				return err
			}},
		{caisson.VerbResume, map[caisson.State]caisson.State{caisson.Paused: caisson.Running},
			func(ctx context.Context, w *world, ref string) error {
				_, err := w.Sandboxes().Resume(ctx, ref)
				return err
			}},
		{caisson.VerbSuspend, map[caisson.State]caisson.State{caisson.Running: caisson.Suspended},
			func(ctx context.Context, w *world, ref string) error {
				_, err := w.Sandboxes().Suspend(ctx, ref)
				return err
			}},
		{caisson.VerbWake, map[caisson.State]caisson.State{caisson.Suspended: caisson.Running},
			func(ctx context.Context, w *world, ref string) error {
				_, err := w.Sandboxes().Wake(ctx, ref)
				return err
			}},
		{caisson.VerbSnapshot, map[caisson.State]caisson.State{caisson.Running: caisson.Running, caisson.Paused: caisson.Paused, caisson.Stopped: caisson.Stopped},
			func(ctx context.Context, w *world, ref string) error {
				_, err := w.Snapshots().Snapshot(ctx, ref, caisson.SnapshotRequest{})
				return err
			}},
		{caisson.VerbFork, map[caisson.State]caisson.State{caisson.Running: caisson.Running, caisson.Paused: caisson.Paused, caisson.Stopped: caisson.Stopped},
			func(ctx context.Context, w *world, ref string) error {
				forks, err := w.Snapshots().Fork(ctx, ref, caisson.ForkRequest{})
				for _, f := range forks {
					must(w.t, w.Sandboxes().Remove(ctx, string(f.ID)))
				}
				return err
			}},
		{caisson.VerbExec, map[caisson.State]caisson.State{caisson.Running: caisson.Running},
			func(ctx context.Context, w *world, ref string) error {
				p, err := w.Processes().Exec(ctx, ref, caisson.ExecRequest{Command: command("echo")})
				if err == nil {
					_, err = p.Wait(ctx)
					p.Close()
				}
				return err
			}},
		{caisson.VerbPrograms, map[caisson.State]caisson.State{caisson.Running: caisson.Running},
			func(ctx context.Context, w *world, ref string) error {
				_, err := w.Processes().ListProcesses(ctx, ref)
				return err
			}},
		{caisson.VerbConnect, map[caisson.State]caisson.State{caisson.Running: caisson.Running},
			func(ctx context.Context, w *world, ref string) error {
				_, err := sandboxes.NewConnections(w.Core, w.runtime).Connect(ctx, ref, caisson.ConnectRequest{Port: 80})
				if caisson.KindOf(err) == caisson.Unavailable {
					return nil // nobody listens
				}
				return err
			}},
		{caisson.VerbFiles, map[caisson.State]caisson.State{caisson.Running: caisson.Running, caisson.Paused: caisson.Paused, caisson.Stopped: caisson.Stopped},
			func(ctx context.Context, w *world, ref string) error {
				_, err := w.Files().ListFiles(ctx, ref, "/")
				return err
			}},
		{caisson.VerbStats, map[caisson.State]caisson.State{caisson.Running: caisson.Running},
			func(ctx context.Context, w *world, ref string) error {
				_, err := w.Processes().Stats(ctx, ref)
				return err
			}},
		{caisson.VerbRemove, map[caisson.State]caisson.State{
			caisson.Creating: "", caisson.Created: "", caisson.Starting: "", caisson.Running: "", caisson.Pausing: "", caisson.Paused: "",
			caisson.Resuming: "", caisson.Suspending: "", caisson.Suspended: "", caisson.Waking: "", caisson.Stopping: "", caisson.Stopped: "", caisson.Removing: "", caisson.Failed: "",
		}, func(ctx context.Context, w *world, ref string) error { return w.Sandboxes().Remove(ctx, ref) }},
	}
	for _, s := range caisson.States() {
		t.Run(string(s), func(t *testing.T) {
			w := newWorld(t)
			sb := w.in(s)
			for _, v := range verbs {
				if w.state(sb.ID) != s {
					sb = w.in(s)
				}
				ran := len(w.running())
				err := v.do(w.ctx(), w, string(sb.ID))
				if to, ok := v.allowed[s]; ok {
					if err != nil {
						t.Errorf("%s: %v", v.verb, err)
					}
					w.wantState(sb.ID, to)
					continue
				}
				wantKind(t, err, caisson.Conflict)
				if msg := caisson.MessageOf(err); !strings.HasPrefix(msg, "cannot "+string(v.verb)+" a "+string(s)+" sandbox; ") {
					t.Errorf("%s: %q does not say what is possible", v.verb, msg)
				}
				w.wantState(sb.ID, s)
				if n := len(w.running()); n != ran {
					t.Errorf("%s: %d sandboxes run, had been %d", v.verb, n, ran)
				}
			}
			w.wantState(sb.ID, "")
			boxes, _, err := w.Sandboxes().List(w.ctx(), caisson.Filter{})
			must(t, err)
			for _, b := range boxes {
				must(t, w.Sandboxes().Remove(w.ctx(), string(b.ID)))
			}
			w.holds()
		})
	}
}
