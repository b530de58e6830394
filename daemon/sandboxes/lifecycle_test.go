package sandboxes_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/runtime/fake"
)

func TestStopKeepsFiles(t *testing.T) {
	t.Parallel()
	w := plan{wires: true}.world(t)
	id := w.create(caisson.CreateRequest{Name: "keeper"}).ID
	w.write("keeper", "/root/a", "one")
	l := w.Sandboxes()
	for _, content := range []string{"one", "two", "three"} {
		w.write("keeper", "/root/a", content)
		sb := got(l.Stop(w.ctx(), "keeper", 0))(t)
		if sb.PauseAt != nil || !w.has(id, "files.tar") {
			t.Errorf("stopped: pauseAt %v, files %v", sb.PauseAt, w.has(id, "files.tar"))
		}
		w.holds()
		got(l.Start(w.ctx(), "keeper"))(t)
		w.holds(id)
		if w.has(id, "files.tar") {
			t.Error("files.tar is kept while the sandbox runs, and is older than its files")
		}
		if s := w.read("keeper", "/root/a"); s != content {
			t.Errorf("after stop and start /root/a is %q, want %q", s, content)
		}
	}
}

// TestStandInIsNotWrittenTo: files are written after the paused sandbox was read and resumed.
func TestStandInIsNotWrittenTo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := string(w.create(caisson.CreateRequest{}).ID)
	w.write(id, "/root/a", "before")
	l := w.Sandboxes()
	got(l.Pause(w.ctx(), id))(t)
	if s := w.read(id, "/root/a"); s != "before" {
		t.Fatalf("paused: %q", s)
	}
	got(l.Resume(w.ctx(), id))(t)
	w.write(id, "/root/a", "after")
	w.holds(caisson.ID(id))
	got(l.Stop(w.ctx(), id, 0))(t)
	if s := w.read(id, "/root/a"); s != "after" {
		t.Errorf("stopped: %q", s)
	}
	got(l.Start(w.ctx(), id))(t)
	if s := w.read(id, "/root/a"); s != "after" {
		t.Errorf("started again: %q", s)
	}
}

func TestPauseKeepsMemory(t *testing.T) {
	t.Parallel()
	w := plan{wires: true}.world(t)
	sb := w.counting()
	n := w.counts(sb.ID, 5)
	l := w.Sandboxes()
	paused := got(l.Pause(w.ctx(), string(sb.ID)))(t)
	if paused.State != caisson.Paused || !w.has(sb.ID, "pause/memory.json") {
		t.Errorf("state %s, memory on disk %v", paused.State, w.has(sb.ID, "pause/memory.json"))
	}
	w.holds()
	w.restart()
	resumed := got(w.Sandboxes().Resume(w.ctx(), string(sb.ID)))(t)
	if resumed.Reason != "" {
		t.Errorf("reason %q", resumed.Reason)
	}
	w.write(string(sb.ID), "/count", "") // the counter is in memory
	if m := w.counts(sb.ID, 1); m < n {
		t.Errorf("the counter is at %d, and was at %d before the pause", m, n)
	}
	if w.has(sb.ID, "pause") {
		t.Error("the pause is still on disk")
	}
	w.holds(sb.ID)
	want := []string{"sandbox.running", "sandbox.paused", "sandbox.running"}
	if types := w.events(string(sb.ID)); !slices.Equal(types, want) {
		t.Errorf("events %v, want %v", types, want)
	}
}

func TestPauseTwiceHasNewFiles(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := string(w.create(caisson.CreateRequest{}).ID)
	for _, content := range []string{"1", "2", "3"} {
		w.write(id, "/root/a", content)
		got(w.Sandboxes().Pause(w.ctx(), id))(t)
		got(w.Sandboxes().Resume(w.ctx(), id))(t)
		if s := w.read(id, "/root/a"); s != content {
			t.Errorf("got %q, want %q", s, content)
		}
	}
	got(w.Sandboxes().Pause(w.ctx(), id))(t)
	got(w.Sandboxes().Stop(w.ctx(), id, 0))(t)
	got(w.Sandboxes().Start(w.ctx(), id))(t)
	if s := w.read(id, "/root/a"); s != "3" {
		t.Errorf("stopped while paused, then started: %q, want 3", s)
	}
}

// TestFailedChange: changes during which the runtime, the wire or the store returns an error.
func TestFailedChange(t *testing.T) {
	t.Parallel()
	change := map[caisson.Verb]func(caisson.Sandboxes, context.Context, string) (*caisson.Sandbox, error){
		caisson.VerbStart:  caisson.Sandboxes.Start,
		caisson.VerbPause:  caisson.Sandboxes.Pause,
		caisson.VerbResume: caisson.Sandboxes.Resume,
		caisson.VerbStop: func(s caisson.Sandboxes, ctx context.Context, ref string) (*caisson.Sandbox, error) {
			return s.Stop(ctx, ref, 0)
		},
	}
	for _, c := range []struct {
		name    string
		from    caisson.State
		verb    caisson.Verb
		spoil   func(w *world)
		becomes caisson.State
	}{
		{"checkpoint", caisson.Running, caisson.VerbPause, func(w *world) { w.runtime.FailNext(fake.OpCheckpoint, errInjected) }, caisson.Running},
		{"restore", caisson.Paused, caisson.VerbResume, func(w *world) { w.runtime.FailNext(fake.OpRestore, errInjected) }, caisson.Paused},
		{"probe", caisson.Paused, caisson.VerbResume, func(w *world) { w.runtime.FailNext(fake.OpExec, errInjected) }, caisson.Paused},
		{"wire at resume", caisson.Paused, caisson.VerbResume, func(w *world) { w.wires.failNext(errInjected) }, caisson.Paused},
		{"create", caisson.Stopped, caisson.VerbStart, func(w *world) { w.runtime.FailNext(fake.OpCreate, errInjected) }, caisson.Stopped},
		{"first create", caisson.Created, caisson.VerbStart, func(w *world) { w.runtime.FailNext(fake.OpCreate, errInjected) }, caisson.Created},
		{"wire at start", caisson.Stopped, caisson.VerbStart, func(w *world) { w.wires.failNext(errInjected) }, caisson.Stopped},
		{"save", caisson.Running, caisson.VerbStop, func(w *world) { w.runtime.FailNext(fake.OpSaveFiles, errInjected) }, caisson.Running},
		{"destroy at stop", caisson.Running, caisson.VerbStop, func(w *world) { w.runtime.FailNext(fake.OpDestroy, errInjected) }, caisson.Running},
		{"intent", caisson.Running, caisson.VerbPause, func(w *world) { w.store.failOn("update", 1) }, caisson.Running},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := plan{wires: true}.world(t)
			sb := w.in(c.from)
			c.spoil(w)
			if _, err := change[c.verb](w.Sandboxes(), w.ctx(), string(sb.ID)); !errors.Is(err, errInjected) {
				t.Fatalf("error is %v", err)
			}
			w.wantState(sb.ID, c.becomes)
			if c.becomes == caisson.Running {
				w.write(string(sb.ID), "/root/a", "still works")
				if out, status := w.run(string(sb.ID), caisson.ExecRequest{Command: command("echo", "hi")}); out != "hi\n" || !status.Success() {
					t.Errorf("exec says %q, %v", out, status)
				}
				w.holds(sb.ID)
			} else {
				w.holds()
			}
			if c.name == "intent" {
				return
			}
			last := w.record(string(sb.ID))
			if e := last[len(last)-1]; e.Type != "sandbox."+string(c.becomes) || e.Data["failed"] != string(c.verb) {
				t.Errorf("last event is %+v", e)
			}
			got(change[c.verb](w.Sandboxes(), w.ctx(), string(sb.ID)))(t) // the second time it succeeds
		})
	}
}

func TestResumeWithFilesOnly(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		change func(w *world)
		reason string
	}{
		{"build", func(w *world) { w.config.Programs.Current = "b2" }, "another build"},
		{"processor", func(w *world) { w.runtime.cpu = "-new" }, "another kind of processor"},
		{"host files", func(w *world) { w.images.Upgrade() }, "files of its image have changed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			sb := w.counting()
			w.write(string(sb.ID), "/root/a", "kept")
			n := w.counts(sb.ID, 60) // more than a new one reaches during the test
			got(w.Sandboxes().Pause(w.ctx(), string(sb.ID)))(t)
			c.change(w)
			w.restart()
			resumed := got(w.Sandboxes().Resume(w.ctx(), string(sb.ID)))(t)
			if !strings.Contains(resumed.Reason, c.reason) || !strings.Contains(resumed.Reason, "files only") {
				t.Errorf("reason %q", resumed.Reason)
			}
			if s := w.read(string(sb.ID), "/root/a"); s != "kept" {
				t.Errorf("file is %q", s)
			}
			w.write(string(sb.ID), "/count", "")
			if m := w.counts(sb.ID, 1); m >= n {
				t.Errorf("the counter is at %d: that is memory", m)
			}
			events := w.record(string(sb.ID))
			if e := events[len(events)-1]; e.Type != "sandbox.running" || e.Data["reason"] != resumed.Reason {
				t.Errorf("event %+v", e)
			}
			got(w.Sandboxes().Pause(w.ctx(), string(sb.ID)))(t)
			if again := got(w.Sandboxes().Resume(w.ctx(), string(sb.ID)))(t); again.Reason != "" {
				t.Errorf("the second resume has the reason %q", again.Reason)
			}
		})
	}
}

// TestUpgradeWhileRunning: a checkpoint depends on what the sandbox was started with, not on the state of the host when
// it is made.
func TestUpgradeWhileRunning(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	sb := w.create(caisson.CreateRequest{})
	w.images.Upgrade()
	got(w.Sandboxes().Pause(w.ctx(), string(sb.ID)))(t)
	if sb := got(w.Sandboxes().Resume(w.ctx(), string(sb.ID)))(t); !strings.Contains(sb.Reason, "files only") {
		t.Errorf("reason %q", sb.Reason)
	}
}

func TestStopGrace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	sb := w.create(caisson.CreateRequest{Command: command("ignore-term")})
	id := string(sb.ID)
	poll.Until(t, removeWait, func() bool { return strings.Contains(w.log(id), "ready") })
	ctx, cancel := context.WithCancel(w.ctx())
	defer cancel()
	done := make(chan error)
	go func() { _, err := w.Sandboxes().Stop(ctx, id, time.Hour); done <- err }()
	poll.Until(t, removeWait, func() bool { return strings.Contains(w.log(id), "ignored") })
	if _, err := w.Sandboxes().Pause(w.ctx(), id); caisson.KindOf(err) != caisson.Conflict {
		t.Errorf("a change during a change: %v", err)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	w.wantState(sb.ID, caisson.Running)
	if list := got(w.Processes().ListProcesses(w.ctx(), id))(t); len(list) != 2 {
		t.Errorf("a stop that was given up has ended something: %v", list)
	}
	got(w.Sandboxes().Stop(w.ctx(), id, time.Millisecond))(t)
	w.holds()
}

func TestRemoveWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	sb := w.create(caisson.CreateRequest{Command: command("ignore-term")})
	poll.Until(t, removeWait, func() bool { return strings.Contains(w.log(string(sb.ID)), "ready") })
	stopped, removed := make(chan error, 1), make(chan error, 1)
	go func() { _, err := w.Sandboxes().Stop(w.ctx(), string(sb.ID), 700*time.Millisecond); stopped <- err }()
	w.waitState(sb.ID, caisson.Stopping)
	go func() { removed <- w.Sandboxes().Remove(w.ctx(), string(sb.ID)) }()
	must(t, <-removed)
	must(t, <-stopped)
	if e := w.events(string(sb.ID)); !slices.Contains(e, "sandbox.stopped") || slices.Index(e, "sandbox.stopped") > slices.Index(e, "sandbox.removed") {
		t.Errorf("removed before the stop had ended: %v", e)
	}
	w.holds()
	wantKind(t, w.Sandboxes().Remove(w.ctx(), string(sb.ID)), caisson.NotFound)
}

func TestRemoveFailsAndIsRepeated(t *testing.T) {
	t.Parallel()
	w := plan{wires: true}.world(t)
	sb := w.create(caisson.CreateRequest{})
	w.runtime.FailNext(fake.OpDestroy, errInjected)
	if err := w.Sandboxes().Remove(w.ctx(), string(sb.ID)); !errors.Is(err, errInjected) {
		t.Errorf("error is %v", err)
	}
	w.wantState(sb.ID, caisson.Removing)
	must(t, w.Sandboxes().Remove(w.ctx(), string(sb.ID)))
	w.holds()
}

func TestRacingChanges(t *testing.T) {
	t.Parallel()
	w := plan{wires: true}.world(t)
	for range 5 {
		sb := w.counting()
		id := string(sb.ID)
		l := w.Sandboxes()
		do := []func() error{
			func() error { _, err := l.Start(w.ctx(), id); return err },
			func() error { _, err := l.Stop(w.ctx(), id, 0); return err },
			func() error { _, err := l.Pause(w.ctx(), id); return err },
			func() error { _, err := l.Resume(w.ctx(), id); return err },
			func() error { _, err := w.Files().StatFile(w.ctx(), id, "/count"); return err },
		}
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				for j := range 4 {
					err := do[(i+j)%len(do)]()
					switch caisson.KindOf(err) {
					case caisson.Conflict, caisson.NotFound, caisson.Unavailable:
					default:
						if err != nil {
							t.Errorf("unexpected: %v", err)
						}
					}
				}
				if i == 19 {
					if err := l.Remove(w.ctx(), id); err != nil {
						t.Errorf("remove: %v", err)
					}
				}
			})
		}
		wg.Wait()
		w.wantState(sb.ID, "")
	}
	w.settles() // stand-ins that were in use end by themselves
}

// TestRacingWithoutRemoval: the runtime and the disk are consistent with the state in which the race ends.
func TestRacingWithoutRemoval(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	sb := w.create(caisson.CreateRequest{})
	id, l := string(sb.ID), w.Sandboxes()
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			for j := range 5 {
				switch (i + j) % 4 {
				case 0:
					_, _ = l.Start(w.ctx(), id)
				case 1:
					_, _ = l.Stop(w.ctx(), id, 0)
				case 2:
					_, _ = l.Pause(w.ctx(), id)
				case 3:
					_, _ = l.Resume(w.ctx(), id)
				}
			}
		})
	}
	wg.Wait()
	s := w.state(sb.ID)
	if s.Transient() || s == caisson.Failed {
		t.Fatalf("ended as %s", s)
	}
	if s == caisson.Running {
		w.holds(sb.ID)
	} else {
		w.holds()
	}
	if w.has(sb.ID, "pause") != (s == caisson.Paused) || w.has(sb.ID, "files.tar") != (s == caisson.Stopped) {
		t.Errorf("%s: pause %v, files %v", s, w.has(sb.ID, "pause"), w.has(sb.ID, "files.tar"))
	}
}

// TestFailedExpiryIsRepeated: a sandbox whose hard TTL has passed is removed in the end, whichever step of its removal
// fails.
func TestFailedExpiryIsRepeated(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(w *world){
		"destroy": func(w *world) { w.runtime.FailNext(fake.OpDestroy, errInjected) },
		"note":    func(w *world) { w.store.failOn("update", 2) }, // the first one is the deadline's
		"delete":  func(w *world) { w.store.failOn("delete", 1) },
	} {
		t.Run(name, func(t *testing.T) {
			w := plan{wires: true}.world(t)
			w.RetryDue(time.Millisecond)
			sb := w.create(caisson.CreateRequest{})
			spoil(w)
			must(t, failed(w.Sandboxes().Extend(w.ctx(), string(sb.ID), caisson.ExtendRequest{HardTTL: ptr(caisson.Duration(time.Millisecond))})))
			waitFor(t, func() bool { return w.state(sb.ID) == "" })
			w.settles()
		})
	}
}
