package sandboxes_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/events"
	"github.com/caisson-dev/caisson/daemon/sandboxes"
	"github.com/caisson-dev/caisson/daemon/volumes"
	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/internal/steptest"
)

// stepWorld is a world with all dependencies, whose steps can fail.
type stepWorld struct {
	*world
	*spoiler
	layers  *layers
	volumes *volumes.Core
	fds     []string
}

// Limits slightly above the usage of concurrent tests, so that places and memory that are not released are detected
// soon.
const (
	stepPlaces = 8
	stepMemory = 128 << 10
)

func newStepWorld(t *testing.T) *stepWorld {
	t.Helper()
	w := plan{wires: true}.world(t)
	must(t, w.Close())
	s := &stepWorld{world: w, spoiler: newSpoiler()}
	s.layers = &layers{t: t, dir: t.TempDir(), w: w, spaces: map[caisson.ID]*space{}, fail: map[string]error{}}
	store := stepStore{w.store, s.spoiler}
	var err error
	w.config.Events = events.New(store.Events(), w.config.Log)
	s.volumes, err = volumes.New(volumes.Config{Dir: w.dir, Store: store, Events: w.config.Events})
	must(t, err)
	must(t, s.volumes.Reconcile(t.Context()))
	t.Cleanup(func() { must(t, s.volumes.Close()) })
	w.config.Store, w.config.Runtime, w.config.Network.Wires = store, sandboxes.RuntimeOf(stepRuntime{w.runtime, s.spoiler}), stepWires{w.wires, s.spoiler}
	w.config.Images, w.config.Workspaces, w.config.Volumes = stepImages{w.images, s.spoiler}, stepLayers{s.layers, s.spoiler}, s.volumes.Attachments()
	w.config.Network.Egress, w.config.Network.Gateway, w.config.Network.Traffic = policies{}, gateway{}, gateway{}
	w.config.Limits = limitsWithBudget()
	w.config.Limits.MaxSandboxes, w.config.Limits.MemoryReserve = stepPlaces, 1<<20
	w.config.Host.Available = func() (caisson.Size, error) { return 1<<20 + stepMemory, nil }
	w.boot()
	s.fds = s.open()
	return s
}

// open returns the files in the world's directories and wires that this process has open.
func (w *stepWorld) open() (names []string) {
	w.t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	must(w.t, err)
	for _, fd := range fds {
		name, err := os.Readlink("/proc/self/fd/" + fd.Name())
		if err == nil && (strings.HasPrefix(name, w.dir) || strings.HasPrefix(name, w.layers.dir) || name == w.wires.netns) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// request returns the request for a sandbox of that kind.
func (w *stepWorld) request(kind string) caisson.CreateRequest {
	w.t.Helper()
	req := caisson.CreateRequest{
		Command: command("counter", "/count"), Models: &caisson.ModelGrant{Models: []string{"small"}}, Policy: allowOnly("example.com"),
	}
	switch kind {
	case "workspace":
		req.Workspace, _ = asking(w.t, project(w.t, "task"))
	case "volume":
		req.Workspace = inVolume("vol")
	case "placeholder":
		req.Placeholder = "/workspace"
	}
	return req
}

// subject creates a sandbox of that kind in the given state, with a file in it.
func (w *stepWorld) subject(kind string, s caisson.State) caisson.ID {
	w.t.Helper()
	req := w.request(kind)
	req.NoStart = s == caisson.Created
	sb := w.create(req)
	id, l := string(sb.ID), w.Sandboxes()
	if s == caisson.Created {
		return sb.ID
	}
	w.write(id, "/root/kept", "kept")
	switch s {
	case caisson.Paused:
		got(l.Pause(w.ctx(), id))(w.t)
	case caisson.Suspended:
		got(l.Suspend(w.ctx(), id))(w.t)
	case caisson.Stopped:
		got(l.Stop(w.ctx(), id, 0))(w.t)
	}
	w.wantState(sb.ID, s)
	return sb.ID
}

// runsOn gets a sandbox running from any state, as a user would, and returns an error if it cannot.
func (w *stepWorld) runsOn(id caisson.ID, was caisson.State) (err error) {
	ref, l := string(id), w.Sandboxes()
	for range 100 {
		switch s := w.state(id); s {
		case caisson.Running:
			var p caisson.Process
			if p, err = w.Processes().Exec(w.ctx(), ref, caisson.ExecRequest{Command: command("echo")}); err == nil {
				p.Close()
				if was == caisson.Created {
					return nil
				}
				r, err := w.Files().ReadFile(w.ctx(), ref, "/root/kept", 0, 0)
				if err != nil {
					return err
				}
				defer r.Close()
				b, err := io.ReadAll(r)
				if err == nil && string(b) != "kept" {
					err = fmt.Errorf("its file holds %q", b)
				}
				return err
			}
			time.Sleep(10 * time.Millisecond) // it may have died without being detected yet
		case caisson.Created, caisson.Stopped:
			_, err = l.Start(w.ctx(), ref)
		case caisson.Paused:
			_, err = l.Resume(w.ctx(), ref)
		case caisson.Suspended:
			_, err = l.Wake(w.ctx(), ref)
		case caisson.Failed:
			sb, err := l.Get(w.ctx(), ref)
			if err != nil {
				return err
			}
			return fmt.Errorf("it has failed: %s", sb.Reason)
		case "":
			return errors.New("it is gone")
		default:
			_, err = l.Stop(w.ctx(), ref, 0)
		}
	}
	return fmt.Errorf("it is %s: %w", w.state(id), err)
}

// clean removes all sandboxes and snapshots, and checks that nothing of them remains.
func (w *stepWorld) clean(hit string) error {
	boxes, _, err := w.store.Store.Sandboxes().List(context.Background(), caisson.AllAccounts(), caisson.Filter{Limit: 1000})
	must(w.t, err)
	for _, b := range boxes {
		if b.Pooled {
			continue
		}
		if err := w.Sandboxes().Remove(w.ctx(), string(b.ID)); err != nil && caisson.KindOf(err) != caisson.NotFound {
			return fmt.Errorf("remove %s, which is %s: %w", b.ID, b.State, err)
		}
	}
	snaps, _, err := w.store.Store.Snapshots().List(context.Background(), caisson.AllAccounts(), caisson.Filter{Limit: 1000})
	must(w.t, err)
	for _, s := range snaps {
		if err := w.Snapshots().RemoveSnapshot(w.ctx(), string(s.ID)); err != nil {
			return err
		}
	}
	vols, _, err := w.volumes.Volumes().ListVolumes(w.ctx(), caisson.Filter{Limit: 1000})
	must(w.t, err)
	for _, v := range vols {
		if err := w.volumes.Volumes().RemoveVolume(w.ctx(), string(v.ID)); err != nil {
			return err
		}
	}
	garbage, err := w.CollectGarbage(w.ctx())
	if hit == "runtime destroy" || hit == "wire detach" { // objects that are in no table are then found as garbage
		garbage, err = w.CollectGarbage(w.ctx())
	}
	if err != nil || len(garbage) > 0 {
		return fmt.Errorf("garbage: %v, %w", garbage, err)
	}
	if b := w.budgets(); len(b) > 0 {
		return fmt.Errorf("budgets are left: %v", b)
	}
	w.layers.mu.Lock()
	defer w.layers.mu.Unlock()
	for id, s := range w.layers.spaces {
		if s.left == 0 {
			return fmt.Errorf("workspace %s of %s was not left", id, s.sandbox)
		}
	}
	clear(w.layers.spaces)
	return nil
}

// settled waits until only the files that were open at the world's start are open: background work takes a moment.
func (w *stepWorld) settled() {
	w.t.Helper()
	var open []string
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if open = w.open(); slices.Equal(open, w.fds) && len(w.rows()) == 0 && w.images.Held() == 0 {
			break
		}
	}
	if !slices.Equal(open, w.fds) {
		w.t.Errorf("open are %v, and were %v", open, w.fds)
	}
	if rows := w.rows(); len(rows) > 0 {
		w.t.Errorf("the store has %v", rows)
	}
	w.holds()
	if n := w.images.Held(); n != 0 {
		w.t.Errorf("layers are held %d times", n)
	}
}

// operation is an operation that fails at each of its steps.
type operation struct {
	name string
	kind string        // of its subject; see request
	from caisson.State // of its subject; "" if it has none
	do   func(ctx context.Context, w *stepWorld, id string) error
	// ready is called before, without failures; may be nil.
	ready func(w *stepWorld, id string)
}

func changing(f func(caisson.Sandboxes, context.Context, string) (*caisson.Sandbox, error)) func(context.Context, *stepWorld, string) error {
	return func(ctx context.Context, w *stepWorld, id string) error { return failed(f(w.Sandboxes(), ctx, id)) }
}

// failed returns the error of a call that has another result, too.
func failed[T any](_ T, err error) error { return err }

func operations() (list []operation) {
	stop := func(s caisson.Sandboxes, ctx context.Context, ref string) (*caisson.Sandbox, error) {
		return s.Stop(ctx, ref, 50*time.Millisecond)
	}
	for _, kind := range []string{"plain", "workspace", "volume", "placeholder"} {
		list = append(list, operation{name: "create", kind: kind, do: func(ctx context.Context, w *stepWorld, _ string) error {
			return failed(w.Sandboxes().Create(ctx, w.request(kind)))
		}})
	}
	for _, kind := range []string{"plain", "workspace", "volume"} {
		list = append(list,
			operation{name: "start", kind: kind, from: caisson.Created, do: changing(caisson.Sandboxes.Start)},
			operation{name: "start again", kind: kind, from: caisson.Stopped, do: changing(caisson.Sandboxes.Start)},
			operation{name: "stop", kind: kind, from: caisson.Running, do: changing(stop)},
			operation{name: "remove", kind: kind, from: caisson.Running, do: func(ctx context.Context, w *stepWorld, id string) error {
				return w.Sandboxes().Remove(ctx, id)
			}},
		)
	}
	for _, kind := range []string{"plain", "workspace"} {
		list = append(list,
			operation{name: "pause", kind: kind, from: caisson.Running, do: changing(caisson.Sandboxes.Pause)},
			operation{name: "resume", kind: kind, from: caisson.Paused, do: changing(caisson.Sandboxes.Resume)},
			operation{name: "snapshot", kind: kind, from: caisson.Running, do: snapshot(false)},
			operation{name: "snapshot of a paused one", kind: kind, from: caisson.Paused, do: snapshot(false)},
			operation{name: "snapshot of files", kind: kind, from: caisson.Running, do: snapshot(true)},
		)
	}
	fork := func(n int) func(context.Context, *stepWorld, string) error {
		return func(ctx context.Context, w *stepWorld, id string) error {
			return failed(w.Snapshots().Fork(ctx, id, caisson.ForkRequest{Count: n, Models: &caisson.ModelGrant{Models: []string{"small"}}}))
		}
	}
	return append(list,
		operation{name: "create not started", do: func(ctx context.Context, w *stepWorld, _ string) error {
			return failed(w.Sandboxes().Create(ctx, caisson.CreateRequest{NoStart: true}))
		}},
		operation{name: "create from an image", do: func(ctx context.Context, w *stepWorld, _ string) error {
			return failed(w.Sandboxes().Create(ctx, caisson.CreateRequest{Image: "debian:12"}))
		}},
		operation{name: "create from a snapshot", from: caisson.Running, ready: func(w *stepWorld, id string) {
			got(w.Snapshots().Snapshot(w.ctx(), id, caisson.SnapshotRequest{Name: "snap"}))(w.t)
		}, do: func(ctx context.Context, w *stepWorld, _ string) error {
			return failed(w.Sandboxes().Create(ctx, caisson.CreateRequest{Snapshot: "snap"}))
		}},
		operation{name: "stop", from: caisson.Suspended, do: changing(stop)},
		operation{name: "stop", from: caisson.Paused, do: changing(stop)},
		operation{name: "pause", from: caisson.Suspended, do: changing(caisson.Sandboxes.Pause)},
		operation{name: "suspend", from: caisson.Running, do: changing(caisson.Sandboxes.Suspend)},
		operation{name: "wake", from: caisson.Suspended, do: changing(caisson.Sandboxes.Wake)},
		operation{name: "fork", from: caisson.Running, do: fork(2)},
		operation{name: "fork", from: caisson.Paused, do: fork(1)},
		operation{name: "fork", from: caisson.Stopped, do: fork(1)},
		operation{name: "fork with a workspace", kind: "placeholder", from: caisson.Running, do: func(ctx context.Context, w *stepWorld, id string) error {
			req, _ := asking(w.t, project(w.t, "task"))
			return failed(w.Snapshots().Fork(ctx, id, caisson.ForkRequest{Workspace: req}))
		}},
		operation{name: "fork with a volume", kind: "placeholder", from: caisson.Running, do: func(ctx context.Context, w *stepWorld, id string) error {
			return failed(w.Snapshots().Fork(ctx, id, caisson.ForkRequest{Workspace: inVolume("vol")}))
		}},
		operation{name: "remove", from: caisson.Paused, do: func(ctx context.Context, w *stepWorld, id string) error {
			return w.Sandboxes().Remove(ctx, id)
		}},
		operation{name: "exec", from: caisson.Running, do: func(ctx context.Context, w *stepWorld, id string) error {
			p, err := w.Processes().Exec(ctx, id, caisson.ExecRequest{Command: command("echo")})
			if err != nil {
				return err
			}
			defer p.Close()
			return failed(p.Wait(ctx))
		}},
		operation{name: "exec, detached", from: caisson.Running, do: func(ctx context.Context, w *stepWorld, id string) error {
			return failed(w.Processes().Exec(ctx, id, caisson.ExecRequest{Command: command("sleep", "1h"), Detach: true}))
		}},
		operation{name: "write a file", from: caisson.Running, do: func(ctx context.Context, w *stepWorld, id string) error {
			return failed(w.Files().WriteFile(ctx, id, "/root/other", 0, strings.NewReader("x")))
		}},
		operation{name: "list files", from: caisson.Paused, do: func(ctx context.Context, w *stepWorld, id string) error {
			return failed(w.Files().ListFiles(ctx, id, "/root"))
		}},
		operation{name: "assign", from: caisson.Running, do: func(ctx context.Context, w *stepWorld, id string) error {
			return failed(w.Assign(ctx, caisson.ID(id), assignment()))
		}},
		operation{name: "set policy", from: caisson.Running, do: func(ctx context.Context, w *stepWorld, id string) error {
			return failed(w.Policies().SetPolicy(ctx, id, *allowOnly("example.org")))
		}},
		operation{name: "build a template", ready: func(w *stepWorld, _ string) {
			got(w.Templates().PutTemplate(w.ctx(), caisson.Template{Name: "tpl", Image: "host", Setup: []caisson.SetupStep{
				{Run: command("echo", "hello"), Files: []caisson.SeedFile{{Path: "/root/seed", Data: time.Now().String()}}},
			}}))(w.t)
		}, do: func(ctx context.Context, w *stepWorld, _ string) error {
			return failed(w.Templates().BuildTemplate(ctx, "tpl", caisson.RegistryAuth{}, nil))
		}},
		operation{name: "claim", ready: func(w *stepWorld, _ string) {
			got(w.Templates().PutTemplate(w.ctx(), caisson.Template{Name: "ready", Image: "host", Pool: 1}))(w.t)
			w.filled(1)
		}, do: func(ctx context.Context, w *stepWorld, _ string) error {
			return failed(w.Sandboxes().Create(ctx, caisson.CreateRequest{Template: "ready", Models: &caisson.ModelGrant{Models: []string{"small"}}}))
		}},
		operation{name: "collect garbage", from: caisson.Running, do: func(ctx context.Context, w *stepWorld, id string) error {
			return failed(w.CollectGarbage(ctx))
		}},
	)
}

func snapshot(files bool) func(context.Context, *stepWorld, string) error {
	return func(ctx context.Context, w *stepWorld, id string) error {
		return failed(w.Snapshots().Snapshot(ctx, id, caisson.SnapshotRequest{FilesOnly: files}))
	}
}

// TestSpoiltAnywhere makes operations fail at a sample of their steps, see [steptest.Every]. Afterwards existing
// sandboxes work, with their files, new ones are complete or do not exist, and after removing everything nothing
// remains.
func TestSpoiltAnywhere(t *testing.T) {
	t.Parallel()
	var record steptest.Record
	t.Run("operation", func(t *testing.T) {
		for _, op := range operations() {
			name := strings.Join(slices.DeleteFunc([]string{op.name, op.kind, string(op.from)}, func(s string) bool { return s == "" }), ", ")
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				w := newStepWorld(t)
				for _, how := range []steptest.Effect{steptest.Cancelled, steptest.Fails, steptest.Loses} {
					steps := steptest.Every(5, fmt.Sprint(t.Name(), how))
					at := steps.From(1)
					for op.spoil(w, at, how, record.Recorder(name)) {
						at = steps.From(at + 1)
					}
				}
			})
		}
	})
	record.Check(t)
}

// spoil makes the operation's step of that number fail, and returns false if there is no such step.
func (op operation) spoil(w *stepWorld, at int, how steptest.Effect, record func([]string)) bool {
	t := w.t
	t.Helper()
	var id caisson.ID
	if op.from != "" {
		id = w.subject(op.kind, op.from)
	}
	if op.ready != nil {
		op.ready(w, string(id))
	}
	before := w.rows()
	ctx := w.arm(w.ctx(), at, how)
	ended := make(chan error, 1)
	go func() { ended <- op.do(ctx, w, string(id)) }()
	var err error
	select {
	case err = <-ended:
	case <-time.After(removeWait):
		t.Fatalf("step %d: it does not end", at)
	}
	hit, steps := w.Disarm()
	if hit == "" {
		record(steps)
	}
	where := fmt.Sprintf("step %d, %s, %s: the operation says %v", at, hit, how, err)
	if hit == "" && err != nil {
		t.Errorf("unspoilt: %v", err)
	}
	after := w.rows()
	for name, s := range after {
		if _, was := before[name]; !was && err != nil && !isPooled(name) {
			t.Errorf("%s; there is %s, which is %s", where, name, s)
		}
	}
	if id != "" && op.name != "remove" {
		if rerr := w.runsOn(id, op.from); rerr != nil {
			t.Errorf("%s; the sandbox does not go on: %v", where, rerr)
		}
	}
	if op.name == "claim" {
		must(t, w.Templates().RemoveTemplate(w.ctx(), "ready"))
		poll.Until(t, removeWait, func() bool { return !slices.ContainsFunc(slices.Collect(maps.Keys(w.rows())), isPooled) })
	}
	if cerr := w.clean(hit); cerr != nil {
		t.Errorf("%s; %v", where, cerr)
	}
	w.settled()
	if t.Failed() {
		t.Fatal(where)
	}
	return hit != ""
}

func isPooled(row string) bool { return strings.HasPrefix(row, "pooled ") }

// rows returns the sandboxes and snapshots in the store, with their states.
func (w *stepWorld) rows() map[string]caisson.State {
	all := map[string]caisson.State{}
	boxes, _, err := w.store.Store.Sandboxes().List(context.Background(), caisson.AllAccounts(), caisson.Filter{Limit: 1000})
	must(w.t, err)
	for _, b := range boxes {
		kind := "sandbox "
		if b.Pooled {
			kind = "pooled "
		}
		all[kind+string(b.ID)] = b.State
	}
	snaps, _, err := w.store.Store.Snapshots().List(context.Background(), caisson.AllAccounts(), caisson.Filter{Limit: 1000})
	must(w.t, err)
	for _, s := range snaps {
		all["snapshot "+string(s.ID)] = ""
	}
	return all
}

// TestSpoiltReconciliation makes each step of a daemon's start fail. If the daemon cannot start, the next one can;
// afterwards existing sandboxes work.
func TestSpoiltReconciliation(t *testing.T) {
	t.Parallel()
	var record steptest.Record
	w := newStepWorld(t)
	for _, how := range []steptest.Effect{steptest.Cancelled, steptest.Fails, steptest.Loses} {
		steps := steptest.Every(2, string(how))
		at := steps.From(1)
		for w.spoilReconciliation(at, how, record.Recorder("reconcile")) {
			at = steps.From(at + 1)
		}
	}
	record.Check(t)
}

// during stores that a change of a sandbox is in progress.
func (w *stepWorld) during(id caisson.ID, s caisson.State) caisson.ID {
	w.t.Helper()
	must(w.t, failed(w.store.Store.Sandboxes().Update(w.ctx(), caisson.AllAccounts(), string(id), func(sb *caisson.Sandbox) error {
		sb.State = s
		return nil
	})))
	return id
}

func (w *stepWorld) spoilReconciliation(at int, how steptest.Effect, record func([]string)) bool {
	t := w.t
	t.Helper()
	goOn := map[caisson.ID]caisson.State{}
	for kind, s := range map[string]caisson.State{"plain": caisson.Suspended, "workspace": caisson.Running, "placeholder": caisson.Paused, "volume": caisson.Stopped} {
		goOn[w.subject(kind, s)] = s
	}
	goOn[w.during(w.subject("plain", caisson.Running), caisson.Pausing)] = caisson.Running
	goOn[w.during(w.subject("plain", caisson.Stopped), caisson.Starting)] = caisson.Stopped
	w.during(w.subject("plain", caisson.Stopped), caisson.Removing)
	w.during(w.subject("plain", caisson.Created), caisson.Creating)

	next := func(ctx context.Context) error {
		must(t, w.Close())
		w.runtime = &testRuntime{Runtime: w.runtime.Reopen()}
		w.config.Runtime = sandboxes.RuntimeOf(stepRuntime{w.runtime, w.spoiler})
		w.wires.forget()
		core, err := sandboxes.New(w.config)
		must(t, err)
		w.Core = core
		return failed(core.Reconcile(ctx, func(caisson.ID) (*os.File, error) { return os.Open(w.wires.netns) }))
	}
	err := next(w.arm(w.ctx(), at, how))
	hit, steps := w.Disarm()
	if hit == "" {
		record(steps)
	}
	where := fmt.Sprintf("step %d, %s, %s: the start says %v", at, hit, how, err)
	if err != nil {
		if err := next(w.ctx()); err != nil {
			t.Errorf("%s; the next one: %v", where, err)
		}
	}
	for id, s := range goOn {
		if err := w.runsOn(id, s); err != nil {
			t.Errorf("%s; a sandbox that was %s does not go on: %v", where, s, err)
		}
	}
	if err := w.clean(hit); err != nil {
		t.Errorf("%s; %v", where, err)
	}
	w.settled()
	if t.Failed() {
		t.Fatal(where)
	}
	return hit != ""
}
