package sandboxes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/undo"
)

// Snapshots implements [caisson.Snapshots].
type Snapshots struct{ c *Core }

// Snapshots returns the service for snapshots and forks.
func (c *Core) Snapshots() *Snapshots { return &Snapshots{c} }

var _ caisson.Snapshots = (*Snapshots)(nil)

// Snapshot implements [caisson.Snapshots].
func (s *Snapshots) Snapshot(ctx context.Context, ref string, req caisson.SnapshotRequest) (*caisson.Snapshot, error) {
	c := s.c
	if err := errors.Join(validateName("name", req.Name), validateLabels("labels", req.Labels)); err != nil {
		return nil, err
	}
	sb, release, err := c.Snapshots().lockFor(ctx, ref, caisson.VerbSnapshot)
	if err != nil {
		return nil, err
	}
	defer release()
	snap := &caisson.Snapshot{
		ID: caisson.NewID(caisson.SnapshotPrefix), Account: sb.Account, Name: req.Name, Sandbox: sb.ID, Template: sb.Template,
		Memory: !req.FilesOnly && sb.State != caisson.Stopped, Spec: sb.Spec, Labels: req.Labels, Rootfs: sb.Rootfs, CreatedAt: now(),
	}
	if err := c.workspaces.prepareSnapshotSpec(sb, snap); err != nil {
		return nil, err
	}
	defer c.hidden.hold(snap.ID)() // until it is in the store
	dir := c.snapshotDir(snap.ID)
	if err := c.Snapshots().captureAll(ctx, sb, dir, snap.Memory); err != nil {
		return nil, err
	}
	var back undo.Stack
	back.Push(func() error { return os.RemoveAll(dir) })
	if snap.Depends, err = readDepends(dir); err != nil {
		return nil, errors.Join(err, back.Run())
	}
	snap.Size = diskUse(dir)
	if err := c.Store.Snapshots().Insert(ctx, snap); err != nil {
		return nil, errors.Join(err, back.Run())
	}
	c.Events.Publish(ctx, snap.Account, "snapshot.created", string(snap.ID), map[string]string{"sandbox": string(sb.ID)})
	return snap, nil
}

// lockFor locks a sandbox until release is called, and returns its record. Returns an error if the sandbox's state does
// not allow v.
func (s *Snapshots) lockFor(ctx context.Context, ref string, v caisson.Verb) (sb *caisson.Sandbox, release func(), err error) {
	sb, err = s.c.finder.find(ctx, ref)
	if err != nil {
		return nil, nil, err
	}
	release, err = s.c.locks.acquire(ctx, sb.ID)
	if err != nil {
		return nil, nil, err
	}
	// The record is read again: it may have changed while waiting for the lock.
	sb, err = s.c.Store.Sandboxes().Get(ctx, caisson.In(sb.Account), string(sb.ID))
	if err == nil {
		err = s.c.finder.allow(sb, v)
	}
	if err != nil {
		release()
		return nil, nil, err
	}
	return sb, release, nil
}

// GetSnapshot implements [caisson.Snapshots].
func (s *Snapshots) GetSnapshot(ctx context.Context, ref string) (*caisson.Snapshot, error) {
	in, _, err := scope(ctx)
	if err != nil {
		return nil, err
	}
	return s.c.Store.Snapshots().Get(ctx, in, ref)
}

// ListSnapshots implements [caisson.Snapshots].
func (s *Snapshots) ListSnapshots(ctx context.Context, f caisson.Filter) ([]*caisson.Snapshot, bool, error) {
	in, _, err := scope(ctx)
	if err != nil {
		return nil, false, err
	}
	return s.c.Store.Snapshots().List(ctx, in, f)
}

// RemoveSnapshot implements [caisson.Snapshots]. Running forks of the snapshot do not need its files.
func (s *Snapshots) RemoveSnapshot(ctx context.Context, ref string) error {
	snap, err := s.GetSnapshot(ctx, ref)
	if err != nil {
		return err
	}
	// The record is deleted first: a directory without a record is removed as garbage, but a record without a directory
	// would be wrong.
	if err := s.c.Store.Snapshots().Delete(ctx, caisson.In(snap.Account), string(snap.ID)); err != nil {
		return err
	}
	s.c.Events.Publish(ctx, snap.Account, "snapshot.removed", string(snap.ID), nil)
	return os.RemoveAll(s.c.snapshotDir(snap.ID))
}

// Fork implements [caisson.Snapshots].
func (s *Snapshots) Fork(ctx context.Context, ref string, req caisson.ForkRequest) ([]*caisson.Sandbox, error) {
	c := s.c
	var closeDir func()
	req.Workspace, closeDir = closeOnce(req.Workspace)
	defer closeDir()
	if req.Count == 0 {
		req.Count = 1
	}
	if req.Count < 1 || req.Count > 100 {
		return nil, caisson.Invalidf("count", "%d is not between 1 and 100", req.Count)
	}
	if err := errors.Join(validateName("name", req.Name), validateLabels("labels", req.Labels)); err != nil {
		return nil, err
	}
	if err := c.network.check(ctx, "", req.Policy, req.Models); err != nil {
		return nil, err
	}
	if err := errors.Join(c.network.checkAssignment(ctx, req.Assigned), validateResources("resources", req.Resources)); err != nil {
		return nil, err
	}
	if err := c.workspaces.check(ctx, req.Workspace, nil); err != nil {
		return nil, err
	}
	if snap, err := s.GetSnapshot(ctx, ref); err == nil {
		return c.Snapshots().forkFrom(ctx, originOf(snap), c.snapshotDir(snap.ID), req)
	} else if caisson.KindOf(err) != caisson.NotFound {
		return nil, err
	}
	sb, release, err := c.Snapshots().lockFor(ctx, ref, caisson.VerbFork)
	if err != nil {
		return nil, err
	}
	defer release()
	from := origin{sb.ID, sb.Account, sb.Template, sb.Spec, sb.Rootfs, sb.State != caisson.Stopped}
	if err := errors.Join(c.workspaces.checkForkable(&from, &req), c.workspaces.checkPlaceholderEmpty(sb)); err != nil {
		return nil, err
	}
	if sb.State == caisson.Paused {
		return c.Snapshots().forkFrom(ctx, from, c.inDir(sb.ID, pauseDir), req)
	}
	// The capture is not stored as a snapshot: it is removed when the forks run, or by Reconcile after a crash.
	temporary := caisson.NewID(caisson.SnapshotPrefix)
	defer c.hidden.hold(temporary)()
	dir := c.snapshotDir(temporary)
	if err := c.Snapshots().capture(ctx, sb, dir, from.memory); err != nil {
		return nil, err
	}
	forks, err := c.Snapshots().forkFrom(ctx, from, dir, req)
	return forks, errors.Join(err, os.RemoveAll(dir))
}

// origin is the sandbox or snapshot that forks are created from. Its fields are those of the sandbox or snapshot.
type origin struct {
	id       caisson.ID
	account  string
	template string
	spec     caisson.Spec
	rootfs   caisson.Rootfs
	memory   bool // whether its capture contains memory
}

// limits returns the limits of a fork that requests ask. A fork with memory keeps the origin's limits of disk,
// processes and open files, and needs at least the memory that the origin may use.
func (o *origin) limits(ask caisson.Resources) (caisson.Resources, error) {
	had, r := o.spec.Resources, replaceLimits(o.spec.Resources, ask)
	if !o.memory {
		return r, nil
	}
	switch {
	case r.Memory < had.Memory:
		return r, caisson.Invalidf("resources.memory", "%s is less than the %s that it is forked from may use", r.Memory, had.Memory)
	case r.Disk != had.Disk:
		return r, caisson.Invalidf("resources.disk", "a fork with memory keeps the limit of what it is forked from, %s", had.Disk)
	case r.PIDs != had.PIDs:
		return r, caisson.Invalidf("resources.pids", "a fork with memory keeps the limit of what it is forked from, %d", had.PIDs)
	case r.OpenFiles != had.OpenFiles:
		return r, caisson.Invalidf("resources.openFiles", "a fork with memory keeps the limit of what it is forked from, %d", had.OpenFiles)
	}
	return r, nil
}

// maxParallelForks is the maximum number of concurrent restores of one fork request: each one needs a burst of CPU
// time.
const maxParallelForks = 4

// forkFrom creates running sandboxes from the capture in dir. If the creation of one fails, the others are removed.
func (s *Snapshots) forkFrom(ctx context.Context, from origin, dir string, req caisson.ForkRequest) ([]*caisson.Sandbox, error) {
	if err := s.c.workspaces.checkForkable(&from, &req); err != nil {
		return nil, err
	}
	forks := make([]*caisson.Sandbox, req.Count)
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(maxParallelForks)
	for i := range forks {
		name := req.Name
		if name != "" && req.Count > 1 {
			name = fmt.Sprintf("%s-%d", name, i+1)
		}
		g.Go(func() (err error) {
			forks[i], err = s.fork(gctx, from, dir, name, &req)
			return err
		})
	}
	err := g.Wait()
	if err == nil {
		return forks, nil
	}
	for _, f := range forks {
		if f != nil {
			err = errors.Join(err, s.removeFork(context.WithoutCancel(ctx), f.ID))
		}
	}
	return nil, err
}

// removeFork removes a fork because the creation of another fork of the same request has failed.
func (s *Snapshots) removeFork(ctx context.Context, id caisson.ID) error {
	release, err := s.c.locks.acquire(ctx, id)
	if err != nil {
		return err
	}
	defer release()
	return s.c.Sandboxes().remove(ctx, id, "another fork failed")
}

// fork creates one running sandbox from the capture in dir.
func (s *Snapshots) fork(ctx context.Context, from origin, dir, name string, req *caisson.ForkRequest) (_ *caisson.Sandbox, err error) {
	sb := &caisson.Sandbox{
		ID: caisson.NewID(caisson.SandboxPrefix), Account: from.account, Name: name, Template: from.template,
		State: caisson.Creating, Labels: req.Labels, Spec: from.spec, Rootfs: from.rootfs, Parent: from.id,
		Node: s.c.Node, Build: s.c.Build, CreatedAt: now(), ChangedAt: now(), Assigned: req.Assigned,
	}
	if sb.Spec.Resources, err = from.limits(req.Resources); err != nil {
		return nil, err
	}
	sb.Spec.Models = req.Models
	var handles []caisson.Handle
	sb.Spec.Workspace, sb.Spec.Volume = "", nil
	if sb.Spec.Mounts, handles = addDirectMount(req.Workspace, nil, nil); len(handles) > 0 {
		sb.Spec.WorkspaceAt = ""
	}
	if req.Policy != nil {
		sb.Spec.Policy = *req.Policy
	}
	// If several sandboxes are restored from the same memory, each must draw its own random numbers.
	randomness := randomnessOpenSSL
	if req.KeepRandomness {
		randomness, sb.Spec.Randomness = "", ""
	}
	release, err := s.c.locks.acquire(ctx, sb.ID)
	if err != nil {
		return nil, err
	}
	defer release()
	var need caisson.Size
	if from.memory {
		need = memoryOf(dir)
	}
	admitted, err := s.c.admission.admit(ctx, sb.ID, need)
	if err != nil {
		return nil, err
	}
	defer admitted()
	if err := s.c.Store.Sandboxes().Insert(ctx, sb); err != nil {
		return nil, err
	}
	clean := context.WithoutCancel(ctx)
	var back undo.Stack
	defer func() { err = errors.Join(err, back.Run()) }()
	back.Push(func() error { return s.c.Store.Sandboxes().Delete(clean, caisson.AllAccounts(), string(sb.ID)) })
	back.Push(func() error { return s.c.removeSandboxDir(clean, sb.ID) })
	if err := s.c.makeDir(sb); err != nil {
		return nil, err
	}
	if err := s.c.recordMounts(sb.ID, sb.Spec.Mounts, handles); err != nil {
		return nil, err
	}
	if err := s.c.workspaces.create(ctx, sb, req.Workspace, s.c.processes.halt, &back); err != nil {
		return nil, err
	}
	back.Push(func() error { return s.c.network.deleteBudget(clean, sb) })
	if err := s.c.network.createBudget(ctx, sb); err != nil {
		return nil, err
	}
	var reason string
	if from.memory {
		reason, err = s.c.processes.runFrom(ctx, sb, dir, randomness)
	} else {
		err = s.c.processes.run(ctx, sb, source{files: pathIfExists(filepath.Join(dir, filesTar))})
	}
	if err != nil {
		return nil, err
	}
	back.Push(func() error { return s.c.processes.halt(clean, sb.ID) })
	var shared []string
	// Forks for runs are not examined: agents are forked only if their entry declares that forks draw different random
	// values (see caisson.Warm).
	if from.memory && reason == "" && req.Assigned == nil {
		if shared, err = s.c.processes.sharedRandomness(ctx, sb.ID); err != nil {
			return nil, err
		}
	}
	made, err := s.c.states.set(ctx, sb.ID, caisson.Running, func(s *caisson.Sandbox) error {
		s.Reason, s.SharedRandomness = reason, shared
		setDeadlines(s)
		return nil
	})
	if err != nil {
		return nil, err
	}
	back.Release()
	s.c.watches.watch(made)
	s.c.deadlines.arm(made)
	data := map[string]string{"parent": string(from.id), "reason": reason}
	if len(shared) > 0 {
		data["sharedRandomness"] = strings.Join(shared, ", ")
	}
	s.c.states.event(ctx, made, "sandbox.forked", data)
	s.c.workspaces.publishUnreviewed(ctx, made, req.Workspace)
	return made, nil
}

// createFromSnapshot creates a sandbox from a snapshot by forking it.
func (s *Snapshots) createFromSnapshot(ctx context.Context, req caisson.CreateRequest) (*caisson.Sandbox, error) {
	snap, err := s.GetSnapshot(ctx, string(req.Snapshot))
	if err != nil {
		return nil, err
	}
	if req.TTL != nil {
		snap.Spec.TTL = *req.TTL
	}
	if req.HardTTL != nil {
		snap.Spec.HardTTL = *req.HardTTL
	}
	if req.Randomness != "" {
		snap.Spec.Randomness = req.Randomness
	}
	forks, err := s.forkFrom(ctx, originOf(snap), s.c.snapshotDir(snap.ID), caisson.ForkRequest{
		Count: 1, Name: req.Name, Labels: req.Labels, Policy: req.Policy, Models: req.Models, Assigned: req.Assigned,
		Workspace: req.Workspace, KeepRandomness: req.KeepRandomness,
	})
	if err != nil {
		return nil, err
	}
	return forks[0], nil
}

// originOf returns a snapshot as the origin of forks.
func originOf(s *caisson.Snapshot) origin {
	return origin{s.ID, s.Account, s.Template, s.Spec, s.Rootfs, s.Memory}
}
