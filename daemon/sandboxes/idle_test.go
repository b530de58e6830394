package sandboxes_test

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/sandboxes"
	"github.com/caisson-dev/caisson/runtime/fake"
)

const (
	soon  = caisson.Duration(50 * time.Millisecond)
	later = caisson.Duration(time.Hour)
)

// extend changes limits of a sandbox.
func (w *world) extend(id caisson.ID, req caisson.ExtendRequest) *caisson.Sandbox {
	w.t.Helper()
	return got(w.Sandboxes().Extend(w.ctx(), string(id), req))(w.t)
}

// kinds returns how often an event was published about a sandbox.
func (w *world) kinds(id caisson.ID, kind string) (n int) {
	w.t.Helper()
	for _, e := range w.events(string(id)) {
		if e == kind {
			n++
		}
	}
	return n
}

// gone waits until a sandbox is removed.
func (w *world) gone(id caisson.ID) {
	w.t.Helper()
	waitFor(w.t, func() bool { return slices.Contains(w.events(string(id)), "sandbox.removed") })
}

func TestAutoPause(t *testing.T) {
	t.Parallel()
	t.Run("all steps", func(t *testing.T) {
		t.Parallel()
		w := plan{wires: true}.world(t)
		sb := w.counting()
		w.extend(sb.ID, caisson.ExtendRequest{AutoPause: &caisson.AutoPause{Suspend: soon, Pause: later, Stop: later}})
		suspended := w.waitState(sb.ID, caisson.Suspended)
		if suspended.IdleSince == nil || suspended.Reason != "not used for 50ms" {
			t.Errorf("idle since %v, reason %q", suspended.IdleSince, suspended.Reason)
		}
		w.extend(sb.ID, caisson.ExtendRequest{AutoPause: &caisson.AutoPause{Suspend: soon, Pause: 2 * soon, Stop: later}})
		paused := w.waitState(sb.ID, caisson.Paused)
		if paused.IdleSince == nil || !paused.IdleSince.Equal(*suspended.IdleSince) {
			t.Errorf("idle since %v, was %v", paused.IdleSince, suspended.IdleSince)
		}
		w.holds()
		if got(w.Idle(w.ctx()))(t) {
			t.Error("the daemon is not needed for a sandbox that is to be stopped")
		}
		w.extend(sb.ID, caisson.ExtendRequest{AutoPause: &caisson.AutoPause{Stop: 3 * soon}})
		stopped := w.waitState(sb.ID, caisson.Stopped)
		if stopped.IdleSince != nil || !strings.Contains(stopped.Reason, "not used") {
			t.Errorf("idle since %v, reason %q", stopped.IdleSince, stopped.Reason)
		}
		if !got(w.Idle(w.ctx()))(t) {
			t.Error("the daemon is needed for a stopped sandbox")
		}
		w.extend(sb.ID, caisson.ExtendRequest{AutoPause: &caisson.AutoPause{}})
		if sb := got(w.Sandboxes().Start(w.ctx(), string(sb.ID)))(t); sb.Reason != "" || sb.IdleSince != nil {
			t.Errorf("started: %q, %v", sb.Reason, sb.IdleSince)
		}
	})
	// A step that is not set is left out, and the furthest step that is due is done.
	for name, c := range map[string]struct {
		pause caisson.AutoPause
		want  caisson.State
	}{
		"stop":       {caisson.AutoPause{Stop: soon}, caisson.Stopped},
		"pause":      {caisson.AutoPause{Pause: soon, Stop: later}, caisson.Paused},
		"equal":      {caisson.AutoPause{Suspend: soon, Pause: soon, Stop: soon}, caisson.Stopped},
		"no memory":  {caisson.AutoPause{Suspend: soon, Stop: soon}, caisson.Stopped},
		"pause only": {caisson.AutoPause{Pause: soon}, caisson.Paused},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			sb := w.create(caisson.CreateRequest{AutoPause: &c.pause})
			w.waitState(sb.ID, c.want)
			if c.pause.Stop == soon && w.kinds(sb.ID, "sandbox.suspended")+w.kinds(sb.ID, "sandbox.paused") > 0 {
				t.Errorf("events %v", w.events(string(sb.ID)))
			}
		})
	}
}

func TestAutoPauseForm(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	sb := w.create(caisson.CreateRequest{})
	for _, p := range []caisson.AutoPause{{Suspend: -1}, {Stop: -1}, {Suspend: 2, Pause: 1}, {Pause: 2, Stop: 1}, {Suspend: 2, Stop: 1}} {
		_, err := w.Sandboxes().Create(w.ctx(), caisson.CreateRequest{AutoPause: &p})
		wantKind(t, err, caisson.Invalid)
		_, err = w.Sandboxes().Extend(w.ctx(), string(sb.ID), caisson.ExtendRequest{AutoPause: &p})
		wantKind(t, err, caisson.Invalid)
		_, err = w.Snapshots().Fork(w.ctx(), string(sb.ID), caisson.ForkRequest{AutoPause: &p})
		wantKind(t, err, caisson.Invalid)
		_, err = w.Templates().PutTemplate(w.ctx(), caisson.Template{Name: "tpl", Image: "host", AutoPause: p})
		wantKind(t, err, caisson.Invalid)
	}
	if got(w.Sandboxes().Get(w.ctx(), string(sb.ID)))(t).Spec.AutoPause != (caisson.AutoPause{}) {
		t.Error("a sandbox is suspended, paused or stopped although nobody asked for it")
	}
}

// TestAutoPauseInherited: a sandbox has the times of its template, snapshot or origin, unless its request has others.
func TestAutoPauseInherited(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	has := caisson.AutoPause{Suspend: later, Pause: 2 * later}
	got(w.Templates().PutTemplate(w.ctx(), caisson.Template{Name: "tpl", Image: "host", AutoPause: has, FinalSnapshot: true}))(t)
	sb := w.create(caisson.CreateRequest{Template: "tpl"})
	snap := got(w.Snapshots().Snapshot(w.ctx(), string(sb.ID), caisson.SnapshotRequest{}))(t)
	fork := func(req caisson.ForkRequest) *caisson.Sandbox {
		return got(w.Snapshots().Fork(w.ctx(), string(snap.ID), req))(t)[0]
	}
	for name, s := range map[string]*caisson.Sandbox{
		"template": sb, "snapshot": w.create(caisson.CreateRequest{Snapshot: snap.ID}), "fork": fork(caisson.ForkRequest{}),
	} {
		if s.Spec.AutoPause != has || !s.Spec.FinalSnapshot {
			t.Errorf("%s: %+v, %v", name, s.Spec.AutoPause, s.Spec.FinalSnapshot)
		}
	}
	for name, s := range map[string]*caisson.Sandbox{
		"template": w.create(caisson.CreateRequest{Template: "tpl", AutoPause: &caisson.AutoPause{}, FinalSnapshot: ptr(false)}),
		"snapshot": w.create(caisson.CreateRequest{Snapshot: snap.ID, AutoPause: &caisson.AutoPause{}, FinalSnapshot: ptr(false)}),
		"fork":     fork(caisson.ForkRequest{AutoPause: &caisson.AutoPause{}, FinalSnapshot: ptr(false)}),
	} {
		if s.Spec.AutoPause != (caisson.AutoPause{}) || s.Spec.FinalSnapshot {
			t.Errorf("%s without: %+v, %v", name, s.Spec.AutoPause, s.Spec.FinalSnapshot)
		}
	}
}

// TestUse: a sandbox that is used in any way from outside is left alone until the use ends.
func TestUse(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(w *world, id caisson.ID) (end func()){
		"exec": func(w *world, id caisson.ID) func() {
			p := got(w.Processes().Exec(w.ctx(), string(id), caisson.ExecRequest{Command: command("sleep", "1h")}))(w.t)
			return func() { must(w.t, p.Close()) }
		},
		"terminal": func(w *world, id caisson.ID) func() {
			s := sandboxes.NewTerminals(w.Core, w.runtime)
			made := got(s.CreateTerminal(w.ctx(), string(id), caisson.TerminalRequest{Command: command("sleep", "1h")}))(w.t)
			p := got(s.AttachTerminal(w.ctx(), string(id), made.ID, caisson.AttachRequest{}))(w.t)
			return func() { must(w.t, p.Close()) }
		},
		"connection": func(w *world, id caisson.ID) func() {
			c := got(sandboxes.NewConnections(w.Core, pairDialer{}).Connect(w.ctx(), string(id), caisson.ConnectRequest{Port: 80}))(w.t)
			return func() { must(w.t, c.Close()) }
		},
		"files": func(w *world, id caisson.ID) func() {
			w.write(string(id), "/f", "x")
			r := got(w.Files().ReadFile(w.ctx(), string(id), "/f", 0, 0))(w.t)
			return func() { must(w.t, r.Close()) }
		},
		"run": func(w *world, id caisson.ID) func() {
			got(w.Assign(w.ctx(), id, &caisson.Assignment{Run: "rn-aaaaaaaaaaaaaaaa", Attempt: 1}))(w.t)
			return func() { got(w.Assign(w.ctx(), id, nil))(w.t) }
		},
		"requests": func(w *world, id caisson.ID) func() {
			w.RecordRequests(id, true)
			return func() { w.RecordRequests(id, false) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			sb := w.create(caisson.CreateRequest{})
			end := begin(w, sb.ID)
			w.extend(sb.ID, caisson.ExtendRequest{AutoPause: &caisson.AutoPause{Suspend: 1}})
			must(t, w.Expire(w.ctx(), sb.ID))
			w.wantState(sb.ID, caisson.Running)
			end()
			w.waitState(sb.ID, caisson.Suspended)
		})
	}
}

// TestNoUse: what the sandbox's own programs do, and looks at it, do not keep it awake.
func TestNoUse(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	sb := w.counting()
	id := string(sb.ID)
	got(w.Processes().Exec(w.ctx(), id, caisson.ExecRequest{Command: command("sleep", "1h"), Detach: true}))(t)
	logs := got(w.Processes().Logs(w.ctx(), id, true))(t)
	defer logs.Close()
	w.extend(sb.ID, caisson.ExtendRequest{AutoPause: &caisson.AutoPause{Suspend: 1}})
	w.waitState(sb.ID, caisson.Suspended)
}

// TestUseBegins: a use that begins while a sandbox is being suspended either is refused, or keeps the sandbox awake.
func TestUseBegins(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var calls []func()
	w.config.Network.Disconnect = func(context.Context, caisson.ID) error {
		if len(calls) > 0 {
			calls[0]()
			calls = calls[1:]
		}
		return nil
	}
	w.restart()
	sb := w.create(caisson.CreateRequest{AutoPause: &caisson.AutoPause{Suspend: later}})
	id := string(sb.ID)
	calls = []func(){
		func() { w.RecordRequests(sb.ID, true) },
		func() {
			_, err := w.Processes().Exec(w.ctx(), id, caisson.ExecRequest{Command: command("sleep", "1h")})
			wantKind(t, err, caisson.Conflict)
			_, err = sandboxes.NewConnections(w.Core, pairDialer{}).Connect(w.ctx(), id, caisson.ConnectRequest{Port: 80})
			wantKind(t, err, caisson.Conflict)
		},
	}
	w.extend(sb.ID, caisson.ExtendRequest{AutoPause: &caisson.AutoPause{Suspend: 1}})
	waitFor(t, func() bool { return w.kinds(sb.ID, "sandbox.running") == 2 })
	w.wantState(sb.ID, caisson.Running)
	w.RecordRequests(sb.ID, false)
	w.waitState(sb.ID, caisson.Suspended)
	if len(calls) > 0 {
		t.Errorf("%d calls are left", len(calls))
	}
}

// TestAutoPauseRestart: the time of the last use of a sandbox that is at rest survives the daemon; one that runs is counted from the
// daemon's start.
func TestAutoPauseRestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	at := func() *caisson.Sandbox {
		return w.create(caisson.CreateRequest{AutoPause: &caisson.AutoPause{Suspend: later, Pause: 2 * later, Stop: 3 * later}})
	}
	runs, suspended, paused := at(), at(), at()
	got(w.Sandboxes().Suspend(w.ctx(), string(suspended.ID)))(t)
	got(w.Sandboxes().Pause(w.ctx(), string(paused.ID)))(t)
	must(t, w.Close())
	for _, id := range []caisson.ID{runs.ID, suspended.ID, paused.ID} {
		got(w.store.Store.Sandboxes().Update(context.Background(), caisson.AllAccounts(), string(id), func(s *caisson.Sandbox) error {
			if (s.IdleSince == nil) != (s.State == caisson.Running) {
				t.Errorf("%s: idle since %v", s.State, s.IdleSince)
			}
			s.IdleSince = ptr(time.Now().Add(-150 * time.Minute))
			if s.State == caisson.Paused {
				s.IdleSince = ptr(time.Now().Add(-200 * time.Minute))
			} else if s.State == caisson.Running {
				s.IdleSince, s.ChangedAt = nil, time.Now().Add(-200*time.Minute)
			}
			return nil
		}))(t)
	}
	w.restart()
	w.waitState(suspended.ID, caisson.Paused)
	w.waitState(paused.ID, caisson.Stopped)
	must(t, w.Expire(w.ctx(), runs.ID))
	w.wantState(runs.ID, caisson.Running)
}

// TestAutoPauseOtherBuild: what another build started can only be stopped; nothing else is tried.
func TestAutoPauseOtherBuild(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	sb := w.create(caisson.CreateRequest{})
	w.config.Programs.Current = "b2"
	w.restart()
	w.extend(sb.ID, caisson.ExtendRequest{AutoPause: &caisson.AutoPause{Suspend: 1, Pause: 1, Stop: later}})
	must(t, w.Expire(w.ctx(), sb.ID))
	w.wantState(sb.ID, caisson.Running)
	w.extend(sb.ID, caisson.ExtendRequest{AutoPause: &caisson.AutoPause{Stop: 1}})
	w.waitState(sb.ID, caisson.Stopped)
}

// TestAutoPauseFails: a step that fails, or whose outcome cannot be stored, is tried again.
func TestAutoPauseFails(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(w *world){
		"freeze": func(w *world) { w.runtime.FailNext(fake.OpFreeze, errInjected) },
		"note":   func(w *world) { w.store.failOn("update", 2) }, // the first one is that of Extend
		"result": func(w *world) { w.store.failOn("update", 3) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.RetryDue(time.Millisecond)
			sb := w.create(caisson.CreateRequest{})
			spoil(w)
			w.extend(sb.ID, caisson.ExtendRequest{AutoPause: &caisson.AutoPause{Suspend: 1}})
			w.waitState(sb.ID, caisson.Suspended)
			waitFor(t, func() bool { return strings.Contains(w.logs.String(), "tried again") })
			got(w.Sandboxes().Wake(w.ctx(), string(sb.ID)))(t)
		})
	}
}

// TestAutoPauseCounts: waking and resuming count as uses, and so does a claim from a pool, in which nothing is counted.
func TestAutoPauseCounts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	sb := w.create(caisson.CreateRequest{AutoPause: &caisson.AutoPause{Suspend: later}})
	id := string(sb.ID)
	got(w.Sandboxes().Suspend(w.ctx(), id))(t)
	w.extend(sb.ID, caisson.ExtendRequest{AutoPause: &caisson.AutoPause{Suspend: soon}})
	got(w.Sandboxes().Wake(w.ctx(), id))(t)
	w.waitState(sb.ID, caisson.Suspended)
	w.extend(sb.ID, caisson.ExtendRequest{AutoPause: &caisson.AutoPause{}})
	if woken := got(w.Sandboxes().Wake(w.ctx(), id))(t); woken.Reason != "" || woken.IdleSince != nil {
		t.Errorf("woken: reason %q, idle since %v", woken.Reason, woken.IdleSince)
	}

	got(w.Templates().PutTemplate(w.ctx(), caisson.Template{
		Name: "tpl", Image: "host", Pool: 1, AutoPause: caisson.AutoPause{Suspend: soon},
	}))(t)
	var pooled *caisson.Sandbox
	waitFor(t, func() bool {
		list, _, err := w.Sandboxes().List(w.ctx(), caisson.Filter{})
		must(t, err)
		i := slices.IndexFunc(list, func(s *caisson.Sandbox) bool { return s.Pooled && s.State == caisson.Running })
		if i >= 0 {
			pooled = list[i]
		}
		return i >= 0 && time.Since(pooled.ChangedAt) > time.Duration(soon)
	})
	must(t, w.Expire(w.ctx(), pooled.ID))
	w.wantState(pooled.ID, caisson.Running)
	if sb := w.create(caisson.CreateRequest{Template: "tpl"}); sb.ID != pooled.ID {
		t.Errorf("claimed %s, want %s", sb.ID, pooled.ID)
	}
	w.waitState(pooled.ID, caisson.Suspended)
}

func TestWakeAt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := func(d time.Duration) caisson.ExtendRequest {
		return caisson.ExtendRequest{WakeAt: ptr(time.Now().Add(d))}
	}
	awake := func(id caisson.ID) func() bool {
		return func() bool {
			sb := got(w.Sandboxes().Get(w.ctx(), string(id)))(t)
			return sb.State == caisson.Running && sb.WakeAt == nil
		}
	}
	for _, rest := range []func(context.Context, string) (*caisson.Sandbox, error){w.Sandboxes().Suspend, w.Sandboxes().Pause} {
		sb := w.create(caisson.CreateRequest{})
		w.extend(sb.ID, in(time.Hour))
		if sb := got(rest(w.ctx(), string(sb.ID)))(t); sb.WakeAt == nil {
			t.Fatalf("%s: the time is gone", sb.State)
		}
		w.extend(sb.ID, in(20*time.Millisecond))
		waitFor(t, awake(sb.ID))

		// While no daemon runs; and a failure is repeated.
		got(rest(w.ctx(), string(sb.ID)))(t)
		w.extend(sb.ID, in(time.Hour))
		if got(w.Idle(w.ctx()))(t) {
			t.Error("the daemon is not needed to wake a sandbox")
		}
		must(t, w.Close())
		got(w.store.Store.Sandboxes().Update(context.Background(), caisson.AllAccounts(), string(sb.ID), func(s *caisson.Sandbox) error {
			s.WakeAt = ptr(time.Now())
			return nil
		}))(t)
		w.restart()
		waitFor(t, awake(sb.ID))
		got(w.Sandboxes().Stop(w.ctx(), string(sb.ID), 0))(t)
	}

	sb := w.create(caisson.CreateRequest{})
	w.RetryDue(time.Millisecond)
	got(w.Sandboxes().Suspend(w.ctx(), string(sb.ID)))(t)
	w.runtime.FailNext(fake.OpThaw, errInjected)
	w.extend(sb.ID, in(0))
	waitFor(t, awake(sb.ID))
	w.extend(sb.ID, in(0)) // of one that runs: nothing but the time passes
	waitFor(t, awake(sb.ID))

	// A sandbox that is to be woken is not stopped, because then it could not be.
	w.extend(sb.ID, caisson.ExtendRequest{AutoPause: &caisson.AutoPause{Pause: 1, Stop: 1}, WakeAt: ptr(time.Now().Add(time.Hour))})
	w.waitState(sb.ID, caisson.Paused)
	must(t, w.Expire(w.ctx(), sb.ID))
	w.wantState(sb.ID, caisson.Paused)
	if sb := w.extend(sb.ID, caisson.ExtendRequest{WakeAt: &time.Time{}}); sb.WakeAt != nil {
		t.Errorf("never is %v", sb.WakeAt)
	}
	w.waitState(sb.ID, caisson.Stopped)
	_, err := w.Sandboxes().Extend(w.ctx(), string(sb.ID), in(0))
	wantKind(t, err, caisson.Conflict)
}

// TestExpiring: the end of each TTL is announced once, also if the daemon restarts, and again after it was extended.
func TestExpiring(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	sb := w.create(caisson.CreateRequest{})
	limits := func() (list []string) {
		for _, e := range w.record(string(sb.ID)) {
			if e.Type == "sandbox.expiring" {
				at := got(time.Parse(time.RFC3339Nano, e.Data["at"]))(t)
				if d := at.Sub(e.At); d < 0 || d > time.Minute {
					t.Errorf("announced %v before", d)
				}
				list = append(list, e.Data["limit"])
			}
		}
		return list
	}
	// The limits end within a minute, but not in this test.
	due := func() {
		got(w.store.Store.Sandboxes().Update(w.ctx(), caisson.AllAccounts(), string(sb.ID), func(s *caisson.Sandbox) error {
			s.PauseAt, s.RemoveAt = ptr(time.Now().Add(50*time.Second)), ptr(time.Now().Add(55*time.Second))
			return nil
		}))(t)
		w.restart()
	}
	w.extend(sb.ID, caisson.ExtendRequest{TTL: ptr(later), HardTTL: ptr(2 * later)})
	must(t, w.Expire(w.ctx(), sb.ID))
	if l := limits(); len(l) > 0 {
		t.Errorf("announced at once: %v", l)
	}
	due()
	waitFor(t, func() bool { return len(limits()) == 2 })
	w.restart()
	must(t, w.Expire(w.ctx(), sb.ID))
	if l := limits(); !slices.Equal(l, []string{"hardTtl", "ttl"}) {
		t.Errorf("announced: %v", l)
	}
	w.extend(sb.ID, caisson.ExtendRequest{TTL: ptr(later), HardTTL: ptr(2 * later)})
	due()
	waitFor(t, func() bool { return len(limits()) == 4 })

	// A tenth of a short one before; at its end, if that time passed meanwhile.
	for _, ttl := range []time.Duration{500 * time.Millisecond, 1} {
		short := w.create(caisson.CreateRequest{HardTTL: ptr(caisson.Duration(ttl))})
		w.gone(short.ID)
		if e := w.events(string(short.ID)); !slices.Contains(e, "sandbox.expiring") || slices.Index(e, "sandbox.expiring") > slices.Index(e, "sandbox.removed") {
			t.Errorf("events with a TTL of %v: %v", ttl, e)
		}
	}
}

// TestFinalSnapshot: a sandbox that its hard TTL removes is kept as a snapshot if that is wanted, in whichever state it is.
func TestFinalSnapshot(t *testing.T) {
	t.Parallel()
	over := caisson.ExtendRequest{HardTTL: ptr(caisson.Duration(time.Millisecond))}
	type act = func(w *world, ref string) (*caisson.Sandbox, error)
	for name, c := range map[string]struct {
		act    act
		memory bool
	}{
		"running":   {func(w *world, ref string) (*caisson.Sandbox, error) { return nil, nil }, true},
		"suspended": {func(w *world, ref string) (*caisson.Sandbox, error) { return w.Sandboxes().Suspend(w.ctx(), ref) }, true},
		"paused":    {func(w *world, ref string) (*caisson.Sandbox, error) { return w.Sandboxes().Pause(w.ctx(), ref) }, true},
		"stopped":   {func(w *world, ref string) (*caisson.Sandbox, error) { return w.Sandboxes().Stop(w.ctx(), ref, 0) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			sb := w.create(caisson.CreateRequest{FinalSnapshot: ptr(true), Labels: map[string]string{"a": "b"}})
			id := string(sb.ID)
			w.write(id, "/f", "kept")
			got(c.act(w, id))(t)
			w.extend(sb.ID, over)
			w.gone(sb.ID)
			snap := got(w.Snapshots().GetSnapshot(w.ctx(), id+"-final"))(t)
			if snap.Memory != c.memory || snap.Labels["a"] != "b" || snap.Labels["caisson/final"] == "" || snap.Sandbox != sb.ID {
				t.Errorf("snapshot %+v", snap)
			}
			i := slices.IndexFunc(w.record(id), func(e caisson.Event) bool { return e.Type == "sandbox.kept" })
			if i < 0 || w.record(id)[i].Data["snapshot"] != string(snap.ID) {
				t.Errorf("events %v", w.events(id))
			}
			again := w.create(caisson.CreateRequest{Snapshot: snap.ID, HardTTL: ptr(later)})
			if s := w.read(string(again.ID), "/f"); s != "kept" {
				t.Errorf("the file is %q", s)
			}
		})
	}
	t.Run("removed by hand", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		sb := w.create(caisson.CreateRequest{FinalSnapshot: ptr(true)})
		must(t, w.Sandboxes().Remove(w.ctx(), string(sb.ID)))
		w.holds()
	})
	t.Run("never ran", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		sb := w.create(caisson.CreateRequest{FinalSnapshot: ptr(true), NoStart: true})
		w.extend(sb.ID, over)
		w.gone(sb.ID)
		w.holds()
	})
	t.Run("tried again", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.RetryDue(time.Millisecond)
		sb := w.create(caisson.CreateRequest{FinalSnapshot: ptr(true)})
		w.runtime.FailNext(fake.OpCheckpoint, errInjected)
		w.runtime.FailNext(fake.OpDestroy, errInjected) // of the removal, after the snapshot
		w.extend(sb.ID, over)
		w.gone(sb.ID)
		got(w.Snapshots().GetSnapshot(w.ctx(), string(sb.ID)+"-final"))(t)
		if n := w.kinds(sb.ID, "sandbox.kept"); n != 1 {
			t.Errorf("kept %d times", n)
		}
	})
	t.Run("given up", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.KeepFor(0)
		sb := w.create(caisson.CreateRequest{FinalSnapshot: ptr(true)})
		w.runtime.FailNext(fake.OpCheckpoint, errInjected)
		w.extend(sb.ID, over)
		w.gone(sb.ID)
		if !strings.Contains(w.logs.String(), "without its final snapshot") {
			t.Error("nobody is told")
		}
		w.holds()
	})
}

// pairDialer connects to nobody.
type pairDialer struct{}

func (pairDialer) Dial(context.Context, caisson.ID, string, string) (*os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fds[0]), "connection"), unix.Close(fds[1])
}
