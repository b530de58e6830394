package sandboxes_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/runtime/fake"
)

// checkFrozen checks that a sandbox is frozen in the runtime.
func (w *world) checkFrozen(id caisson.ID) {
	w.t.Helper()
	if err := w.runtime.Freeze(context.Background(), id); caisson.KindOf(err) != caisson.Conflict {
		w.t.Errorf("%s is not frozen: freezing it returned %v", id, err)
	}
}

// checkThawed checks that a sandbox is not frozen in the runtime.
func (w *world) checkThawed(id caisson.ID) {
	w.t.Helper()
	if err := w.runtime.Thaw(context.Background(), id); caisson.KindOf(err) != caisson.Conflict {
		w.t.Errorf("%s is frozen: thawing it returned %v", id, err)
	}
}

func TestSuspend(t *testing.T) {
	t.Parallel()
	w := plan{wires: true}.world(t)
	sb := w.counting()
	ref := string(sb.ID)
	for range 2 { // the same again after a restart of the daemon
		before := got(w.Sandboxes().Extend(w.ctx(), ref, caisson.ExtendRequest{TTL: ptr(caisson.Duration(time.Hour))}))(t)
		n := w.counts(sb.ID, 1)
		suspended := got(w.Sandboxes().Suspend(w.ctx(), ref))(t)
		if suspended.State != caisson.Suspended || suspended.PauseAt == nil || !suspended.PauseAt.Equal(*before.PauseAt) {
			t.Errorf("suspended: %s, pause at %v, was %v", suspended.State, suspended.PauseAt, before.PauseAt)
		}
		w.checkFrozen(sb.ID)
		w.holds(sb.ID)
		for _, use := range []func() error{
			func() error { _, err := w.Processes().Stats(w.ctx(), ref); return err },
			func() error { _, err := w.Files().ListFiles(w.ctx(), ref, "/"); return err },
			func() error {
				_, err := w.Processes().Exec(w.ctx(), ref, caisson.ExecRequest{Command: command("echo")})
				return err
			},
			func() error { _, err := w.Snapshots().Fork(w.ctx(), ref, caisson.ForkRequest{}); return err },
		} {
			if err := use(); caisson.KindOf(err) != caisson.Conflict || !strings.HasSuffix(err.Error(), "; wake it first") {
				t.Errorf("used while suspended: %v", err)
			}
		}
		w.restart()
		w.wantState(sb.ID, caisson.Suspended)
		w.checkFrozen(sb.ID)
		w.holds(sb.ID) // including its wire
		if awake := got(w.Sandboxes().Wake(w.ctx(), ref))(t); awake.State != caisson.Running || !awake.PauseAt.Equal(*before.PauseAt) {
			t.Errorf("awake: %s, pause at %v, was %v", awake.State, awake.PauseAt, before.PauseAt)
		}
		w.checkThawed(sb.ID)
		w.counts(sb.ID, n+1)
	}
	if ev := w.events(ref); !slices.Contains(ev, "sandbox.suspended") {
		t.Errorf("events are %v", ev)
	}
}

// TestSuspendedChanges: operations on a suspended sandbox have the same results as on a running one.
func TestSuspendedChanges(t *testing.T) {
	t.Parallel()
	w := plan{wires: true}.world(t)
	sb := w.counting()
	ref := string(sb.ID)
	l := w.Sandboxes()
	n := w.counts(sb.ID, 5)
	got(l.Suspend(w.ctx(), ref))(t)
	got(l.Pause(w.ctx(), ref))(t)
	w.holds()
	got(l.Resume(w.ctx(), ref))(t)
	w.counts(sb.ID, n+1)
	w.checkThawed(sb.ID)
	w.write(ref, "/root/a", "kept")
	got(l.Suspend(w.ctx(), ref))(t)
	got(l.Stop(w.ctx(), ref, time.Minute))(t) // a counter exits on SIGTERM
	w.holds()
	got(l.Start(w.ctx(), ref))(t)
	if s := w.read(ref, "/root/a"); s != "kept" {
		t.Errorf("after a stop its file is %q", s)
	}
	got(l.Suspend(w.ctx(), ref))(t)
	must(t, l.Remove(w.ctx(), ref))
	w.holds()
}

func TestSuspendedDies(t *testing.T) {
	t.Parallel()
	w := plan{wires: true}.world(t)
	for _, restart := range []bool{false, true} {
		sb := w.create(caisson.CreateRequest{Command: command("sleep", "1h")})
		got(w.Sandboxes().Suspend(w.ctx(), string(sb.ID)))(t)
		if restart {
			w.restart()
		}
		must(t, w.runtime.Kill(sb.ID))
		if failed := w.waitState(sb.ID, caisson.Failed); failed.Reason == "" {
			t.Error("nobody is told why")
		}
		waitFor(t, func() bool { return slices.Contains(w.events(string(sb.ID)), "sandbox.failed") })
	}
	w.settles()
}

// TestSuspendedReachesItsTTL: the TTL continues while a sandbox is frozen.
func TestSuspendedReachesItsTTL(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	sb := w.create(caisson.CreateRequest{})
	got(w.Sandboxes().Suspend(w.ctx(), string(sb.ID)))(t)
	got(w.Sandboxes().Extend(w.ctx(), string(sb.ID), caisson.ExtendRequest{TTL: ptr(caisson.Duration(time.Millisecond))}))(t)
	if paused := w.waitState(sb.ID, caisson.Paused); !strings.Contains(paused.Reason, "ttl") {
		t.Errorf("the reason is %q", paused.Reason)
	}
}

// TestCommandEndsAfterWake: the end of a command is recorded although the sandbox was suspended in between.
func TestCommandEndsAfterWake(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	sb := w.create(caisson.CreateRequest{Command: command("sleep", "100ms")})
	got(w.Sandboxes().Suspend(w.ctx(), string(sb.ID)))(t)
	got(w.Sandboxes().Wake(w.ctx(), string(sb.ID)))(t)
	waitFor(t, func() bool { return got(w.Sandboxes().Get(w.ctx(), string(sb.ID)))(t).Exit != nil })
}

// TestFailedSuspension: after a failure, the sandbox is in its stored state, and supports all operations of that state.
func TestFailedSuspension(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		from  caisson.State
		fault fake.Op
		do    func(*world, string) error
		to    caisson.State
	}{
		{"suspend", caisson.Running, fake.OpFreeze, func(w *world, ref string) error {
			_, err := w.Sandboxes().Suspend(w.ctx(), ref)
			return err
		}, caisson.Running},
		{"wake", caisson.Suspended, fake.OpThaw, func(w *world, ref string) error {
			_, err := w.Sandboxes().Wake(w.ctx(), ref)
			return err
		}, caisson.Suspended},
		{"pause", caisson.Suspended, fake.OpCheckpoint, func(w *world, ref string) error {
			_, err := w.Sandboxes().Pause(w.ctx(), ref)
			return err
		}, caisson.Suspended},
		{"stop, before", caisson.Suspended, fake.OpThaw, func(w *world, ref string) error {
			_, err := w.Sandboxes().Stop(w.ctx(), ref, 0)
			return err
		}, caisson.Suspended},
		{"stop, after", caisson.Suspended, fake.OpSaveFiles, func(w *world, ref string) error {
			_, err := w.Sandboxes().Stop(w.ctx(), ref, 0)
			return err
		}, caisson.Running},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := plan{wires: true}.world(t)
			sb := w.in(c.from)
			w.runtime.FailNext(c.fault, errInjected)
			if err := c.do(w, string(sb.ID)); err == nil {
				t.Fatal("nothing failed")
			}
			w.wantState(sb.ID, c.to)
			if c.to == caisson.Suspended {
				w.checkFrozen(sb.ID)
				got(w.Sandboxes().Wake(w.ctx(), string(sb.ID)))(t)
			}
			w.checkThawed(sb.ID)
			got(w.Sandboxes().Suspend(w.ctx(), string(sb.ID)))(t)
			got(w.Sandboxes().Pause(w.ctx(), string(sb.ID)))(t)
		})
	}
}

// TestSuspendedAlready: freezing a frozen sandbox and thawing one that is not are no errors: an earlier change may not
// have been stored.
func TestSuspendedAlready(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	sb := w.create(caisson.CreateRequest{})
	must(t, w.runtime.Freeze(t.Context(), sb.ID))
	got(w.Sandboxes().Suspend(w.ctx(), string(sb.ID)))(t)
	must(t, w.runtime.Thaw(t.Context(), sb.ID))
	got(w.Sandboxes().Wake(w.ctx(), string(sb.ID)))(t)
	w.checkThawed(sb.ID)
}

// TestSuspendedOfAnotherBuild: a sandbox of another build is not woken, because this build does not implement its
// protocol.
func TestSuspendedOfAnotherBuild(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	sb := w.in(caisson.Suspended)
	w.config.Programs.Current = "b2"
	w.restart()
	_, err := w.Sandboxes().Wake(w.ctx(), string(sb.ID))
	wantKind(t, err, caisson.Conflict)
	got(w.Sandboxes().Stop(w.ctx(), string(sb.ID), 0))(t)
	got(w.Sandboxes().Start(w.ctx(), string(sb.ID)))(t)
}

// TestDowngrade tests that the sandboxes of a newer build, whose protocol this one does not know, are refused one by one, with what to do, and
// that others are made and used.
func TestDowngrade(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	running, paused := w.counting(), w.counting()
	got(w.Sandboxes().Pause(w.ctx(), string(paused.ID)))(t)
	w.config.Programs = caisson.Programs{Current: "b0", Newer: func(id string) bool { return id == "b1" }}
	w.restart()
	const want = "of a newer build of Caisson, whose protocol this one does not know"
	_, err := w.Sandboxes().Pause(w.ctx(), string(running.ID))
	wantKind(t, err, caisson.Conflict)
	if msg := caisson.MessageOf(err); msg != "cannot pause a sandbox that was started with programs "+want+"; stop and start it first, or use that build" {
		t.Errorf("the running one: %s", msg)
	}
	if sb := got(w.Sandboxes().Resume(w.ctx(), string(paused.ID)))(t); !strings.Contains(sb.Reason, want) || sb.Build != "b0" {
		t.Errorf("the paused one goes on without its memory: %+v", sb)
	}
	if sb := w.in(caisson.Running); sb.Build != "b0" {
		t.Errorf("a new one: %+v", sb)
	}
}

// TestStandsStillAndMayNot: a sandbox that could not be thawed after a failure is suspended, and can be woken.
func TestStandsStillAndMayNot(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fault fake.Op
		do    func(*world, string) error
	}{
		"suspend": {fake.OpFreeze, func(w *world, id string) error { return failed(w.Sandboxes().Suspend(w.ctx(), id)) }},
		"pause":   {fake.OpCheckpoint, func(w *world, id string) error { return failed(w.Sandboxes().Pause(w.ctx(), id)) }},
		"snapshot": {fake.OpCheckpoint, func(w *world, id string) error {
			return failed(w.Snapshots().Snapshot(w.ctx(), id, caisson.SnapshotRequest{}))
		}},
		"fork": {fake.OpCheckpoint, func(w *world, id string) error { return failed(w.Snapshots().Fork(w.ctx(), id, caisson.ForkRequest{})) }},
	} {
		t.Run(name, func(t *testing.T) {
			w := plan{wires: true}.world(t)
			sb := w.create(caisson.CreateRequest{})
			w.runtime.FailNext(c.fault, errInjected)
			w.runtime.FailNext(fake.OpThaw, errInjected)
			if err := c.do(w, string(sb.ID)); !errors.Is(err, errInjected) {
				t.Fatalf("error is %v", err)
			}
			w.wantState(sb.ID, caisson.Suspended)
			got(w.Sandboxes().Wake(w.ctx(), string(sb.ID)))(t)
			w.checkThawed(sb.ID)
		})
	}
}
