package sandboxes_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/sandboxes"
	"github.com/caisson-dev/caisson/internal/hostdir/hostdirtest"
	"github.com/caisson-dev/caisson/runtime/fake"
)

func TestResolve(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	got(w.Templates().PutTemplate(w.ctx(), caisson.Template{
		Name: "tpl", Image: "debian:12", Env: map[string]string{"LANG": "en", "A": "tpl"}, User: "agent", Workdir: "/tmp",
		Command: command("sleep", "1h"), Resources: caisson.Resources{Memory: 1 << 30, PIDs: 50},
		TTL: caisson.Duration(time.Hour), HardTTL: caisson.Duration(2 * time.Hour),
	}))(t)
	got(w.Templates().PutTemplate(w.ctx(), caisson.Template{Name: "bare", Image: "debian:12"}))(t)
	defaults := caisson.DefaultResources()
	for _, c := range []struct {
		name string
		req  caisson.CreateRequest
		want caisson.Spec
	}{
		{"host", caisson.CreateRequest{}, caisson.Spec{
			Image: "host", Workdir: "/root", User: "0:0", Resources: defaults, Env: map[string]string{"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
		}},
		{"image's own", caisson.CreateRequest{Template: "bare"}, caisson.Spec{
			Image: "docker.io/library/debian:12", Workdir: "/root", User: "1234", Resources: defaults,
			Env: map[string]string{"PATH": "/usr/bin:/bin", "LANG": "C"},
		}},
		{"template", caisson.CreateRequest{Template: "tpl"}, caisson.Spec{
			Image: "docker.io/library/debian:12", Workdir: "/tmp", User: "agent", Command: command("sleep", "1h"),
			Resources: caisson.Resources{CPUs: 2, Memory: 1 << 30, PIDs: 50, Disk: defaults.Disk, OpenFiles: defaults.OpenFiles},
			Env:       map[string]string{"PATH": "/usr/bin:/bin", "LANG": "en", "A": "tpl"},
			TTL:       caisson.Duration(time.Hour), HardTTL: caisson.Duration(2 * time.Hour),
		}},
		{"request", caisson.CreateRequest{
			Template: "tpl", Env: map[string]string{"A": "req", "B": ""}, User: "0", Workdir: "/", Command: command("sleep", "2h"),
			Resources: caisson.Resources{PIDs: 60, CPUs: 0.5}, TTL: ptr(caisson.Duration(0)), HardTTL: ptr(caisson.Duration(time.Minute)),
		}, caisson.Spec{
			Image: "docker.io/library/debian:12", Workdir: "/", User: "0", Command: command("sleep", "2h"),
			Resources: caisson.Resources{CPUs: 0.5, Memory: 1 << 30, PIDs: 60, Disk: defaults.Disk, OpenFiles: defaults.OpenFiles},
			Env:       map[string]string{"PATH": "/usr/bin:/bin", "LANG": "en", "A": "req", "B": ""}, HardTTL: caisson.Duration(time.Minute),
		}},
		{"image instead", caisson.CreateRequest{Template: "tpl", Image: "alpine:3", Command: command("sleep", "1h"), User: "0"}, caisson.Spec{
			Image: "docker.io/library/alpine:3", Workdir: "/tmp", User: "0", Command: command("sleep", "1h"),
			Resources: caisson.Resources{CPUs: 2, Memory: 1 << 30, PIDs: 50, Disk: defaults.Disk, OpenFiles: defaults.OpenFiles},
			Env:       map[string]string{"PATH": "/bin", "LANG": "en", "A": "tpl"},
			TTL:       caisson.Duration(time.Hour), HardTTL: caisson.Duration(2 * time.Hour),
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := time.Now()
			sb := got(w.Sandboxes().Create(w.ctx(), c.req))(t)
			s := sb.Spec
			if !maps.Equal(s.Env, c.want.Env) || !slices.Equal(s.Command, c.want.Command) || s.Workdir != c.want.Workdir || s.User != c.want.User ||
				s.Resources != c.want.Resources || s.Image != c.want.Image || s.TTL != c.want.TTL || s.HardTTL != c.want.HardTTL || s.Digest == "" {
				t.Errorf("got  %+v\nwant %+v", s, c.want)
			}
			for name, at := range map[string]struct {
				at  *time.Time
				ttl caisson.Duration
			}{"pauseAt": {sb.PauseAt, s.TTL}, "removeAt": {sb.RemoveAt, s.HardTTL}} {
				if (at.at != nil) != (at.ttl != 0) || (at.at != nil && at.at.Before(before.Add(time.Duration(at.ttl)))) {
					t.Errorf("%s is %v with a ttl of %v", name, at.at, at.ttl)
				}
			}
			if sb.State != caisson.Running || sb.Account != caisson.LocalAccount || sb.Node != "here" || sb.Build != "b1" {
				t.Errorf("got %+v", sb)
			}
		})
	}
}

func TestCreateRefused(t *testing.T) {
	t.Parallel()
	w := plan{wires: true}.world(t)
	long := strings.Repeat("x", 2<<20)
	many := map[string]string{}
	for i := range 65 {
		many["l"+strconv.Itoa(i)] = ""
	}
	kept := w.create(caisson.CreateRequest{Name: "taken"})
	got(w.Templates().PutTemplate(w.ctx(), caisson.Template{Name: "unbuilt", Image: "host", Setup: []caisson.SetupStep{{Run: command("echo")}}}))(t)
	mount := func(target string) []caisson.Mount { return []caisson.Mount{{Source: "/x", Target: target}} }
	for _, c := range []struct {
		name  string
		req   caisson.CreateRequest
		kind  caisson.Kind
		field string
		says  string
	}{
		{"name", caisson.CreateRequest{Name: "Not A Name"}, caisson.Invalid, "name", ""},
		{"name like an id", caisson.CreateRequest{Name: string(kept.ID)}, caisson.Invalid, "name", "looks like an id"},
		{"name taken", caisson.CreateRequest{Name: "taken"}, caisson.Conflict, "", ""},
		{"no program", caisson.CreateRequest{Command: []string{"", "x"}}, caisson.Invalid, "command", ""},
		{"NUL in command", caisson.CreateRequest{Command: []string{"a\x00"}}, caisson.Invalid, "command", ""},
		{"long command", caisson.CreateRequest{Command: []string{long}}, caisson.Invalid, "command", ""},
		{"variable", caisson.CreateRequest{Env: map[string]string{"A=B": ""}}, caisson.Invalid, "env", ""},
		{"NUL in variable", caisson.CreateRequest{Env: map[string]string{"A": "\x00"}}, caisson.Invalid, "env.A", ""},
		{"long variable", caisson.CreateRequest{Env: map[string]string{"A": long}}, caisson.Invalid, "env", ""},
		{"workdir", caisson.CreateRequest{Workdir: "tmp"}, caisson.Invalid, "workdir", ""},
		{"user", caisson.CreateRequest{User: "a b"}, caisson.Invalid, "user", ""},
		{"option as user", caisson.CreateRequest{User: "--user"}, caisson.Invalid, "user", ""},
		{"label", caisson.CreateRequest{Labels: map[string]string{" ": ""}}, caisson.Invalid, "labels", ""},
		{"long label", caisson.CreateRequest{Labels: map[string]string{"a": long}}, caisson.Invalid, "labels.a", ""},
		{"labels", caisson.CreateRequest{Labels: many}, caisson.Invalid, "labels", ""},
		{"cpus", caisson.CreateRequest{Resources: caisson.Resources{CPUs: -1}}, caisson.Invalid, "resources.cpus", ""},
		{"memory", caisson.CreateRequest{Resources: caisson.Resources{Memory: 1}}, caisson.Invalid, "resources.memory", ""},
		{"disk", caisson.CreateRequest{Resources: caisson.Resources{Disk: 1}}, caisson.Invalid, "resources.disk", ""},
		{"pids", caisson.CreateRequest{Resources: caisson.Resources{PIDs: 1}}, caisson.Invalid, "resources.pids", ""},
		{"open files", caisson.CreateRequest{Resources: caisson.Resources{OpenFiles: 1}}, caisson.Invalid, "resources.openFiles", ""},
		{"ttl", caisson.CreateRequest{TTL: ptr(caisson.Duration(-1))}, caisson.Invalid, "ttl", ""},
		{"hard ttl", caisson.CreateRequest{HardTTL: ptr(caisson.Duration(-1))}, caisson.Invalid, "hardTtl", ""},
		{"mount at root", caisson.CreateRequest{Mounts: mount("/x/..")}, caisson.Invalid, "mounts", ""},
		{"relative mount", caisson.CreateRequest{Mounts: mount("x")}, caisson.Invalid, "mounts", ""},
		{"mount over proc", caisson.CreateRequest{Mounts: mount("/tmp/../proc/x")}, caisson.Invalid, "mounts", "/proc"},
		{"mount over our own", caisson.CreateRequest{Mounts: mount("/.caisson")}, caisson.Invalid, "mounts", "/.caisson"},
		{"mounted twice", caisson.CreateRequest{Mounts: append(mount("/a"), mount("/a/")...)}, caisson.Invalid, "mounts", "twice"},
		{"mount without directory", caisson.CreateRequest{Mounts: mount("/a")}, caisson.Invalid, "mounts", ""},
		{"snapshot and image", caisson.CreateRequest{Snapshot: "sn-aaaaaaaaaaaaaaaa", Image: "host"}, caisson.Invalid, "snapshot", ""},
		{"snapshot not started", caisson.CreateRequest{Snapshot: "sn-aaaaaaaaaaaaaaaa", NoStart: true}, caisson.Invalid, "noStart", ""},
		{"unknown snapshot", caisson.CreateRequest{Snapshot: "sn-aaaaaaaaaaaaaaaa"}, caisson.NotFound, "", ""},
		{"unknown template", caisson.CreateRequest{Template: "nothing"}, caisson.NotFound, "", "caisson template ls"},
		{"unbuilt template", caisson.CreateRequest{Template: "unbuilt"}, caisson.Conflict, "", "run caisson template build unbuilt"},
		{"malformed image", caisson.CreateRequest{Image: "NOT GOOD"}, caisson.Invalid, "image", ""},
		{"unknown image", caisson.CreateRequest{Image: "nothing:1"}, caisson.NotFound, "", ""},
		{"image of a path", caisson.CreateRequest{Image: "dir:/nowhere"}, caisson.NotFound, "", "caisson image pull"},
		{"unknown command", caisson.CreateRequest{Command: []string{"/nowhere"}}, caisson.Invalid, "command", ""},
		{"unknown user", caisson.CreateRequest{User: "nobody-here", Command: command("sleep", "1h")}, caisson.Invalid, "", ""},
		{"no workdir", caisson.CreateRequest{Workdir: "/nowhere", Command: command("sleep", "1h")}, caisson.Invalid, "workdir", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := w.Sandboxes().Create(w.ctx(), c.req)
			wantKind(t, err, c.kind)
			if c.field != "" && caisson.FieldOf(err) != c.field {
				t.Errorf("the field is %q, want %q: %v", caisson.FieldOf(err), c.field, err)
			}
			if !strings.Contains(caisson.MessageOf(err), c.says) {
				t.Errorf("%q does not say %q", caisson.MessageOf(err), c.says)
			}
			w.holds(kept.ID)
		})
	}
	elsewhere := t.TempDir()
	_, err := w.Sandboxes().Create(w.ctx(), caisson.CreateRequest{
		Mounts: []caisson.Mount{{Source: elsewhere, Target: "/a"}}, Directories: []caisson.Handle{hostdirtest.Open(t, elsewhere, true)},
	})
	if wantKind(t, err, caisson.Invalid); !strings.Contains(caisson.MessageOf(err), "another mount namespace") {
		t.Errorf("a directory that was opened elsewhere: %v", err)
	}
	w.holds(kept.ID)
	if _, err := w.Sandboxes().Create(t.Context(), caisson.CreateRequest{}); caisson.KindOf(err) != caisson.Unauthed {
		t.Errorf("without a caller: %v", err)
	}
	if n := w.images.Held(); n != 0 {
		t.Errorf("%d holds on layers are left", n)
	}
}

// TestCreateUndone: creations that fail, or whose request is cancelled, at each of their steps.
func TestCreateUndone(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		spoil func(w *world, cancel func())
	}{
		{"gone before", func(w *world, cancel func()) { cancel() }},
		{"insert", func(w *world, _ func()) { w.store.failOn("insert", 1) }},
		{"wire", func(w *world, _ func()) { w.wires.failNext(errInjected) }},
		{"runtime", func(w *world, _ func()) { w.runtime.FailNext(fake.OpCreate, errInjected) }},
		{"last note", func(w *world, _ func()) { w.store.failOn("update", 1) }},
		{"gone after insert", func(w *world, cancel func()) { w.store.call("inserted", cancel) }},
		{"gone before the note", func(w *world, cancel func()) { w.store.call("update", cancel) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := plan{wires: true}.world(t)
			ctx, cancel := context.WithCancel(w.ctx())
			defer cancel()
			c.spoil(w, cancel)
			_, err := w.Sandboxes().Create(ctx, caisson.CreateRequest{Name: "x", Command: command("sleep", "1h")})
			if !errors.Is(err, errInjected) && !errors.Is(err, context.Canceled) {
				t.Errorf("error is %v", err)
			}
			w.holds()
			w.store.call("", nil)
			w.create(caisson.CreateRequest{Name: "x"}) // the name is free
		})
	}
}

// TestHostLacks: if a sandbox cannot be started for no reason of its own, the error says what the host lacks.
func TestHostLacks(t *testing.T) {
	t.Parallel()
	w := plan{wires: true, lacks: func() error { return caisson.Errorf(caisson.Unavailable, "there is no TAP") }}.world(t)
	w.wires.failNext(errInjected)
	_, err := w.Sandboxes().Create(w.ctx(), caisson.CreateRequest{})
	if !errors.Is(err, errInjected) || caisson.KindOf(err) != caisson.Unavailable || caisson.MessageOf(err) != "there is no TAP" {
		t.Errorf("error is %v", err)
	}
	w.runtime.FailNext(fake.OpCreate, caisson.Errorf(caisson.Conflict, "its own"))
	if _, err := w.Sandboxes().Create(w.ctx(), caisson.CreateRequest{}); caisson.MessageOf(err) != "its own" {
		t.Errorf("error is %v", err)
	}
	w.holds()
}

func TestNoStart(t *testing.T) {
	t.Parallel()
	w := plan{wires: true}.world(t)
	sb := w.create(caisson.CreateRequest{NoStart: true, TTL: ptr(caisson.Duration(time.Hour)), Command: command("counter", "/count")})
	if sb.State != caisson.Created || sb.PauseAt != nil {
		t.Errorf("state %s, pauseAt %v", sb.State, sb.PauseAt)
	}
	if len(w.running()) != 0 {
		t.Error("it runs")
	}
	sb = got(w.Sandboxes().Start(w.ctx(), string(sb.ID)))(t)
	if sb.State != caisson.Running || sb.PauseAt == nil {
		t.Errorf("state %s, pauseAt %v", sb.State, sb.PauseAt)
	}
	w.counts(sb.ID, 1)
}

func TestAdmission(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		limits sandboxes.Limits
		fit    int
	}{
		{"sandboxes", sandboxes.Limits{MaxSandboxes: 3}, 3},
		{"memory", sandboxes.Limits{MemoryReserve: 1 << 60}, 0},
		{"processes", sandboxes.Limits{PIDsReserve: 1 << 40}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := plan{limits: c.limits, wires: true}.world(t)
			var wg sync.WaitGroup
			var mu sync.Mutex
			var ids []caisson.ID
			for range 12 {
				wg.Go(func() {
					sb, err := w.Sandboxes().Create(w.ctx(), caisson.CreateRequest{})
					mu.Lock()
					defer mu.Unlock()
					if err == nil {
						ids = append(ids, sb.ID)
					} else {
						wantKind(t, err, caisson.Exhausted)
					}
				})
			}
			wg.Wait()
			if len(ids) != c.fit {
				t.Errorf("%d at once were let in, want %d", len(ids), c.fit)
			}
			w.holds(ids...)
			if c.fit == 0 {
				return
			}
			_, err := w.Snapshots().Fork(w.ctx(), string(ids[0]), caisson.ForkRequest{})
			wantKind(t, err, caisson.Exhausted)
			got(w.Sandboxes().Pause(w.ctx(), string(ids[0])))(t)
			w.create(caisson.CreateRequest{})
			_, err = w.Sandboxes().Resume(w.ctx(), string(ids[0]))
			wantKind(t, err, caisson.Exhausted)
			w.wantState(ids[0], caisson.Paused)
			_, err = w.Files().ListFiles(w.ctx(), string(ids[0]), "/")
			wantKind(t, err, caisson.Exhausted)
		})
	}
}

func TestMounts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := filepath.Join(t.TempDir(), "project")
	must(t, os.Mkdir(dir, 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "a"), []byte("mounted"), 0o644))
	open := func(path string) *handle { return &handle{File: got(os.Open(path))(t)} }
	req := func(h caisson.Handle) caisson.CreateRequest {
		return caisson.CreateRequest{
			Mounts: []caisson.Mount{{Source: "project", Target: "/srv"}}, Directories: []caisson.Handle{h},
		}
	}
	refused := []struct {
		name string
		ctx  context.Context
		path string
		kind caisson.Kind
	}{
		{"with a token", w.as("local"), dir, caisson.Denied},
		{"by itself", w.hostWork(), dir, caisson.Denied},
		{"a file", w.ctx(), filepath.Join(dir, "a"), caisson.Invalid},
		{"our own data", w.ctx(), w.dir, caisson.Denied},
		{"in our own data", w.ctx(), filepath.Join(w.dir, "sandboxes"), caisson.Denied},
		{"above our own data", w.ctx(), filepath.Dir(w.dir), caisson.Denied},
		{"root", w.ctx(), "/", caisson.Denied},
	}
	for _, c := range refused {
		t.Run(c.name, func(t *testing.T) {
			h := open(c.path)
			_, err := w.Sandboxes().Create(c.ctx, req(h))
			wantKind(t, err, c.kind)
			if !h.closed {
				t.Error("the descriptor was not closed")
			}
			w.holds()
		})
	}
	h := open(dir)
	sb := w.create(req(h))
	if !h.closed {
		t.Error("the descriptor was not closed")
	}
	id, l := string(sb.ID), w.Sandboxes()
	got(l.Stop(w.ctx(), id, 0))(t)
	must(t, os.Rename(dir, dir+".old"))
	_, err := l.Start(w.ctx(), id)
	wantKind(t, err, caisson.Conflict)
	must(t, os.Mkdir(dir, 0o755))
	_, err = l.Start(w.ctx(), id)
	wantKind(t, err, caisson.Conflict)
	if !strings.Contains(caisson.MessageOf(err), "no longer the directory") {
		t.Errorf("message %q", caisson.MessageOf(err))
	}
	must(t, os.Remove(dir))
	must(t, os.Symlink(dir+".old", dir))
	_, err = l.Start(w.ctx(), id)
	wantKind(t, err, caisson.Conflict)
	w.wantState(sb.ID, caisson.Stopped)
	w.holds()
	must(t, os.Remove(dir))
	must(t, os.Rename(dir+".old", dir))
	got(l.Start(w.ctx(), id))(t)
	_, err = w.Snapshots().Fork(w.ctx(), id, caisson.ForkRequest{})
	wantKind(t, err, caisson.Conflict)
	w.holds(sb.ID)
}

// handle records that it has been closed.
type handle struct {
	*os.File
	closed bool
}

func (h *handle) Close() error {
	h.closed = true
	return h.File.Close()
}
