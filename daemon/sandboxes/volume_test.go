package sandboxes_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/volumes"
	"github.com/caisson-dev/caisson/runtime/fake"
)

// withVolumes returns a world with the real implementation of volumes.
func withVolumes(t *testing.T) (*world, *volumeHolds) {
	t.Helper()
	w := plan{wires: true}.world(t)
	h := &volumeHolds{w: w}
	h.open()
	t.Cleanup(func() { must(t, h.core.Close()) })
	must(t, w.Close())
	w.config.Volumes = h
	w.boot()
	return w, h
}

// volumeHolds is the real implementation, in which the next call of a method can fail.
type volumeHolds struct {
	caisson.VolumeAttachments
	w    *world
	core *volumes.Core
	fail string
}

// open creates the core as a daemon does at its start.
func (h *volumeHolds) open() {
	h.w.t.Helper()
	core, err := volumes.New(volumes.Config{Dir: h.w.dir, Store: h.w.store, Events: h.w.config.Events})
	must(h.w.t, err)
	must(h.w.t, core.Reconcile(h.w.t.Context()))
	h.core, h.VolumeAttachments = core, core.Attachments()
}

func (h *volumeHolds) failing(method string) error {
	if h.fail != method {
		return nil
	}
	h.fail = ""
	return errInjected
}

func (h *volumeHolds) Attach(ctx context.Context, account, ref string, sandbox caisson.ID) (*caisson.Volume, error) {
	if err := h.failing("hold"); err != nil {
		return nil, err
	}
	if slices.Contains(h.w.running(), sandbox) {
		h.w.t.Errorf("%s runs before it has its volume", sandbox)
	}
	return h.VolumeAttachments.Attach(ctx, account, ref, sandbox)
}

func (h *volumeHolds) Open(ctx context.Context, id, sandbox caisson.ID) (caisson.RuntimeMount, error) {
	if err := h.failing("open"); err != nil {
		return caisson.RuntimeMount{}, err
	}
	return h.VolumeAttachments.Open(ctx, id, sandbox)
}

func (h *volumeHolds) Detach(ctx context.Context, id, sandbox caisson.ID) error {
	if err := h.failing("leave"); err != nil {
		return err
	}
	if slices.Contains(h.w.running(), sandbox) {
		h.w.t.Errorf("%s still runs and is to leave its volume", sandbox)
	}
	return h.VolumeAttachments.Detach(ctx, id, sandbox)
}

// has fails the test unless a volume of the account local is attached to that sandbox; "" means detached.
func (h *volumeHolds) has(name string, sandbox caisson.ID) *caisson.Volume {
	h.w.t.Helper()
	v := got(h.core.Volumes().GetVolume(h.w.ctx(), name))(h.w.t)
	if v.Sandbox != sandbox {
		h.w.t.Errorf("volume %s is %q's, want %q", name, v.Sandbox, sandbox)
	}
	return v
}

func inVolume(name string) *caisson.WorkspaceRequest {
	return &caisson.WorkspaceRequest{Kind: caisson.WorkspaceVolume, Source: name}
}

// fill creates a file of n bytes from inside a sandbox.
func (h *volumeHolds) fill(id caisson.ID, name, n string) {
	h.w.t.Helper()
	if out, status := h.w.run(string(id), caisson.ExecRequest{Command: command("fill", name, n)}); !status.Success() {
		h.w.t.Fatalf("fill %s: %q, %v", name, out, status)
	}
}

// size returns the size of a file as a sandbox sees it; "" if there is none.
func (h *volumeHolds) size(id caisson.ID, name string) string {
	h.w.t.Helper()
	out, status := h.w.run(string(id), caisson.ExecRequest{Command: command("stat", name)})
	if f := strings.Fields(out); status.Success() && len(f) == 5 {
		return f[4]
	}
	return ""
}

func TestVolume(t *testing.T) {
	t.Parallel()
	w, h := withVolumes(t)
	sb := got(w.Sandboxes().Create(w.as("local"), caisson.CreateRequest{Workspace: inVolume("data"), Command: command("sleep", "1h")}))(t)
	id := string(sb.ID)
	v := h.has("data", sb.ID)
	if m := sb.Spec.Volume; m == nil || *m != (caisson.VolumeMount{ID: v.ID, Name: "data", Target: "/workspace"}) || sb.Spec.WorkspaceAt != "" || len(sb.Spec.Mounts) > 0 {
		t.Errorf("got %+v", sb.Spec)
	}
	h.fill(sb.ID, "/workspace/made", "7")
	if info, err := os.Stat(filepath.Join(w.dir, "volumes", string(v.ID), "data/made")); err != nil || info.Size() != 7 {
		t.Errorf("the volume has %v, %v", info, err)
	}
	for _, change := range []func(context.Context, string) (*caisson.Sandbox, error){
		w.Sandboxes().Pause, w.Sandboxes().Resume, w.Sandboxes().Suspend, w.Sandboxes().Wake,
		func(ctx context.Context, ref string) (*caisson.Sandbox, error) {
			return w.Sandboxes().Stop(ctx, ref, 0)
		},
		w.Sandboxes().Start,
	} {
		if sb := got(change(w.ctx(), id))(t); sb.State != caisson.Running {
			w.read(id, "/etc/hostname") // a stand-in does not use the volume
			continue
		}
		if s := h.size(sb.ID, "/workspace/made"); s != "7" {
			t.Errorf("the file has %q bytes", s)
		}
	}
	w.restart()
	must(t, h.core.Reconcile(t.Context()))
	h.has("data", sb.ID)
	_, err := w.Sandboxes().Create(w.ctx(), caisson.CreateRequest{Workspace: inVolume("data")})
	if wantKind(t, err, caisson.Conflict); caisson.FieldOf(err) != "workspace.source" {
		t.Errorf("a second sandbox: %v", err)
	}
	w.holds(sb.ID)
	other := got(w.Sandboxes().Create(w.as("other"), caisson.CreateRequest{Workspace: inVolume("data")}))(t)
	if other.Spec.Volume.ID == v.ID {
		t.Error("another account has the volume")
	}
	must(t, w.Sandboxes().Remove(w.as("other"), string(other.ID)))

	h.fail = "leave"
	if err := w.Sandboxes().Remove(w.ctx(), id); err == nil {
		t.Error("a sandbox was removed that has a volume")
	}
	must(t, w.Sandboxes().Remove(w.ctx(), id))
	h.has("data", "")
	at := inVolume(string(v.ID)) // by id, with another mount point
	at.Target = "/srv/data/"
	sb = w.create(caisson.CreateRequest{Workspace: at, NoStart: true})
	h.has("data", sb.ID) // even if it does not run
	got(w.Sandboxes().Start(w.ctx(), string(sb.ID)))(t)
	if s := h.size(sb.ID, "/srv/data/made"); s != "7" {
		t.Errorf("in the next sandbox the file has %q bytes", s)
	}
}

func TestVolumeRefused(t *testing.T) {
	t.Parallel()
	w, h := withVolumes(t)
	for _, c := range []struct {
		name   string
		change func(*caisson.CreateRequest)
		field  string
	}{
		{"no name", func(r *caisson.CreateRequest) { r.Workspace.Source = "" }, "workspace.source"},
		{"no path", func(r *caisson.CreateRequest) { r.Workspace.Source = "../x" }, "workspace.source"},
		{"mode", func(r *caisson.CreateRequest) { r.Workspace.Mode = caisson.SyncSecure }, "workspace.mode"},
		{"show", func(r *caisson.CreateRequest) { r.Workspace.Show = []string{".env"} }, "workspace.show"},
		{"over proc", func(r *caisson.CreateRequest) { r.Workspace.Target = "/proc/1" }, "workspace.target"},
		{"a mount's place", func(r *caisson.CreateRequest) {
			r.Mounts, r.Directories = []caisson.Mount{{Source: "x", Target: "/workspace/"}}, []caisson.Handle{&handle{File: got(os.Open(project(t)))(t)}}
		}, "workspace.target"},
		{"with a placeholder", func(r *caisson.CreateRequest) { r.Placeholder = "/x" }, "placeholder"},
		{"with a directory", func(r *caisson.CreateRequest) { r.Workspace.Directory = &handle{File: got(os.Open(project(t)))(t)} }, "workspace"},
	} {
		r := caisson.CreateRequest{Workspace: inVolume("data")}
		c.change(&r)
		_, err := w.Sandboxes().Create(w.ctx(), r)
		wantKind(t, err, caisson.Invalid)
		if f := caisson.FieldOf(err); f != c.field {
			t.Errorf("%s: the error is about the field %q, want %q: %v", c.name, f, c.field, err)
		}
		if d := r.Workspace.Directory; d != nil && !d.(*handle).closed {
			t.Errorf("%s: the descriptor was not closed", c.name)
		}
	}
	_, err := w.Sandboxes().Create(w.ctx(), caisson.CreateRequest{Workspace: inVolume("vl-aaaaaaaaaaaaaaaa")})
	wantKind(t, err, caisson.NotFound)
	w.holds()
	if list, _, err := h.core.Volumes().ListVolumes(w.ctx(), caisson.Filter{}); err != nil || len(list) > 0 {
		t.Errorf("there are volumes %v, %v", list, err)
	}
	sb := w.create(caisson.CreateRequest{Workspace: inVolume("data")})
	got(w.Sandboxes().Stop(w.ctx(), string(sb.ID), 0))(t)
	must(t, w.Close())
	w.config.Volumes = nil
	w.boot()
	_, err = w.Sandboxes().Create(w.ctx(), caisson.CreateRequest{Workspace: inVolume("data")})
	wantKind(t, err, caisson.Invalid)
	_, err = w.Sandboxes().Start(w.ctx(), string(sb.ID))
	wantKind(t, err, caisson.Unavailable)
}

// TestFailedCreateLeavesItsVolume: a sandbox that could not be created detaches its volume, but not a volume of another
// sandbox that it could not attach.
func TestFailedCreateLeavesItsVolume(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*world, *volumeHolds){
		"hold":      func(_ *world, h *volumeHolds) { h.fail = "hold" },
		"open":      func(_ *world, h *volumeHolds) { h.fail = "open" },
		"runtime":   func(w *world, _ *volumeHolds) { w.runtime.FailNext(fake.OpCreate, errInjected) },
		"wire":      func(w *world, _ *volumeHolds) { w.wires.failNext(errInjected) },
		"note":      func(w *world, _ *volumeHolds) { w.store.failOn("update", 1) },
		"last note": func(w *world, _ *volumeHolds) { w.store.failOn("update", 2) },
	} {
		t.Run(name, func(t *testing.T) {
			w, h := withVolumes(t)
			got(h.core.Volumes().CreateVolume(w.ctx(), caisson.VolumeRequest{Name: "data"}))(t)
			spoil(w, h)
			if _, err := w.Sandboxes().Create(w.ctx(), caisson.CreateRequest{Workspace: inVolume("data")}); err == nil {
				t.Error("it was made")
			}
			w.holds()
			h.has("data", "")
			h.has("data", w.create(caisson.CreateRequest{Workspace: inVolume("data")}).ID)
		})
	}
}

// TestCrashDuringCreateLeavesItsVolume: a crash before the sandbox's row contains the volume, and after.
func TestCrashDuringCreateLeavesItsVolume(t *testing.T) {
	t.Parallel()
	for name, known := range map[string]bool{"before": false, "after": true} {
		t.Run(name, func(t *testing.T) {
			w, h := withVolumes(t)
			sb := w.create(caisson.CreateRequest{Workspace: inVolume("data")})
			got(w.store.Store.Sandboxes().Update(w.ctx(), caisson.AllAccounts(), string(sb.ID), func(s *caisson.Sandbox) error {
				s.State = caisson.Creating
				if !known {
					s.Spec.Volume = nil
				}
				return nil
			}))(t)
			w.restart()
			must(t, h.core.Reconcile(t.Context()))
			w.holds()
			h.has("data", "")
		})
	}
}

// TestVolumeForks: forks of a snapshot with a placeholder can have volumes, and a volume is not forked with its
// sandbox.
func TestVolumeForks(t *testing.T) {
	t.Parallel()
	w, h := withVolumes(t)
	warm := w.create(caisson.CreateRequest{Placeholder: "/workspace", Command: command("counter", "/count"), Workdir: "/"})
	n := w.counts(warm.ID, 30)
	snap := got(w.Snapshots().Snapshot(w.ctx(), string(warm.ID), caisson.SnapshotRequest{}))(t)
	must(t, w.Sandboxes().Remove(w.ctx(), string(warm.ID)))

	fork := got(w.Snapshots().Fork(w.as("local"), string(snap.ID), caisson.ForkRequest{Workspace: inVolume("data")}))(t)[0]
	v := h.has("data", fork.ID)
	if fork.Spec.Volume == nil || fork.Spec.Volume.ID != v.ID || fork.Spec.WorkspaceAt != "" {
		t.Errorf("the fork is %+v", fork.Spec)
	}
	if m := w.counts(fork.ID, 1); m < n {
		t.Errorf("the fork's counter is at %d, its origin's was at %d", m, n)
	}
	h.fill(fork.ID, "/workspace/made", "7")
	got(w.Sandboxes().Pause(w.ctx(), string(fork.ID)))(t)
	got(w.Sandboxes().Resume(w.ctx(), string(fork.ID)))(t)
	if s := h.size(fork.ID, "/workspace/made"); s != "7" {
		t.Errorf("after a pause the file has %q bytes", s)
	}
	for name, c := range map[string]struct {
		req  caisson.ForkRequest
		kind caisson.Kind
	}{
		"held":      {caisson.ForkRequest{Workspace: inVolume("data")}, caisson.Conflict},
		"elsewhere": {caisson.ForkRequest{Workspace: &caisson.WorkspaceRequest{Kind: "volume", Source: "two", Target: "/srv"}}, caisson.Invalid},
		"several":   {caisson.ForkRequest{Workspace: inVolume("two"), Count: 2}, caisson.Invalid},
	} {
		if _, err := w.Snapshots().Fork(w.ctx(), string(snap.ID), c.req); caisson.KindOf(err) != c.kind {
			t.Errorf("%s: %v", name, err)
		}
	}
	w.runtime.FailNext(fake.OpRestore, errInjected)
	if _, err := w.Snapshots().Fork(w.ctx(), string(snap.ID), caisson.ForkRequest{Workspace: inVolume("two")}); err == nil {
		t.Error("a fork succeeded whose restore had failed")
	}
	h.has("two", "")
	w.holds(fork.ID)

	// A sandbox with a volume cannot be forked or captured with its memory, in any state; its files can, without the
	// volume.
	for _, req := range []*caisson.WorkspaceRequest{nil, inVolume("two")} {
		_, err := w.Snapshots().Fork(w.ctx(), string(fork.ID), caisson.ForkRequest{Workspace: req})
		wantKind(t, err, caisson.Conflict)
	}
	_, err := w.Snapshots().Snapshot(w.ctx(), string(fork.ID), caisson.SnapshotRequest{})
	wantKind(t, err, caisson.Conflict)
	w.write(string(fork.ID), "/root/own", "own")
	files := got(w.Snapshots().Snapshot(w.ctx(), string(fork.ID), caisson.SnapshotRequest{FilesOnly: true}))(t)
	if files.Spec.Volume != nil {
		t.Errorf("the snapshot has volume %+v", files.Spec.Volume)
	}
	plain := w.create(caisson.CreateRequest{Snapshot: files.ID})
	with := w.create(caisson.CreateRequest{Snapshot: files.ID, Workspace: inVolume("two")})
	h.has("two", with.ID)
	for _, sb := range []*caisson.Sandbox{plain, with} {
		if own, made := w.read(string(sb.ID), "/root/own"), h.size(sb.ID, "/workspace/made"); own != "own" || made != "" {
			t.Errorf("the fork %+v has %q of its own, and %q bytes of the volume's", sb.Spec, own, made)
		}
	}
	got(w.Sandboxes().Stop(w.ctx(), string(fork.ID), 0))(t)
	again := got(w.Snapshots().Fork(w.ctx(), string(fork.ID), caisson.ForkRequest{}))(t)[0]
	if again.Spec.Volume != nil {
		t.Errorf("the fork of what is stopped is %+v", again.Spec)
	}
	for _, sb := range []*caisson.Sandbox{plain, with, again, fork} {
		must(t, w.Sandboxes().Remove(w.ctx(), string(sb.ID)))
	}
	h.has("data", "")
	h.has("two", "")
	w.holds()
}

// TestVolumeNotFromThePool: pooled sandboxes have no volume, and a request with one does not get them.
func TestVolumeNotFromThePool(t *testing.T) {
	t.Parallel()
	w, h := withVolumes(t)
	got(w.Templates().PutTemplate(w.ctx(), caisson.Template{Name: "t", Image: "host", Pool: 1}))(t)
	pooled := func() (ids []caisson.ID) {
		list, _, err := w.store.Store.Sandboxes().List(w.ctx(), caisson.AllAccounts(), caisson.Filter{})
		must(t, err)
		for _, sb := range list {
			if sb.Pooled && sb.State == caisson.Running {
				ids = append(ids, sb.ID)
			}
		}
		return ids
	}
	waitFor(t, func() bool { return len(pooled()) == 1 })
	ready := pooled()
	sb := w.create(caisson.CreateRequest{Template: "t", Workspace: inVolume("data")})
	if slices.Contains(ready, sb.ID) {
		t.Error("it came from the pool")
	}
	h.has("data", sb.ID)
}
