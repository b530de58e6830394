package sandboxes_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/runtime/fake"
)

// crashed creates a sandbox as a crash may have left it: a row in state s and, on the host, the given parts.
func (w *world) crashed(s caisson.State, running, paused, files bool) *caisson.Sandbox {
	w.t.Helper()
	sb := w.create(caisson.CreateRequest{})
	id := string(sb.ID)
	dir := filepath.Join(w.dir, "sandboxes", id)
	// A pause and saved files that can be used, from different times.
	w.write(id, "/root/a", "saved")
	got(w.Sandboxes().Stop(w.ctx(), id, 0))(w.t)
	saved := got(os.ReadFile(filepath.Join(dir, "files.tar")))(w.t)
	got(w.Sandboxes().Start(w.ctx(), id))(w.t)
	w.write(id, "/root/a", "paused")
	got(w.Sandboxes().Pause(w.ctx(), id))(w.t)
	pause := filepath.Join(dir, "pause")
	must(w.t, os.CopyFS(filepath.Join(w.dir, "kept"), os.DirFS(pause)))
	got(w.Sandboxes().Resume(w.ctx(), id))(w.t)
	w.write(id, "/root/a", "running")
	if paused {
		must(w.t, os.Rename(filepath.Join(w.dir, "kept"), pause))
	} else {
		must(w.t, os.RemoveAll(filepath.Join(w.dir, "kept")))
	}
	if files {
		must(w.t, os.WriteFile(filepath.Join(dir, "files.tar"), saved, 0o600))
	}
	for _, part := range []string{"files.tar.part", "pause.part"} {
		must(w.t, os.WriteFile(filepath.Join(dir, part), []byte("half"), 0o600))
	}
	got(w.store.Store.Sandboxes().Update(w.ctx(), caisson.AllAccounts(), id, func(x *caisson.Sandbox) error { x.State = s; return nil }))(w.t)
	// The daemon is stopped before it can detect the following changes.
	must(w.t, w.Close())
	if !running {
		must(w.t, w.runtime.Runtime.Destroy(context.Background(), sb.ID))
	}
	return sb
}

func TestReconcileStates(t *testing.T) {
	t.Parallel()
	type row struct {
		state                  caisson.State
		running, paused, files bool
	}
	// want returns the state afterwards ("" means removed) and the content of /root/a after a start or resume.
	want := func(r row) (caisson.State, string) {
		switch r.state {
		case caisson.Creating, caisson.Removing:
			return "", ""
		case caisson.Failed:
			return r.state, ""
		case caisson.Created:
			if r.files { // it is created from these
				return r.state, "saved"
			}
			return r.state, ""
		case caisson.Starting:
			if r.files {
				return caisson.Stopped, "saved"
			}
			return caisson.Created, ""
		case caisson.Running:
			if r.running {
				return caisson.Running, "running"
			}
		case caisson.Suspending, caisson.Suspended:
			if r.running {
				return caisson.Suspended, "running"
			}
		case caisson.Waking:
			if r.running {
				return caisson.Running, "running"
			}
		case caisson.Pausing, caisson.Resuming:
			switch {
			case r.paused:
				return caisson.Paused, "paused"
			case r.running:
				return caisson.Running, "running"
			}
		case caisson.Paused:
			if r.paused {
				return caisson.Paused, "paused"
			}
		case caisson.Stopping:
			switch {
			case r.running:
				return caisson.Running, "running"
			case r.files:
				return caisson.Stopped, "saved"
			case r.paused:
				return caisson.Paused, "paused"
			}
		case caisson.Stopped:
			if r.files {
				return caisson.Stopped, "saved"
			}
		}
		return caisson.Failed, ""
	}
	for _, s := range caisson.States() {
		for bits := range 8 {
			r := row{s, bits&1 != 0, bits&2 != 0, bits&4 != 0}
			t.Run(fmt.Sprintf("%s running=%v paused=%v files=%v", r.state, r.running, r.paused, r.files), func(t *testing.T) {
				w := plan{wires: true}.world(t)
				id := w.crashed(r.state, r.running, r.paused, r.files).ID
				w.restart()
				state, content := want(r)
				w.wantState(id, state)
				if state == caisson.Running || state == caisson.Suspended {
					w.holds(id)
				} else {
					w.holds()
				}
				if state == "" {
					return
				}
				for _, part := range []string{"files.tar.part", "pause.part"} {
					if w.has(id, part) {
						t.Errorf("%s is still there", part)
					}
				}
				ref := string(id)
				sb := got(w.Sandboxes().Get(w.ctx(), ref))(t)
				if (sb.Reason != "") != (state == caisson.Failed && r.state != caisson.Failed) {
					t.Errorf("reason is %q", sb.Reason)
				}
				switch state {
				case caisson.Failed:
					must(t, w.Sandboxes().Remove(w.ctx(), ref))
					return
				case caisson.Created, caisson.Stopped:
					got(w.Sandboxes().Start(w.ctx(), ref))(t)
				case caisson.Paused:
					got(w.Sandboxes().Resume(w.ctx(), ref))(t)
				case caisson.Suspended:
					w.checkFrozen(id)
					got(w.Sandboxes().Wake(w.ctx(), ref))(t)
				}
				if s := w.read(ref, "/root/a"); s != content {
					t.Errorf("/root/a is %q, want %q", s, content)
				}
				if w.has(id, "pause") || w.has(id, "files.tar") {
					t.Errorf("beside a running sandbox: pause %v, files %v", w.has(id, "pause"), w.has(id, "files.tar"))
				}
				got(w.Sandboxes().Pause(w.ctx(), ref))(t) // it is fully usable
			})
		}
	}
}

func TestGarbage(t *testing.T) {
	t.Parallel()
	w := plan{wires: true}.world(t)
	kept := w.create(caisson.CreateRequest{})
	snap := got(w.Snapshots().Snapshot(w.ctx(), string(kept.ID), caisson.SnapshotRequest{}))(t)
	orphan := w.create(caisson.CreateRequest{})
	must(t, w.store.Store.Sandboxes().Delete(w.ctx(), caisson.AllAccounts(), string(orphan.ID)))
	remains := caisson.NewID(caisson.SandboxPrefix)
	w.runtime.remains = []caisson.ID{remains}
	lost := []string{"sandboxes/" + string(caisson.NewID(caisson.SandboxPrefix)), "snapshots/" + string(caisson.NewID(caisson.SnapshotPrefix)),
		"snapshots/" + string(caisson.NewID(caisson.SnapshotPrefix)) + ".part", "sandboxes/strange"}
	for _, dir := range lost {
		must(t, os.MkdirAll(filepath.Join(w.dir, dir, "x"), 0o700))
	}
	var names []string
	for _, g := range w.restart() {
		names = append(names, g.Kind+" "+g.Name)
	}
	want := []string{"process " + string(orphan.ID), "process " + string(remains), "directory sandboxes/" + string(orphan.ID)}
	for _, dir := range lost {
		want = append(want, "directory "+dir)
	}
	slices.Sort(names)
	slices.Sort(want)
	if !slices.Equal(names, want) {
		t.Errorf("garbage is %v\nwant %v", names, want)
	}
	w.holds(kept.ID)
	got(w.Snapshots().Fork(w.ctx(), string(snap.ID), caisson.ForkRequest{}))(t)
	if again := w.restart(); len(again) != 0 {
		t.Errorf("there is garbage again: %v", again)
	}
	if !slices.Contains(w.wires.reattached, kept.ID) {
		t.Error("the wire of a running sandbox was not taken up again")
	}
}

// TestGarbageWhileBusy: garbage collection must not remove objects that are being created.
func TestGarbageWhileBusy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	stop := make(chan struct{})
	done := make(chan error)
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			if garbage, err := w.CollectGarbage(context.Background()); err != nil {
				done <- fmt.Errorf("%v: %w", garbage, err)
				return
			}
		}
	}()
	for range 10 {
		sb := w.create(caisson.CreateRequest{})
		id := string(sb.ID)
		w.write(id, "/root/a", "kept")
		snap := got(w.Snapshots().Snapshot(w.ctx(), id, caisson.SnapshotRequest{}))(t)
		for _, f := range got(w.Snapshots().Fork(w.ctx(), id, caisson.ForkRequest{Count: 2}))(t) {
			must(t, w.Sandboxes().Remove(w.ctx(), string(f.ID)))
		}
		got(w.Sandboxes().Pause(w.ctx(), id))(t)
		if s := w.read(id, "/root/a"); s != "kept" {
			t.Errorf("paused: %q", s)
		}
		got(w.Sandboxes().Resume(w.ctx(), id))(t)
		got(w.Sandboxes().Stop(w.ctx(), id, 0))(t)
		must(t, w.Sandboxes().Remove(w.ctx(), id))
		must(t, w.Snapshots().RemoveSnapshot(w.ctx(), string(snap.ID)))
	}
	close(stop)
	must(t, <-done)
	w.holds()
}

// TestReconcileGoesOn: one sandbox that cannot be reconciled does not make the others unavailable.
func TestReconcileGoesOn(t *testing.T) {
	t.Parallel()
	w := plan{wires: true}.world(t)
	bad, good := w.create(caisson.CreateRequest{}), w.create(caisson.CreateRequest{})
	for _, sb := range []*caisson.Sandbox{bad, good} {
		got(w.store.Store.Sandboxes().Update(w.ctx(), caisson.AllAccounts(), string(sb.ID), func(x *caisson.Sandbox) error {
			x.State = caisson.Starting
			return nil
		}))(t)
	}
	w.runtime.FailNext(fake.OpDestroy, errInjected)
	w.restart()
	w.wantState(bad.ID, caisson.Starting)
	w.wantState(good.ID, caisson.Created)
	must(t, w.Sandboxes().Remove(w.ctx(), string(bad.ID)))
	got(w.Sandboxes().Start(w.ctx(), string(good.ID)))(t)
	must(t, w.Close())
	w.wires.failNext(errInjected)
	w.restart()
	w.wantState(good.ID, caisson.Running)
	if types := w.events(string(good.ID)); types[len(types)-1] != "sandbox.disconnected" {
		t.Errorf("events %v", types)
	}
}

func TestDeath(t *testing.T) {
	t.Parallel()
	for _, restarts := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart=%v", restarts), func(t *testing.T) {
			w := plan{wires: true}.world(t)
			sb := w.counting()
			if restarts {
				must(t, w.Close())
				must(t, w.runtime.Kill(sb.ID))
				w.restart()
			} else {
				p := got(w.Processes().Exec(w.ctx(), string(sb.ID), caisson.ExecRequest{Command: command("sleep", "1h")}))(t)
				defer p.Close()
				must(t, w.runtime.Kill(sb.ID))
				if s := got(p.Wait(w.ctx()))(t); !s.Unknown || s.Reason != "the sandbox ended: the sandbox died" {
					t.Errorf("what ran in it ended with %+v", s)
				}
			}
			failed := w.waitState(sb.ID, caisson.Failed)
			if !strings.Contains(failed.Reason, "the sandbox ended") {
				t.Errorf("reason %q", failed.Reason)
			}
			waitFor(t, func() bool { types := w.events(string(sb.ID)); return types[len(types)-1] == "sandbox.failed" })
			w.holds()
			w.log(string(sb.ID)) // its log can still be read
			must(t, w.Sandboxes().Remove(w.ctx(), string(sb.ID)))
		})
	}
}

func TestCommandExit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	sb := w.create(caisson.CreateRequest{Command: command("exit", "3")})
	waitFor(t, func() bool { return got(w.Sandboxes().Get(w.ctx(), string(sb.ID)))(t).Exit != nil })
	exited := got(w.Sandboxes().Get(w.ctx(), string(sb.ID)))(t)
	if exited.Exit.Code != 3 || exited.State != caisson.Running {
		t.Errorf("exit %v, state %s", exited.Exit, exited.State)
	}
	waitFor(t, func() bool { return slices.Contains(w.events(string(sb.ID)), "command.ended") })
	got(w.Sandboxes().Pause(w.ctx(), string(sb.ID)))(t)
	if sb := got(w.Sandboxes().Resume(w.ctx(), string(sb.ID)))(t); sb.Exit == nil || sb.Exit.Code != 3 {
		t.Errorf("after pause and resume: %v", sb.Exit)
	}
	got(w.Sandboxes().Stop(w.ctx(), string(sb.ID), 0))(t)
	got(w.Sandboxes().Start(w.ctx(), string(sb.ID)))(t)
	waitFor(t, func() bool {
		n := 0
		for _, e := range w.events(string(sb.ID)) {
			if e == "command.ended" {
				n++
			}
		}
		return n == 2
	})
}

// TestCommandExitUnseen: a command that ends while no daemon runs.
func TestCommandExitUnseen(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	sb := w.create(caisson.CreateRequest{Command: command("sleep", "1h")})
	must(t, w.Close())
	must(t, w.runtime.Signal(context.Background(), sb.ID, 2, 9))
	w.restart()
	waitFor(t, func() bool { return got(w.Sandboxes().Get(w.ctx(), string(sb.ID)))(t).Exit != nil })
	if e := got(w.Sandboxes().Get(w.ctx(), string(sb.ID)))(t).Exit; e.Signal != 9 {
		t.Errorf("exit %v", e)
	}
}

func TestDeadlines(t *testing.T) {
	t.Parallel()
	const short = caisson.Duration(150 * time.Millisecond)
	w := plan{wires: true}.world(t)
	l := w.Sandboxes()
	idle := func() bool { return got(w.Idle(w.ctx()))(t) }

	sb := w.create(caisson.CreateRequest{TTL: ptr(caisson.Duration(time.Hour))})
	if idle() {
		t.Error("idle while a sandbox runs")
	}
	got(l.Extend(w.ctx(), string(sb.ID), caisson.ExtendRequest{TTL: ptr(short)}))(t)
	paused := w.waitState(sb.ID, caisson.Paused)
	if !strings.Contains(paused.Reason, "ttl of 150ms") || paused.PauseAt != nil {
		t.Errorf("reason %q, pauseAt %v", paused.Reason, paused.PauseAt)
	}
	w.holds()
	if !idle() {
		t.Error("not idle with a paused sandbox")
	}
	got(l.Resume(w.ctx(), string(sb.ID)))(t) // its TTL is counted again
	w.waitState(sb.ID, caisson.Paused)
	if e := got(l.Extend(w.ctx(), string(sb.ID), caisson.ExtendRequest{TTL: ptr(caisson.Duration(time.Hour))}))(t); e.PauseAt != nil {
		t.Errorf("a paused sandbox will be paused at %v", e.PauseAt)
	}
	resumed := got(l.Resume(w.ctx(), string(sb.ID)))(t)
	if resumed.PauseAt == nil || time.Until(*resumed.PauseAt) < 30*time.Minute {
		t.Errorf("pauseAt %v", resumed.PauseAt)
	}
	if e := got(l.Extend(w.ctx(), string(sb.ID), caisson.ExtendRequest{TTL: ptr(caisson.Duration(0))}))(t); e.PauseAt != nil {
		t.Errorf("without a ttl pauseAt is %v", e.PauseAt)
	}
	_, err := l.Extend(w.ctx(), string(sb.ID), caisson.ExtendRequest{TTL: ptr(caisson.Duration(-1))})
	wantKind(t, err, caisson.Invalid)
	got(l.Extend(w.ctx(), string(sb.ID), caisson.ExtendRequest{HardTTL: ptr(short)}))(t)
	waitFor(t, func() bool { return slices.Contains(w.events(string(sb.ID)), "sandbox.removed") })
	w.holds()

	// Deadlines that pass while no daemon runs, and deadlines of sandboxes that do not run.
	over := w.create(caisson.CreateRequest{HardTTL: ptr(caisson.Duration(time.Hour))})
	got(l.Stop(w.ctx(), string(over.ID), 0))(t)
	soon := w.create(caisson.CreateRequest{TTL: ptr(short)})
	over = got(l.Extend(w.ctx(), string(over.ID), caisson.ExtendRequest{HardTTL: ptr(short)}))(t)
	must(t, w.Close())
	waitFor(t, func() bool { return time.Now().After(*over.RemoveAt) && time.Now().After(*soon.PauseAt) })
	w.restart()
	waitFor(t, func() bool { return w.state(over.ID) == "" })
	w.waitState(soon.ID, caisson.Paused)
}

// TestStartCountsTTL: the TTL of a sandbox that was stopped and started is counted again.
func TestStartCountsTTL(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	sb := w.create(caisson.CreateRequest{TTL: ptr(caisson.Duration(400 * time.Millisecond))})
	if s := got(w.Sandboxes().Stop(w.ctx(), string(sb.ID), 0))(t); s.PauseAt != nil {
		t.Errorf("stopped: pauseAt %v", s.PauseAt)
	}
	got(w.Sandboxes().Start(w.ctx(), string(sb.ID)))(t)
	w.waitState(sb.ID, caisson.Paused)
}

// TestFilesGone tests what becomes of objects that are in the store only, as after the restore of a backup: nothing of them seems to be usable,
// and all can be removed.
func TestFilesGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	boxes := []*caisson.Sandbox{w.in(caisson.Created), w.in(caisson.Stopped), w.in(caisson.Paused), w.in(caisson.Running)}
	snap := got(w.Snapshots().Snapshot(w.ctx(), string(boxes[3].ID), caisson.SnapshotRequest{}))(t)
	here := filepath.Join(w.dir, "images", "here")
	must(t, os.MkdirAll(here, 0o700))
	for name, layer := range map[string]string{"here": here, "gone": filepath.Join(w.dir, "images", "gone"), "elsewhere": t.TempDir()} {
		rootfs := caisson.Rootfs{Digest: name, Layers: []string{layer}}
		must(t, w.store.Store.Images().Insert(w.ctx(), &caisson.Image{Reference: name, Account: "local", Rootfs: rootfs}))
		must(t, w.store.Store.Templates().Insert(w.ctx(), &caisson.Template{Name: name, Account: "local", Image: "host", Built: &caisson.Built{Rootfs: rootfs}}))
	}
	must(t, w.Close())
	must(t, w.runtime.Runtime.Destroy(context.Background(), boxes[3].ID))
	for _, dir := range []string{"sandboxes", "snapshots"} {
		must(t, os.RemoveAll(filepath.Join(w.dir, dir)))
	}
	w.restart()
	// Without a restore, a file system may only not be mounted: nothing is removed.
	got(w.Snapshots().GetSnapshot(w.ctx(), string(snap.ID)))(t)
	got(w.store.Store.Images().Get(w.ctx(), caisson.In("local"), "gone"))(t)
	must(t, w.ForgetMissing(w.ctx()))
	w.restart()
	for _, sb := range boxes {
		if now := got(w.Sandboxes().Get(w.ctx(), string(sb.ID)))(t); now.State != caisson.Failed || now.Reason == "" {
			t.Errorf("what was %s is %s: %s", sb.State, now.State, now.Reason)
		}
		must(t, w.Sandboxes().Remove(w.ctx(), string(sb.ID)))
	}
	_, err := w.Snapshots().GetSnapshot(w.ctx(), string(snap.ID))
	wantKind(t, err, caisson.NotFound)
	if e := w.record(string(snap.ID)); len(e) == 0 || e[len(e)-1].Type != "snapshot.removed" || e[len(e)-1].Data["reason"] == "" {
		t.Errorf("the events of the snapshot: %+v", e)
	}
	for _, name := range []string{"here", "gone", "elsewhere"} {
		_, err := w.store.Store.Images().Get(w.ctx(), caisson.In("local"), name)
		tpl := got(w.Templates().GetTemplate(w.ctx(), name))(t)
		if kept := name == "here"; (err == nil) != kept || (tpl.Built != nil) != kept {
			t.Errorf("%s: the image: %v; the template: %+v", name, err, tpl.Built)
		}
	}
	w.holds()
}
