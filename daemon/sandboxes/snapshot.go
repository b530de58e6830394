package sandboxes

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sync/errgroup"

	"github.com/caisson-dev/caisson"
)

// Snapshots implements [caisson.Snapshots].
type Snapshots struct {
	finder     finder // finds sandboxes of the caller's account
	locks      *locks // one lock for each sandbox
	snapshots  caisson.Table[caisson.Snapshot]
	events     caisson.Publisher
	dirs       dirs        // paths and files in the data directory
	unstored   *idSet      // ids of sandboxes and captures in use that are not in the store
	captures   *captures   // writes captures of sandboxes
	keeper     *keeper     // takes and stores snapshots
	workspaces *workspaces // workspaces and volumes of sandboxes
	forker     *forker     // creates forks
	pools      *pools      // manages pools of sandboxes
}

var _ caisson.Snapshots = (*Snapshots)(nil)

// Snapshot implements [caisson.Snapshots].
func (s *Snapshots) Snapshot(ctx context.Context, ref string, req caisson.SnapshotRequest) (*caisson.Snapshot, error) {
	if err := errors.Join(validateName("name", req.Name), caisson.CheckLabels("labels", req.Labels)); err != nil {
		return nil, err
	}
	sb, release, err := s.lockFor(ctx, ref, caisson.VerbSnapshot)
	if err != nil {
		return nil, err
	}
	defer release()
	return s.keeper.take(ctx, sb, req)
}

// lockFor acquires a sandbox's lock and returns the sandbox's record. The lock is held until release is called. Returns an error
// if the sandbox's state does not allow the verb v.
func (s *Snapshots) lockFor(ctx context.Context, ref string, v caisson.Verb) (sb *caisson.Sandbox, release func(), err error) {
	sb, err = s.finder.find(ctx, ref)
	if err != nil {
		return nil, nil, err
	}
	release, err = s.locks.acquire(ctx, sb.ID)
	if err != nil {
		return nil, nil, err
	}
	// Read the record of the sandbox again: it may have changed during the wait for the lock.
	sb, err = s.finder.find(ctx, string(sb.ID))
	if err == nil {
		err = s.finder.allow(sb, v)
	}
	if err != nil {
		release()
		return nil, nil, err
	}
	return sb, release, nil
}

// GetSnapshot implements [caisson.Snapshots].
func (s *Snapshots) GetSnapshot(ctx context.Context, ref string) (*caisson.Snapshot, error) {
	in, _, err := caisson.ScopeOf(ctx)
	if err != nil {
		return nil, err
	}
	return s.snapshots.Get(ctx, in, ref)
}

// ListSnapshots implements [caisson.Snapshots].
func (s *Snapshots) ListSnapshots(ctx context.Context, f caisson.Filter) ([]*caisson.Snapshot, bool, error) {
	in, _, err := caisson.ScopeOf(ctx)
	if err != nil {
		return nil, false, err
	}
	return s.snapshots.List(ctx, in, f)
}

// RemoveSnapshot implements [caisson.Snapshots]. Running forks of the snapshot do not need its files.
func (s *Snapshots) RemoveSnapshot(ctx context.Context, ref string) error {
	snap, err := s.GetSnapshot(ctx, ref)
	if err != nil {
		return err
	}
	// The record is deleted first: a directory without a record is removed as garbage, but a record without a directory
	// would be wrong.
	if err := s.snapshots.Delete(ctx, caisson.In(snap.Account), string(snap.ID)); err != nil {
		return err
	}
	s.events.Publish(ctx, snap.Account, "snapshot.removed", string(snap.ID), nil)
	return errors.Join(s.pools.removeAll(ctx, forkPoolKey(snap)), os.RemoveAll(s.dirs.snapshotDir(snap.ID)))
}

// SetPool sets how many forks of a snapshot are kept running in advance, at most 64. [Snapshots.Fork] returns such forks. Each
// returned fork is replaced in the background, as far as the limits of the host allow it.
func (s *Snapshots) SetPool(ctx context.Context, ref string, size int) error {
	in, _, err := caisson.ScopeOf(ctx)
	if err != nil {
		return err
	}
	if size < 0 || size > maxPool {
		return caisson.Invalidf("size", "%d is not between 0 and %d", size, maxPool)
	}
	snap, err := s.snapshots.Update(ctx, in, ref, func(stored *caisson.Snapshot) error {
		if size > 0 && !stored.Memory {
			return caisson.Errorf(caisson.Conflict, "the snapshot has no memory, so its forks are not made in advance")
		}
		stored.Pool = size
		return nil
	})
	if err == nil {
		s.pools.refill(forkPoolKey(snap))
	}
	return err
}

// Fork implements [caisson.Snapshots].
func (s *Snapshots) Fork(ctx context.Context, ref string, req caisson.ForkRequest) ([]*caisson.Sandbox, error) {
	var closeDir func()
	req.Workspace, closeDir = closeOnce(req.Workspace)
	defer closeDir()
	if err := s.forker.planner.checkFork(ctx, &req); err != nil {
		return nil, err
	}
	if snap, err := s.GetSnapshot(ctx, ref); err == nil {
		if fork, err := s.pools.fork(ctx, snap, &req); fork != nil || err != nil {
			return []*caisson.Sandbox{fork}, err
		}
		return s.forker.fork(ctx, snapshotOrigin(snap), s.dirs.snapshotDir(snap.ID), &req)
	} else if caisson.KindOf(err) != caisson.NotFound {
		return nil, err
	}
	sb, release, err := s.lockFor(ctx, ref, caisson.VerbFork)
	if err != nil {
		return nil, err
	}
	defer release()
	from := origin{
		id: sb.ID, account: sb.Account, template: sb.Template, spec: sb.Spec, rootfs: sb.Rootfs, memory: sb.State != caisson.Stopped,
	}
	if err := errors.Join(s.workspaces.checkForkable(&from, &req), s.workspaces.checkPlaceholderEmpty(sb)); err != nil {
		return nil, err
	}
	if sb.State == caisson.Paused {
		return s.forker.fork(ctx, from, s.dirs.sandboxPath(sb.ID, pauseDir), &req)
	}
	// The capture is not stored as a snapshot: it is removed when the forks run, or by Reconcile after a crash.
	from.capture = caisson.NewID(caisson.SnapshotPrefix)
	defer s.unstored.hold(from.capture)()
	dir := s.dirs.snapshotDir(from.capture)
	if err := s.captures.capture(ctx, sb, dir, from.memory); err != nil {
		return nil, err
	}
	forks, err := s.forker.fork(ctx, from, dir, &req)
	return forks, errors.Join(err, os.RemoveAll(dir))
}

// maxParallelForks is the maximum number of sandboxes that one fork request restores concurrently, because each restore needs a
// burst of CPU time.
const maxParallelForks = 4

// forker creates forks.
type forker struct {
	planner *planner // resolves requests into plans
	creator *creator // executes plans
	remover *remover // removes sandboxes
}

// fork creates running sandboxes from the capture of from in the directory dir. If the creation of one fork fails, the others are
// removed.
func (k *forker) fork(ctx context.Context, from origin, dir string, req *caisson.ForkRequest) ([]*caisson.Sandbox, error) {
	plans, err := k.planner.forks(from, dir, req)
	if err != nil {
		return nil, err
	}
	forks := make([]*caisson.Sandbox, len(plans))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(maxParallelForks)
	for i, p := range plans {
		g.Go(func() (err error) {
			forks[i], err = k.creator.execute(gctx, p)
			return err
		})
	}
	if err = g.Wait(); err == nil {
		return forks, nil
	}
	for _, f := range forks {
		if f != nil {
			always := func(*caisson.Sandbox) bool { return true }
			err = errors.Join(err, k.remover.discard(context.WithoutCancel(ctx), f.ID, "another fork failed", always))
		}
	}
	return nil, err
}
