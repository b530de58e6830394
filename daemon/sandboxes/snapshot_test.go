package sandboxes_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/runtime/fake"
)

// TestForkRandomness: each of several sandboxes with the same memory draws different random numbers unless the request
// disables this, and reports the programs that may not. A sandbox that is woken is not changed.
func TestForkRandomness(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.runtime.shared = []string{"bun", "java"}
	sb := w.create(caisson.CreateRequest{})
	snap := got(w.Snapshots().Snapshot(w.ctx(), string(sb.ID), caisson.SnapshotRequest{}))(t)
	want := func(what string, sb *caisson.Sandbox, randomness string, shared ...string) {
		t.Helper()
		if r := w.runtime.restored(sb.ID); r.Randomness != randomness || r.ContinueClock || !slices.Equal(sb.SharedRandomness, shared) {
			t.Errorf("%s was restored with randomness %q, still clock %v; it names %q", what, r.Randomness, r.ContinueClock, sb.SharedRandomness)
		}
	}
	fork := func(ref caisson.ID, req caisson.ForkRequest) *caisson.Sandbox {
		return got(w.Snapshots().Fork(w.ctx(), string(ref), req))(t)[0]
	}
	f := fork(snap.ID, caisson.ForkRequest{})
	want("a fork", f, "openssl", "bun", "java")
	if e := w.record(string(f.ID)); len(e) != 1 || e[0].Data["sharedRandomness"] != "bun, java" {
		t.Errorf("events %+v", e)
	}
	want("a fork of a sandbox", fork(sb.ID, caisson.ForkRequest{}), "openssl", "bun", "java")
	want("a fork that keeps it", fork(snap.ID, caisson.ForkRequest{KeepRandomness: true}), "", "bun", "java")
	want("a sandbox from a snapshot", w.create(caisson.CreateRequest{Snapshot: snap.ID}), "openssl", "bun", "java")
	want("a sandbox from a snapshot that keeps it", w.create(caisson.CreateRequest{Snapshot: snap.ID, KeepRandomness: true}), "", "bun", "java")
	_, err := w.Sandboxes().Create(w.ctx(), caisson.CreateRequest{KeepRandomness: true})
	wantKind(t, err, caisson.Invalid)

	got(w.Sandboxes().Pause(w.ctx(), string(f.ID)))(t)
	want("a fork that is woken", got(w.Sandboxes().Resume(w.ctx(), string(f.ID)))(t), "", "bun", "java")
	got(w.Sandboxes().Pause(w.ctx(), string(sb.ID)))(t)
	want("what is woken", got(w.Sandboxes().Resume(w.ctx(), string(sb.ID)))(t), "")
	got(w.Sandboxes().Stop(w.ctx(), string(f.ID), 0))(t)
	if f := got(w.Sandboxes().Start(w.ctx(), string(f.ID)))(t); f.SharedRandomness != nil {
		t.Errorf("a fork that begins anew names %q", f.SharedRandomness)
	}
	files := got(w.Snapshots().Snapshot(w.ctx(), string(sb.ID), caisson.SnapshotRequest{FilesOnly: true}))(t)
	if f := fork(files.ID, caisson.ForkRequest{}); f.SharedRandomness != nil {
		t.Errorf("a fork without memory names %q", f.SharedRandomness)
	}
}

func TestForks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		state  caisson.State
		direct bool // fork the sandbox itself, not a snapshot of it
		files  bool // without memory
	}{
		{"snapshot of running", caisson.Running, false, false},
		{"snapshot of paused", caisson.Paused, false, false},
		{"snapshot of stopped", caisson.Stopped, false, true},
		{"files of running", caisson.Running, false, true},
		{"files of paused", caisson.Paused, false, true},
		{"running", caisson.Running, true, false},
		{"paused", caisson.Paused, true, false},
		{"stopped", caisson.Stopped, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := plan{wires: true}.world(t)
			parent := w.create(caisson.CreateRequest{Name: "parent", Command: command("counter", "/count")})
			least := 10
			if c.files {
				least = 60 // more than a new one reaches during the test
			}
			n := w.counts(parent.ID, least)
			w.write("parent", "/root/a", "parent's")
			switch c.state {
			case caisson.Paused:
				got(w.Sandboxes().Pause(w.ctx(), "parent"))(t)
			case caisson.Stopped:
				got(w.Sandboxes().Stop(w.ctx(), "parent", 0))(t)
			}
			from := parent.ID
			if !c.direct {
				snap := got(w.Snapshots().Snapshot(w.ctx(), "parent", caisson.SnapshotRequest{
					Name: "snap", FilesOnly: c.files && c.state != caisson.Stopped, Labels: map[string]string{"a": "b"},
				}))(t)
				if snap.Memory == c.files || snap.Size == 0 || snap.Depends.Build != "b1" || snap.Depends.Rootfs != parent.Spec.Digest || snap.Sandbox != parent.ID {
					t.Errorf("snapshot is %+v", snap)
				}
				from = snap.ID
			}
			w.wantState(parent.ID, c.state)
			forks := got(w.Snapshots().Fork(w.ctx(), string(from), caisson.ForkRequest{Count: 3, Name: "fork", Labels: map[string]string{"x": "y"}}))(t)
			if !c.direct {
				must(t, w.Snapshots().RemoveSnapshot(w.ctx(), "snap")) // the forks no longer need it
			}
			seen := map[string]bool{}
			running := []caisson.ID{}
			if c.state == caisson.Running {
				running = append(running, parent.ID)
			}
			for i, f := range forks {
				running = append(running, f.ID)
				id := string(f.ID)
				if f.Name != fmt.Sprintf("fork-%d", i+1) || f.Parent != from || f.Labels["x"] != "y" || f.State != caisson.Running {
					t.Errorf("fork is %+v", f)
				}
				for _, file := range []string{"/etc/machine-id", "/etc/hostname", "/proc/sys/kernel/hostname"} {
					s := w.read(id, file)
					if strings.TrimSpace(s) == "" || seen[file+s] {
						t.Errorf("%s of a fork is %q, which another has too", file, s)
					}
					if seen[file+s] = true; strings.HasSuffix(file, "hostname") && strings.TrimSpace(s) != id {
						t.Errorf("%s is %q in %s", file, s, id)
					}
				}
				if !strings.Contains(w.read(id, "/etc/hosts"), id) {
					t.Errorf("/etc/hosts does not name %s", id)
				}
				if s := w.read(id, "/root/a"); s != "parent's" {
					t.Errorf("file in the fork: %q", s)
				}
				w.write(id, "/count", "") // no digit, which a concurrent write could prepend to its number
				if m := w.counts(f.ID, 1); c.files != (m < n) {
					t.Errorf("the fork's counter is at %d, its parent's was at %d; the fork says %q", m, n, f.Reason)
				}
				w.write(id, "/root/a", "the fork's")
			}
			w.holds(running...)
			if s := w.read("parent", "/root/a"); s != "parent's" {
				t.Errorf("file in the parent: %q", s)
			}
			got(w.Sandboxes().Pause(w.ctx(), "fork-1"))(t) // a fork supports the same operations as its parent
			got(w.Sandboxes().Resume(w.ctx(), "fork-1"))(t)
		})
	}
}

func TestFailedForkLeavesNone(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		spoil func(w *world)
		kind  caisson.Kind
	}{
		{"restore", func(w *world) { w.runtime.FailNext(fake.OpRestore, errInjected) }, caisson.Internal},
		{"wire", func(w *world) { w.wires.failNext(errInjected) }, caisson.Internal},
		{"last note", func(w *world) { w.store.failOn("update", 3) }, caisson.Internal},
		{"name", func(w *world) { w.create(caisson.CreateRequest{Name: "fork-4"}) }, caisson.Conflict},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := plan{wires: true}.world(t)
			w.create(caisson.CreateRequest{Name: "parent"})
			snap := got(w.Snapshots().Snapshot(w.ctx(), "parent", caisson.SnapshotRequest{}))(t)
			c.spoil(w)
			ran := w.running()
			for _, from := range []string{string(snap.ID), "parent"} {
				_, err := w.Snapshots().Fork(w.ctx(), from, caisson.ForkRequest{Count: 6, Name: "fork"})
				wantKind(t, err, c.kind)
				w.holds(ran...)
				if c.kind != caisson.Conflict {
					break // the fault occurs once
				}
			}
		})
	}
}

func TestFailedSnapshotLeavesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	sb := w.counting()
	id := string(sb.ID)
	for name, spoil := range map[string]func(){
		"checkpoint": func() { w.runtime.FailNext(fake.OpCheckpoint, errInjected) },
		"insert":     func() { w.store.failOn("insert", 1) },
	} {
		spoil()
		if _, err := w.Snapshots().Snapshot(w.ctx(), id, caisson.SnapshotRequest{}); !errors.Is(err, errInjected) {
			t.Errorf("%s: %v", name, err)
		}
		w.holds(sb.ID)
		w.counts(sb.ID, w.counts(sb.ID, 1)+2)
	}
	_, err := w.Snapshots().Snapshot(w.ctx(), id, caisson.SnapshotRequest{Name: "A b"})
	wantKind(t, err, caisson.Invalid)
	got(w.Snapshots().Snapshot(w.ctx(), id, caisson.SnapshotRequest{Name: "s"}))(t)
	_, err = w.Snapshots().Snapshot(w.ctx(), id, caisson.SnapshotRequest{Name: "s"})
	wantKind(t, err, caisson.Conflict)
	w.holds(sb.ID)
	for _, n := range []int{-1, 101} {
		_, err = w.Snapshots().Fork(w.ctx(), id, caisson.ForkRequest{Count: n})
		wantKind(t, err, caisson.Invalid)
	}
}

func TestCreateFromSnapshot(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	parent := w.create(caisson.CreateRequest{TTL: ptr(caisson.Duration(time.Hour))})
	w.write(string(parent.ID), "/root/a", "x")
	snap := got(w.Snapshots().Snapshot(w.ctx(), string(parent.ID), caisson.SnapshotRequest{}))(t)
	sb := w.create(caisson.CreateRequest{Snapshot: snap.ID, Name: "child", Labels: map[string]string{"a": "b"}, HardTTL: ptr(caisson.Duration(time.Hour))})
	if sb.PauseAt == nil || sb.RemoveAt == nil || sb.Name != "child" || sb.Labels["a"] != "b" || sb.Parent != snap.ID {
		t.Errorf("got %+v", sb)
	}
	if s := w.read("child", "/root/a"); s != "x" {
		t.Errorf("file is %q", s)
	}
	if sb := w.create(caisson.CreateRequest{Snapshot: snap.ID, TTL: ptr(caisson.Duration(0))}); sb.PauseAt != nil {
		t.Errorf("pauseAt %v", sb.PauseAt)
	}
}

// TestSnapshotAfterUpgrade: a snapshot of a paused sandbox depends on what the sandbox was paused with.
func TestSnapshotAfterUpgrade(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	sb := w.counting()
	got(w.Sandboxes().Pause(w.ctx(), string(sb.ID)))(t)
	w.config.Programs.Current = "b2"
	w.restart()
	snap := got(w.Snapshots().Snapshot(w.ctx(), string(sb.ID), caisson.SnapshotRequest{}))(t)
	if snap.Depends.Build != "b1" {
		t.Errorf("the snapshot depends on build %s", snap.Depends.Build)
	}
	for _, ref := range []string{string(snap.ID), string(sb.ID)} {
		fork := got(w.Snapshots().Fork(w.ctx(), ref, caisson.ForkRequest{}))(t)[0]
		if !strings.Contains(fork.Reason, "another build") || fork.Build != "b2" {
			t.Errorf("fork: %+v", fork)
		}
		if e := w.record(string(fork.ID)); !strings.Contains(e[len(e)-1].Data["reason"], "another build") {
			t.Errorf("event: %+v", e)
		}
	}
}

func TestSnapshotList(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	sb := w.create(caisson.CreateRequest{})
	var ids []caisson.ID
	for range 3 {
		ids = append(ids, got(w.Snapshots().Snapshot(w.ctx(), string(sb.ID), caisson.SnapshotRequest{FilesOnly: true}))(t).ID)
	}
	page, more, err := w.Snapshots().ListSnapshots(w.ctx(), caisson.Filter{Limit: 2})
	must(t, err)
	rest, end, err := w.Snapshots().ListSnapshots(w.ctx(), caisson.Filter{Limit: 2, After: page[len(page)-1].ID})
	must(t, err)
	var listed []caisson.ID
	for _, s := range append(page, rest...) {
		listed = append(listed, s.ID)
	}
	if !more || end || !slices.Equal(listed, ids) {
		t.Errorf("listed %v (more %v, %v), want %v", listed, more, end, ids)
	}
	must(t, w.Sandboxes().Remove(w.ctx(), string(sb.ID)))
	w.holds()
	got(w.Snapshots().Fork(w.ctx(), string(ids[0]), caisson.ForkRequest{}))(t) // a snapshot outlives its sandbox
}

// TestOlderPrograms tests that sandboxes and snapshots of another set of programs, with which the daemon works, go on with their
// memory and their programs, and that those count as in use.
func TestOlderPrograms(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	running, paused, suspended := w.counting(), w.counting(), w.counting()
	snap := got(w.Snapshots().Snapshot(w.ctx(), string(running.ID), caisson.SnapshotRequest{}))(t)
	n := w.counts(paused.ID, 3)
	got(w.Sandboxes().Pause(w.ctx(), string(paused.ID)))(t)
	got(w.Sandboxes().Suspend(w.ctx(), string(suspended.ID)))(t)
	w.config.Programs = caisson.Programs{Current: "b2", Older: func(id string) bool { return id == "b1" }}
	w.restart()
	for name, sb := range map[string]*caisson.Sandbox{
		"resumed": got(w.Sandboxes().Resume(w.ctx(), string(paused.ID)))(t),
		"woken":   got(w.Sandboxes().Wake(w.ctx(), string(suspended.ID)))(t),
		"forked":  got(w.Snapshots().Fork(w.ctx(), string(snap.ID), caisson.ForkRequest{}))(t)[0],
		"running": got(w.Snapshots().Fork(w.ctx(), string(running.ID), caisson.ForkRequest{}))(t)[0],
	} {
		if sb.State != caisson.Running || sb.Reason != "" || sb.Build != "b1" {
			t.Errorf("%s: %+v", name, sb)
		}
	}
	if m := w.counts(paused.ID, n); m < n {
		t.Errorf("the counter is at %d, not %d", m, n)
	}
	stopped := got(w.Sandboxes().Stop(w.ctx(), string(paused.ID), 0))(t)
	if sb := got(w.Sandboxes().Start(w.ctx(), string(stopped.ID)))(t); sb.Build != "b2" {
		t.Errorf("after stop and start: %+v", sb)
	}
	want := map[string]bool{"b1": true, "b2": true}
	if used, err := w.ProgramsInUse(w.ctx()); err != nil || !maps.Equal(used, want) {
		t.Errorf("in use: %v, %v", used, err)
	}
}
