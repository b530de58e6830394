package sandboxes_test

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/internal/timing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/sandboxes"
	"github.com/caisson-dev/caisson/runtime/fake"
)

func TestWorkspace(t *testing.T) {
	t.Parallel()
	w, l := withLayers(t)
	dir := project(t, "task")
	req, h := asking(t, dir)
	var spent int
	ctx := timing.WithTimer(w.ctx(), func(what string, _ time.Duration) {
		if what == "workspace" {
			spent++
		}
	})
	sb := got(w.Sandboxes().Create(ctx, caisson.CreateRequest{Workspace: req, Command: command("sleep", "1h")}))(t)
	id := string(sb.ID)
	if s := l.get(sb.Spec.Workspace); s.sandbox != sb.ID || s.opened != 1 || s.req.Kind != caisson.WorkspaceOverlay || s.req.Mode != caisson.SyncSecure || s.req.Target != "/workspace" {
		t.Errorf("the workspace is %+v", s)
	}
	if sb.Spec.WorkspaceAt != "/workspace" || !h.closed || spent == 0 || req.Target != "" {
		t.Errorf("got %+v, descriptor closed: %v, spent: %d, the caller's request is %+v", sb.Spec, h.closed, spent, req)
	}
	if s := w.read(id, "/workspace/task"); s != "task of the host" {
		t.Errorf("the host's file holds %q", s)
	}
	w.write(id, "/workspace/task", "changed")
	upper := l.path(sb.Spec.Workspace, "upper/task")
	waitFor(t, func() bool { b, _ := os.ReadFile(upper); return string(b) == "changed" })
	for _, change := range []func(context.Context, string) (*caisson.Sandbox, error){
		w.Sandboxes().Pause, w.Sandboxes().Resume, w.Sandboxes().Suspend, w.Sandboxes().Wake,
		func(ctx context.Context, ref string) (*caisson.Sandbox, error) {
			return w.Sandboxes().Stop(ctx, ref, 0)
		},
		w.Sandboxes().Start,
	} {
		if sb := got(change(w.ctx(), id))(t); sb.State != caisson.Running {
			w.read(id, "/etc/hostname") // a stand-in does not use the workspace
			continue
		}
		if s := w.read(id, "/workspace/task"); s != "changed" {
			t.Errorf("the file holds %q", s)
		}
	}
	if s := l.get(sb.Spec.Workspace); s.opened != 3 || s.left != 0 {
		t.Errorf("the workspace is %+v", s)
	}
	w.restart()
	if s := w.read(id, "/workspace/task"); s != "changed" {
		t.Errorf("under another daemon the file holds %q", s)
	}
	l.failNext("leave")
	if err := w.Sandboxes().Remove(w.ctx(), id); err == nil {
		t.Error("a sandbox was removed whose workspace does not know it")
	}
	must(t, w.Sandboxes().Remove(w.ctx(), id))
	l.settled()
	w.holds()
	if b, err := os.ReadFile(filepath.Join(dir, "task")); err != nil || string(b) != "task of the host" {
		t.Errorf("the host's file is %q, %v", b, err)
	}
}

func TestWorkspaceRefused(t *testing.T) {
	t.Parallel()
	w, _ := withLayers(t)
	for _, c := range []struct {
		name   string
		ctx    context.Context
		dir    string
		change func(*caisson.CreateRequest)
		kind   caisson.Kind
		field  string
	}{
		{"with a token", w.as("local"), "", func(*caisson.CreateRequest) {}, caisson.Denied, ""},
		{"by itself", w.ownWork(), "", func(*caisson.CreateRequest) {}, caisson.Denied, ""},
		{"our own data", w.ctx(), w.dir, func(*caisson.CreateRequest) {}, caisson.Denied, ""},
		{"above our own data", w.ctx(), filepath.Dir(w.dir), func(*caisson.CreateRequest) {}, caisson.Denied, ""},
		{"direct above our own data", w.ctx(), filepath.Dir(w.dir), func(r *caisson.CreateRequest) { r.Workspace.Kind = "direct" }, caisson.Denied, ""},
		{"no directory", w.ctx(), "", func(r *caisson.CreateRequest) { r.Workspace.Directory.Close(); r.Workspace.Directory = nil }, caisson.Invalid, "workspace"},
		{"over proc", w.ctx(), "", func(r *caisson.CreateRequest) { r.Workspace.Target = "/a/../proc" }, caisson.Invalid, "workspace.target"},
		{"relative", w.ctx(), "", func(r *caisson.CreateRequest) { r.Workspace.Target = "a" }, caisson.Invalid, "workspace.target"},
		{"kind", w.ctx(), "", func(r *caisson.CreateRequest) { r.Workspace.Kind = "other" }, caisson.Invalid, "workspace.kind"},
		{"mode", w.ctx(), "", func(r *caisson.CreateRequest) { r.Workspace.Mode = "x" }, caisson.Invalid, "workspace.mode"},
		{"direct that is secure", w.ctx(), "", func(r *caisson.CreateRequest) { r.Workspace.Kind, r.Workspace.Mode = "direct", "secure" }, caisson.Invalid, "workspace.mode"},
		{"overlay that is unsafe", w.ctx(), "", func(r *caisson.CreateRequest) { r.Workspace.Kind, r.Workspace.Mode = "overlay", "yolo-unsafe" }, caisson.Invalid, "workspace.mode"},
		{"with a placeholder", w.ctx(), "", func(r *caisson.CreateRequest) { r.Placeholder = "/x" }, caisson.Invalid, "placeholder"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := c.dir
			if dir == "" {
				dir = project(t)
			}
			space, h := asking(t, dir)
			r := caisson.CreateRequest{Workspace: space}
			c.change(&r)
			_, err := w.Sandboxes().Create(c.ctx, r)
			wantKind(t, err, c.kind)
			if f := caisson.FieldOf(err); f != c.field {
				t.Errorf("the error is about the field %q, want %q: %v", f, c.field, err)
			}
			if !h.closed {
				t.Error("the descriptor was not closed")
			}
			w.holds()
		})
	}
	space, _ := asking(t, project(t))
	space.Target = "/srv/"
	mount := &handle{File: got(os.Open(project(t)))(t)}
	_, err := w.Sandboxes().Create(w.ctx(), caisson.CreateRequest{
		Workspace: space, Mounts: []caisson.Mount{{Source: "x", Target: "/srv"}}, Directories: []caisson.Handle{mount},
	})
	wantKind(t, err, caisson.Invalid)

	must(t, w.Close())
	w.config.Workspaces = nil
	w.boot()
	space, h := asking(t, project(t))
	_, err = w.Sandboxes().Create(w.ctx(), caisson.CreateRequest{Workspace: space})
	if wantKind(t, err, caisson.Invalid); !h.closed {
		t.Error("the descriptor was not closed")
	}
	w.holds()
}

func TestFailedCreateLeavesItsWorkspace(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*world, *layers){
		"lay":       func(_ *world, l *layers) { l.failNext("lay") },
		"open":      func(_ *world, l *layers) { l.failNext("open") },
		"runtime":   func(w *world, _ *layers) { w.runtime.FailNext(fake.OpCreate, errInjected) },
		"wire":      func(w *world, _ *layers) { w.wires.failNext(errInjected) },
		"note":      func(w *world, _ *layers) { w.store.failOn("update", 1) },
		"last note": func(w *world, _ *layers) { w.store.failOn("update", 2) },
	} {
		t.Run(name, func(t *testing.T) {
			w, l := withLayers(t)
			spoil(w, l)
			req, h := asking(t, project(t))
			if _, err := w.Sandboxes().Create(w.ctx(), caisson.CreateRequest{Workspace: req}); err == nil || !h.closed {
				t.Errorf("error %v, descriptor closed: %v", err, h.closed)
			}
			w.holds()
			l.settled()
			if name != "lay" && len(l.spaces) != 1 {
				t.Errorf("there are %d workspaces", len(l.spaces))
			}
		})
	}
}

// TestCrashDuringCreateLeavesItsWorkspace: a daemon that finds an incomplete sandbox releases its workspace.
func TestCrashDuringCreateLeavesItsWorkspace(t *testing.T) {
	t.Parallel()
	w, l := withLayers(t)
	req, _ := asking(t, project(t))
	sb := w.create(caisson.CreateRequest{Workspace: req})
	got(w.store.Store.Sandboxes().Update(w.ctx(), caisson.AllAccounts(), string(sb.ID), func(s *caisson.Sandbox) error {
		s.State = caisson.Creating
		return nil
	}))(t)
	w.restart()
	w.holds()
	l.settled()
}

func TestDirectWorkspace(t *testing.T) {
	t.Parallel()
	w := newWorld(t) // no layers needed
	dir := project(t, "task")
	req, h := asking(t, dir)
	req.Mode = caisson.SyncUnsafe
	sb := w.create(caisson.CreateRequest{Workspace: req})
	want := []caisson.Mount{{Source: "project", Target: "/workspace", Writable: true}}
	if !slices.Equal(sb.Spec.Mounts, want) || sb.Spec.Workspace != "" || !h.closed {
		t.Errorf("got %+v, descriptor closed: %v", sb.Spec, h.closed)
	}
	events := w.record(string(sb.ID))
	if e := events[len(events)-1]; e.Type != "workspace.direct" || e.Data["source"] != "project" || e.Data["target"] != "/workspace" || e.Data["warning"] == "" {
		t.Errorf("the last event is %+v", e)
	}
	if out, status := w.run(string(sb.ID), caisson.ExecRequest{Command: command("fill", "/workspace/made", "7")}); !status.Success() {
		t.Errorf("fill: %q, %v", out, status)
	}
	if info, err := os.Stat(filepath.Join(dir, "made")); err != nil || info.Size() != 7 {
		t.Errorf("what was written is on the host %v, %v", info, err)
	}
	_, err := w.Snapshots().Fork(w.ctx(), string(sb.ID), caisson.ForkRequest{})
	wantKind(t, err, caisson.Conflict)
}

func TestDiskReserve(t *testing.T) {
	t.Parallel()
	w := plan{limits: sandboxes.Limits{DiskReserve: 1}}.world(t)
	kept := w.create(caisson.CreateRequest{})
	must(t, w.Close())
	w.config.Limits.DiskReserve = math.MaxInt64
	w.boot()
	_, err := w.Sandboxes().Create(w.ctx(), caisson.CreateRequest{})
	wantKind(t, err, caisson.Exhausted)
	w.holds(kept.ID)
}
