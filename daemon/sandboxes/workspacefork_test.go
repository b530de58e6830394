package sandboxes_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/runtime/fake"
)

func TestSnapshotOfWorkspace(t *testing.T) {
	t.Parallel()
	for _, state := range []caisson.State{caisson.Running, caisson.Paused, caisson.Stopped} {
		t.Run(string(state), func(t *testing.T) {
			w, l := withLayers(t)
			req, _ := asking(t, project(t, "task"))
			sb := w.create(caisson.CreateRequest{Workspace: req, Command: command("counter", "/count")})
			id := string(sb.ID)
			w.counts(sb.ID, 3)
			w.write(id, "/workspace/made", "made")
			running := []caisson.ID{sb.ID}
			switch state {
			case caisson.Paused:
				got(w.Sandboxes().Pause(w.ctx(), id))(t)
				running = nil
			case caisson.Stopped:
				got(w.Sandboxes().Stop(w.ctx(), id, 0))(t)
				running = nil
			}
			l.failNext("capture")
			if _, err := w.Snapshots().Snapshot(w.ctx(), id, caisson.SnapshotRequest{}); err == nil {
				t.Error("a snapshot without the workspace was made")
			}
			w.holds(running...)
			snap := got(w.Snapshots().Snapshot(w.ctx(), id, caisson.SnapshotRequest{}))(t)
			if b, err := os.ReadFile(filepath.Join(w.dir, "snapshots", string(snap.ID), "workspace/upper/made")); err != nil || string(b) != "made" {
				t.Errorf("the snapshot has %q, %v", b, err)
			}
			w.wantState(sb.ID, state)
			if state == caisson.Running {
				w.counts(sb.ID, w.counts(sb.ID, 1)+2)
			}
			for _, ref := range []string{string(snap.ID), id} {
				_, err := w.Snapshots().Fork(w.ctx(), ref, caisson.ForkRequest{})
				wantKind(t, err, caisson.Conflict)
				own, h := asking(t, project(t, "other"))
				fork := got(w.Snapshots().Fork(w.ctx(), ref, caisson.ForkRequest{Workspace: own}))(t)[0]
				running = append(running, fork.ID)
				if fork.Spec.Workspace == sb.Spec.Workspace || l.get(fork.Spec.Workspace).sandbox != fork.ID || !h.closed {
					t.Errorf("the fork is %+v, descriptor closed: %v", fork.Spec, h.closed)
				}
				if s := w.read(string(fork.ID), "/workspace/other"); s != "other of the host" {
					t.Errorf("the fork's file holds %q", s)
				}
				if s := w.read(string(fork.ID), "/workspace/made"); s != "" {
					t.Errorf("the fork has its origin's file %q", s)
				}
			}
			slices.Sort(running)
			w.holds(running...)
			for _, x := range append(running, sb.ID) {
				if err := w.Sandboxes().Remove(w.ctx(), string(x)); caisson.KindOf(err) != caisson.NotFound {
					must(t, err)
				}
			}
			l.settled()
		})
	}
}

// TestPlaceholder: forks of a snapshot with a placeholder each have their own workspace.
func TestPlaceholder(t *testing.T) {
	t.Parallel()
	w, l := withLayers(t)
	warm := w.create(caisson.CreateRequest{Placeholder: "/workspace/", Command: command("counter", "/count"), Workdir: "/"})
	n := w.counts(warm.ID, 30)
	if warm.Spec.WorkspaceAt != "/workspace" || warm.Spec.Workspace != "" {
		t.Errorf("got %+v", warm.Spec)
	}
	w.write(string(warm.ID), "/workspace/x", "x")
	waitFor(t, func() bool { return w.has(warm.ID, "placeholder/upper/x") })
	_, err := w.Snapshots().Snapshot(w.ctx(), string(warm.ID), caisson.SnapshotRequest{})
	wantKind(t, err, caisson.Conflict) // existing files would be lost
	_, err = w.Snapshots().Fork(w.ctx(), string(warm.ID), caisson.ForkRequest{})
	wantKind(t, err, caisson.Conflict)
	must(t, w.Files().RemoveFile(w.ctx(), string(warm.ID), "/workspace/x", false))
	waitFor(t, func() bool { return !w.has(warm.ID, "placeholder/upper/x") })
	got(w.Sandboxes().Pause(w.ctx(), string(warm.ID)))(t)
	got(w.Sandboxes().Resume(w.ctx(), string(warm.ID)))(t)
	snap := got(w.Snapshots().Snapshot(w.ctx(), string(warm.ID), caisson.SnapshotRequest{}))(t)
	must(t, w.Sandboxes().Remove(w.ctx(), string(warm.ID)))

	var all []caisson.ID
	for i, name := range []string{"one", "two", "three"} {
		req, _ := asking(t, project(t, name))
		var sb *caisson.Sandbox
		if i == 0 {
			sb = w.create(caisson.CreateRequest{Snapshot: snap.ID, Workspace: req})
		} else {
			sb = got(w.Snapshots().Fork(w.ctx(), string(snap.ID), caisson.ForkRequest{Workspace: req}))(t)[0]
		}
		all = append(all, sb.ID)
		if s := w.read(string(sb.ID), "/workspace/"+name); s != name+" of the host" || l.get(sb.Spec.Workspace).sandbox != sb.ID {
			t.Errorf("the file in %s holds %q", sb.ID, s)
		}
		w.write(string(sb.ID), "/workspace/made", name)
		if m := w.counts(sb.ID, 1); m < n {
			t.Errorf("the fork's counter is at %d, its origin's was at %d", m, n)
		}
		got(w.Sandboxes().Pause(w.ctx(), string(sb.ID)))(t)
		got(w.Sandboxes().Resume(w.ctx(), string(sb.ID)))(t)
		if s := w.read(string(sb.ID), "/workspace/made"); s != name {
			t.Errorf("after a pause the file in %s holds %q", sb.ID, s)
		}
	}
	// Without a directory, each has its own placeholder.
	for _, sb := range got(w.Snapshots().Fork(w.ctx(), string(snap.ID), caisson.ForkRequest{Count: 2}))(t) {
		all = append(all, sb.ID)
		if s := w.read(string(sb.ID), "/workspace/made"); s != "" {
			t.Errorf("a fork's place has the file %q", s)
		}
		w.write(string(sb.ID), "/workspace/made", "x")
	}
	slices.Sort(all)
	w.holds(all...)

	for name, c := range map[string]struct {
		target string
		count  int
		kind   caisson.Kind
	}{
		"elsewhere": {"/srv", 1, caisson.Invalid},
		"several":   {"", 2, caisson.Invalid},
	} {
		req, h := asking(t, project(t))
		req.Target = c.target
		_, err := w.Snapshots().Fork(w.ctx(), string(snap.ID), caisson.ForkRequest{Workspace: req, Count: c.count})
		if wantKind(t, err, c.kind); !h.closed {
			t.Errorf("%s: the descriptor was not closed", name)
		}
	}
	w.runtime.FailNext(fake.OpRestore, errInjected)
	req, _ := asking(t, project(t))
	if _, err := w.Snapshots().Fork(w.ctx(), string(snap.ID), caisson.ForkRequest{Workspace: req}); err == nil {
		t.Error("a fork succeeded whose restore had failed")
	}
	w.holds(all...)
	for _, id := range all {
		must(t, w.Sandboxes().Remove(w.ctx(), string(id)))
	}
	l.settled()
}

// TestForkWithoutPlace: only a fork without memory can have a workspace if the origin has no place for one.
func TestForkWithoutPlace(t *testing.T) {
	t.Parallel()
	w, l := withLayers(t)
	sb := w.create(caisson.CreateRequest{})
	w.write(string(sb.ID), "/root/a", "kept")
	for _, c := range []struct {
		snapshot caisson.SnapshotRequest
		works    bool
	}{{caisson.SnapshotRequest{}, false}, {caisson.SnapshotRequest{FilesOnly: true}, true}} {
		snap := got(w.Snapshots().Snapshot(w.ctx(), string(sb.ID), c.snapshot))(t)
		req, h := asking(t, project(t, "task"))
		req.Target = "/srv/project"
		fork, err := w.Sandboxes().Create(w.ctx(), caisson.CreateRequest{Snapshot: snap.ID, Workspace: req})
		if !h.closed {
			t.Error("the descriptor was not closed")
		}
		if !c.works {
			wantKind(t, err, caisson.Conflict)
			continue
		}
		must(t, err)
		if s := w.read(string(fork.ID), "/srv/project/task") + ", " + w.read(string(fork.ID), "/root/a"); s != "task of the host, kept" {
			t.Errorf("the fork's files hold %q", s)
		}
		if l.get(fork.Spec.Workspace).req.Target != "/srv/project" || fork.Spec.WorkspaceAt != "/srv/project" {
			t.Errorf("the fork is %+v", fork.Spec)
		}
	}
	direct, _ := asking(t, project(t, "task"))
	direct.Kind = caisson.WorkspaceDirect
	snap := got(w.Snapshots().Snapshot(w.ctx(), string(sb.ID), caisson.SnapshotRequest{FilesOnly: true}))(t)
	fork := w.create(caisson.CreateRequest{Snapshot: snap.ID, Workspace: direct})
	if len(fork.Spec.Mounts) != 1 || !fork.Spec.Mounts[0].Writable || !slices.Contains(w.events(string(fork.ID)), "workspace.direct") {
		t.Errorf("the fork is %+v, its events are %v", fork.Spec, w.events(string(fork.ID)))
	}
}
