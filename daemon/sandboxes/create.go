package sandboxes

import (
	"context"
	"errors"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/undo"
)

// Lifecycle implements [caisson.Sandboxes].
type Lifecycle struct{ c *Core }

// Sandboxes returns the service that manages the lifecycle of sandboxes.
func (c *Core) Sandboxes() *Lifecycle { return &Lifecycle{c} }

var _ caisson.Sandboxes = (*Lifecycle)(nil)

// Get implements [caisson.Sandboxes].
func (l *Lifecycle) Get(ctx context.Context, ref string) (*caisson.Sandbox, error) {
	return l.c.finder.find(ctx, ref)
}

// List implements [caisson.Sandboxes].
func (l *Lifecycle) List(ctx context.Context, f caisson.Filter) ([]*caisson.Sandbox, bool, error) {
	in, _, err := scope(ctx)
	if err != nil {
		return nil, false, err
	}
	return l.c.Store.Sandboxes().List(ctx, in, f)
}

// Create implements [caisson.Sandboxes].
func (l *Lifecycle) Create(ctx context.Context, req caisson.CreateRequest) (*caisson.Sandbox, error) {
	defer func() {
		for _, d := range req.Directories {
			d.Close()
		}
	}()
	var release func()
	req.Workspace, release = closeOnce(req.Workspace)
	defer release()
	if err := checkCreate(ctx, l.c.network, l.c.workspaces, &req); err != nil {
		return nil, err
	}
	if req.Snapshot != "" {
		return l.c.Snapshots().createFromSnapshot(ctx, req)
	}
	sb, from, hold, err := l.prepare(ctx, &req)
	if err != nil {
		return nil, err
	}
	defer hold()
	if claimed, err := l.c.pool.claim(ctx, sb, &req); claimed != nil || err != nil {
		return claimed, err
	}
	return l.create(ctx, sb, from, &req)
}

// prepare resolves a request into the record of a sandbox that does not exist yet. The sandbox's layers are protected
// from pruning until the caller calls hold, which it must do once the sandbox is in the store.
func (l *Lifecycle) prepare(ctx context.Context, req *caisson.CreateRequest) (sb *caisson.Sandbox, from source, hold func(), err error) {
	_, caller, err := scope(ctx)
	if err != nil {
		return nil, from, nil, err
	}
	t, err := l.c.catalog.get(ctx, firstNonEmpty(req.Template, caisson.HostTemplate))
	if err != nil {
		return nil, from, nil, err
	}
	if req.Image != "" {
		t.Image, t.Built, t.Setup = req.Image, nil, nil
	}
	if len(t.Setup) > 0 && t.Built == nil {
		return nil, from, nil, caisson.Errorf(caisson.Conflict, "template %s has set-up steps and has not been built; run caisson template build %s", t.Name, t.Name)
	}
	release := l.c.Images.Hold()
	defer func() {
		if err != nil {
			release()
		}
	}()
	img, err := l.c.ImageService().image(ctx, t.Image)
	if err != nil {
		return nil, from, nil, err
	}
	rootfs := img.Rootfs
	if t.Built != nil {
		rootfs = t.Built.Rootfs
	}
	sb = &caisson.Sandbox{
		ID: caisson.NewID(caisson.SandboxPrefix), Account: caller.Account, Name: req.Name, Template: t.Name,
		State: caisson.Creating, Labels: labels(t.Labels, req.Labels), Spec: resolve(t, img, rootfs, req), Rootfs: rootfs, Assigned: req.Assigned,
		Node: l.c.Node, Build: l.c.Build, CreatedAt: now(), ChangedAt: now(),
	}
	return sb, from, release, nil
}

// create stores a prepared sandbox, creates its directory, and starts it unless req.NoStart is set.
func (l *Lifecycle) create(ctx context.Context, sb *caisson.Sandbox, from source, req *caisson.CreateRequest) (_ *caisson.Sandbox, err error) {
	release, err := l.c.locks.acquire(ctx, sb.ID)
	if err != nil {
		return nil, err
	}
	defer release()
	if _, err := l.c.Store.Accounts().Ensure(ctx, sb.Account); err != nil {
		return nil, err
	}
	admitted, err := l.c.admission.admit(ctx, sb.ID, 0)
	if err != nil {
		return nil, err
	}
	defer admitted()
	var back undo.Stack
	defer func() { err = errors.Join(err, back.Run()) }()
	var handles []caisson.Handle
	sb.Spec.Mounts, handles = addDirectMount(req.Workspace, req.Mounts, req.Directories)
	sb.Spec.WorkspaceAt = req.Placeholder
	if err := l.c.Store.Sandboxes().Insert(ctx, sb); err != nil {
		return nil, err
	}
	clean := context.WithoutCancel(ctx)
	back.Push(func() error { return l.c.Store.Sandboxes().Delete(clean, caisson.AllAccounts(), string(sb.ID)) })
	back.Push(func() error { return l.c.removeSandboxDir(clean, sb.ID) })
	if err := l.c.makeDir(sb); err != nil {
		return nil, err
	}
	if err := l.c.recordMounts(sb.ID, sb.Spec.Mounts, handles); err != nil {
		return nil, err
	}
	if err := l.c.workspaces.create(ctx, sb, req.Workspace, l.c.processes.halt, &back); err != nil {
		return nil, err
	}
	if from.files != "" {
		if err := linkFile(from.files, l.c.inDir(sb.ID, filesTar)); err != nil {
			return nil, err
		}
	}
	back.Push(func() error { return l.c.network.deleteBudget(clean, sb) })
	if err := l.c.network.createBudget(ctx, sb); err != nil {
		return nil, err
	}
	state := caisson.Created
	if !req.NoStart {
		if err := l.c.processes.run(ctx, sb, from); err != nil {
			return nil, err
		}
		back.Push(func() error { return l.c.processes.halt(clean, sb.ID) })
		state = caisson.Running
	}
	made, err := l.c.states.set(ctx, sb.ID, state, func(s *caisson.Sandbox) error {
		setDeadlines(s)
		return nil
	})
	if err != nil {
		return nil, err
	}
	back.Release()
	if state == caisson.Running {
		l.c.watches.watch(made)
	}
	l.c.deadlines.arm(made)
	l.c.states.event(ctx, made, "sandbox."+string(state), map[string]string{"template": made.Template})
	l.c.workspaces.publishUnreviewed(ctx, made, req.Workspace)
	return made, nil
}
