package sandboxes_test

import (
	"testing"

	"github.com/caisson-dev/caisson"
)

// assignment returns an assignment with all fields set.
func assignment() *caisson.Assignment {
	return &caisson.Assignment{
		Run: "rn-cccccccccccccccc", Attempt: 2, Session: "se-aaaaaaaaaaaaaaaa", Agent: "openclaw", User: "u",
		Lineage: []caisson.ID{"rn-aaaaaaaaaaaaaaaa", "rn-bbbbbbbbbbbbbbbb"}, Trace: "0123456789abcdef0123456789abcdef",
		Models: &caisson.ModelGrant{Models: []string{"small"}, Allow: []string{"beta"}}, Tools: true,
	}
}

// wantServing checks that the wire of a sandbox has the assignment of [assignment].
func (w *world) wantServing(sb *caisson.Sandbox) {
	w.t.Helper()
	a := assignment()
	want := caisson.Guest{
		Sandbox: sb.ID, Account: sb.Account, Run: "rn-cccccccccccccccc", Attempt: 2, Session: "se-aaaaaaaaaaaaaaaa", Agent: "openclaw",
		User: "u", Lineage: "rn-aaaaaaaaaaaaaaaa rn-bbbbbbbbbbbbbbbb", Trace: a.Trace,
	}
	if spec := w.wires.spec(sb.ID); spec.Guest != want || spec.Models == nil || spec.Models.Record || !spec.Tools {
		w.t.Errorf("its wire is %+v", spec)
	}
	if s := got(w.Sandboxes().Get(w.ctx(), string(sb.ID)))(w.t); s.Assigned == nil || s.Assigned.Run != a.Run {
		w.t.Errorf("it is assigned to %+v", s.Assigned)
	}
}

// wantOwn checks that a sandbox serves no run.
func (w *world) wantOwn(sb *caisson.Sandbox) {
	w.t.Helper()
	spec := w.wires.spec(sb.ID)
	if spec.Guest != (caisson.Guest{Sandbox: sb.ID, Account: sb.Account, Run: string(sb.ID)}) || spec.Tools {
		w.t.Errorf("its wire is %+v", spec)
	}
	if (spec.Models == nil) != (sb.Spec.Models == nil) || spec.Models != nil && !spec.Models.Record {
		w.t.Errorf("it may call %+v", spec.Models)
	}
	if s := got(w.Sandboxes().Get(w.ctx(), string(sb.ID)))(w.t); s.Assigned != nil {
		w.t.Errorf("it is assigned to %+v", s.Assigned)
	}
}

func TestAssign(t *testing.T) {
	t.Parallel()
	w := online(t)
	own := &caisson.ModelGrant{Models: []string{"small"}, Record: true}
	sb := w.create(caisson.CreateRequest{Policy: allowOnly("example.com"), Models: own})
	assign := func(a *caisson.Assignment) *caisson.Sandbox { return got(w.Assign(w.ctx(), sb.ID, a))(t) }
	w.wantOwn(sb)
	assign(nil)
	assign(assignment())
	w.wantServing(sb)
	if n := len(w.wires.spec(sb.ID).Policy.Rules); n != 1 {
		t.Errorf("its policy has %d rules", n)
	}
	assign(assignment())

	other := assignment()
	other.Run = "rn-dddddddddddddddd"
	again := assignment()
	again.Attempt++
	for _, a := range []*caisson.Assignment{other, again} {
		_, err := w.Assign(w.ctx(), sb.ID, a)
		wantKind(t, err, caisson.Conflict)
	}
	w.wantServing(sb)
	w.restart()
	w.wantServing(sb)

	// If the wire returns an error, nothing changes, when assigning as well as when clearing.
	w.wires.failNext(errInjected)
	if _, err := w.Assign(w.ctx(), sb.ID, nil); err == nil {
		t.Error("taken away from a wire that refuses")
	}
	w.wantServing(sb)
	assign(nil)
	w.wantOwn(sb)
	w.wires.failNext(errInjected)
	if _, err := w.Assign(w.ctx(), sb.ID, assignment()); err == nil {
		t.Error("given to a wire that refuses")
	}
	w.wantOwn(sb)
	w.store.failOn("update", 1)
	if _, err := w.Assign(w.ctx(), sb.ID, assignment()); err == nil {
		t.Error("given though it could not be stored")
	}
	w.wantOwn(sb)

	// While it is frozen, and while it has no wire; then the next wire has the assignment.
	got(w.Sandboxes().Suspend(w.ctx(), string(sb.ID)))(t)
	assign(assignment())
	w.wantServing(sb)
	got(w.Sandboxes().Wake(w.ctx(), string(sb.ID)))(t)
	assign(nil)
	got(w.Sandboxes().Pause(w.ctx(), string(sb.ID)))(t)
	assign(assignment())
	n := w.wires.configurations()
	got(w.Sandboxes().Resume(w.ctx(), string(sb.ID)))(t)
	w.wantServing(sb)
	if w.wires.configurations() != n {
		t.Error("the wire was configured twice")
	}
}

func TestAssignRefused(t *testing.T) {
	t.Parallel()
	w := online(t)
	sb := w.create(caisson.CreateRequest{})
	for field, change := range map[string]func(*caisson.Assignment){
		"assigned.run":           func(a *caisson.Assignment) { a.Run = "" },
		"assigned.lineage":       func(a *caisson.Assignment) { a.Lineage = []caisson.ID{"rn-a rn-b"} },
		"assigned.models.models": func(a *caisson.Assignment) { a.Models = &caisson.ModelGrant{Models: []string{"large"}} },
	} {
		a := assignment()
		change(a)
		_, err := w.Assign(w.ctx(), sb.ID, a)
		_, cerr := w.Sandboxes().Create(w.ctx(), caisson.CreateRequest{Assigned: a})
		_, ferr := w.Snapshots().Fork(w.ctx(), string(sb.ID), caisson.ForkRequest{Assigned: a})
		for _, err := range []error{err, cerr, ferr} {
			wantKind(t, err, caisson.Invalid)
			if f := caisson.FieldOf(err); f != field {
				t.Errorf("the field is %q, want %q", f, field)
			}
		}
	}
	_, err := w.Assign(w.as("other"), sb.ID, assignment())
	wantKind(t, err, caisson.NotFound)
	_, err = w.Assign(t.Context(), sb.ID, assignment())
	wantKind(t, err, caisson.Unauthed)
	w.wantOwn(sb)
	failed := w.in(caisson.Failed)
	_, err = w.Assign(w.ctx(), failed.ID, assignment())
	wantKind(t, err, caisson.Conflict)
	got(w.Assign(w.ctx(), failed.ID, nil))(t)
}

// TestMadeForRun: the first wire of a sandbox that is created for a run has the run's assignment, however it is
// created.
func TestMadeForRun(t *testing.T) {
	t.Parallel()
	w := online(t)
	a := assignment()
	sb := w.create(caisson.CreateRequest{Assigned: a, Randomness: "kernel"})
	w.wantServing(sb)
	snap := got(w.Snapshots().Snapshot(w.ctx(), string(sb.ID), caisson.SnapshotRequest{}))(t)
	from := w.create(caisson.CreateRequest{Snapshot: snap.ID, Assigned: a, Randomness: "openssl"})
	w.wantServing(from)
	if r := w.runtime.restored(from.ID); r.Randomness != "openssl" || !r.ContinueClock {
		t.Errorf("it was restored with randomness %q, still clock %v", r.Randomness, r.ContinueClock)
	}
	fork := got(w.Snapshots().Fork(w.ctx(), string(snap.ID), caisson.ForkRequest{Assigned: a}))(t)[0]
	w.wantServing(fork)
	if r := w.runtime.restored(fork.ID); r.Randomness != "openssl" || r.ContinueClock || fork.Spec.Randomness != "kernel" {
		t.Errorf("a fork was restored with randomness %q, still clock %v", r.Randomness, r.ContinueClock)
	}
	if n := w.wires.configurations(); n != 0 {
		t.Errorf("wires were configured %d times after they were there", n)
	}
	for _, f := range got(w.Snapshots().Fork(w.ctx(), string(sb.ID), caisson.ForkRequest{Count: 2}))(t) {
		w.wantOwn(f) // without an assignment in the request
	}
	_, err := w.Sandboxes().Create(w.ctx(), caisson.CreateRequest{Randomness: "dice"})
	wantKind(t, err, caisson.Invalid)
}

// TestPooledForRun: a run may get a sandbox from the pool, whose sandboxes have no assignment.
func TestPooledForRun(t *testing.T) {
	t.Parallel()
	w := online(t)
	got(w.Templates().PutTemplate(w.ctx(), caisson.Template{
		Name: "tpl", Image: "debian:12", Pool: 1, Models: &caisson.ModelGrant{Models: []string{"small"}, Record: true},
	}))(t)
	ready := w.filled(1)
	_, err := w.Assign(w.ctx(), ready[0], assignment())
	wantKind(t, err, caisson.Conflict)
	sb := w.create(caisson.CreateRequest{Template: "tpl", Assigned: assignment()})
	if sb.ID != ready[0] || w.wires.configurations() != 1 {
		t.Errorf("got %s of a pool of %v; its wire was configured %d times", sb.ID, ready, w.wires.configurations())
	}
	w.wantServing(sb)
	for _, id := range w.filled(1) {
		if p := got(w.Sandboxes().Get(w.ctx(), string(id)))(t); p.Assigned != nil || w.wires.spec(id).Guest.Run != string(id) {
			t.Errorf("in the pool is %+v", p)
		}
	}
	ready = w.filled(1)
	if sb := w.create(caisson.CreateRequest{Template: "tpl", Randomness: "openssl"}); sb.ID == ready[0] {
		t.Error("what the pool has was not started for that")
	}
	w.filled(1)
}

func TestForkResources(t *testing.T) {
	t.Parallel()
	w := online(t)
	sb := w.create(caisson.CreateRequest{})
	snap := got(w.Snapshots().Snapshot(w.ctx(), string(sb.ID), caisson.SnapshotRequest{}))(t)
	files := got(w.Snapshots().Snapshot(w.ctx(), string(sb.ID), caisson.SnapshotRequest{FilesOnly: true}))(t)
	had := sb.Spec.Resources
	more := caisson.Resources{CPUs: 1, Memory: had.Memory + 1<<30, PIDs: had.PIDs}
	fork := got(w.Snapshots().Fork(w.ctx(), string(snap.ID), caisson.ForkRequest{Resources: more}))(t)[0]
	want := had
	want.CPUs, want.Memory = more.CPUs, more.Memory
	if fork.Spec.Resources != want || w.runtime.restored(fork.ID).Resources != want {
		t.Errorf("its limits are %+v, want %+v", fork.Spec.Resources, want)
	}
	for field, r := range map[string]caisson.Resources{
		"resources.memory":    {Memory: had.Memory - 1},
		"resources.disk":      {Disk: had.Disk - 1},
		"resources.pids":      {PIDs: had.PIDs + 1},
		"resources.openFiles": {OpenFiles: had.OpenFiles + 1},
		"resources.cpus":      {CPUs: -1},
	} {
		_, err := w.Snapshots().Fork(w.ctx(), string(snap.ID), caisson.ForkRequest{Resources: r})
		wantKind(t, err, caisson.Invalid)
		if f := caisson.FieldOf(err); f != field {
			t.Errorf("the field is %q, want %q", f, field)
		}
		if field == "resources.cpus" {
			continue
		}
		// A snapshot without memory allows other limits.
		got(w.Snapshots().Fork(w.ctx(), string(files.ID), caisson.ForkRequest{Resources: r}))(t)
	}
}
