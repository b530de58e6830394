package sandboxes

import (
	"context"
	"errors"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/keylock"
)

// remover removes sandboxes.
type remover struct {
	states     states      // stored records of sandboxes
	locks      *locks      // one lock for each sandbox
	watches    *watches    // monitors running sandboxes
	deadlines  *deadlines  // timers for TTLs and autoPause
	processes  *processes  // starts and kills processes of sandboxes
	workspaces *workspaces // workspaces and volumes of sandboxes
	dirs       dirs        // paths and files in the data directory
	network    network     // configures wires and creates budgets
	unresolved *idSet      // sandboxes whose last change has an outcome that is not stored
}

// forceRemove removes a sandbox, even if a change of it is in progress.
func (r *remover) forceRemove(ctx context.Context, id caisson.ID) error {
	release, err := r.lock(ctx, id)
	if err != nil {
		return err
	}
	defer release()
	return r.remove(ctx, id, "")
}

// discard removes a sandbox without a request of a client, if needless returns true for its record. needless is called while the
// sandbox's lock is held. reason is recorded in the event.
func (r *remover) discard(ctx context.Context, id caisson.ID, reason string, needless func(*caisson.Sandbox) bool) error {
	release, err := r.locks.acquire(ctx, id)
	if err != nil {
		return err
	}
	defer release()
	_, err = r.states.set(ctx, id, caisson.Removing, func(s *caisson.Sandbox) error {
		if !needless(s) {
			return errUnchanged
		}
		return nil
	})
	if errors.Is(err, errUnchanged) || caisson.KindOf(err) == caisson.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	return r.remove(ctx, id, reason)
}

// removeWait is how long a removal waits for a change in progress before it kills the sandbox's processes.
const removeWait = 2 * time.Second

// lock acquires a sandbox's lock for its removal. If a change of the sandbox does not end because the sandbox does not respond,
// lock kills the sandbox's processes, which ends the change.
func (r *remover) lock(ctx context.Context, id caisson.ID) (release func(), err error) {
	wait, cancel := context.WithTimeout(ctx, removeWait)
	defer cancel()
	if release, err = r.locks.acquire(wait, id); err == nil || ctx.Err() != nil {
		return release, err
	}
	if err := r.processes.kill(context.WithoutCancel(ctx), id); err != nil {
		return nil, err
	}
	return r.locks.acquire(ctx, id)
}

// remove deletes a sandbox and all its data. The caller must hold its lock. reason is recorded in the event.
func (r *remover) remove(ctx context.Context, id caisson.ID, reason string) error {
	sb, err := r.states.set(ctx, id, caisson.Removing, nil)
	if err != nil {
		return err
	}
	// A removal that has begun is completed even if the request has been cancelled.
	ctx = context.WithoutCancel(ctx)
	r.watches.unwatch(id)
	r.deadlines.disarm(id)
	if err := r.processes.halt(ctx, id); err != nil {
		return err
	}
	if err := r.workspaces.release(ctx, sb); err != nil {
		return err
	}
	if err := r.dirs.removeSandboxDir(ctx, id); err != nil {
		return err
	}
	if err := r.network.deleteBudget(ctx, sb); err != nil {
		return err
	}
	if err := r.states.remove(ctx, id); err != nil {
		return err
	}
	r.unresolved.set(id, false)
	sb.Reason = reason
	r.states.event(ctx, sb, "sandbox.removed", reasonData(sb))
	return nil
}

// locks contains a lock for each sandbox, which serialises the changes of the sandbox.
type locks struct{ keylock.Locks }

// acquire acquires a sandbox's lock. It waits for the lock until ctx ends.
func (l *locks) acquire(ctx context.Context, id caisson.ID) (release func(), err error) {
	return l.Acquire(ctx, string(id))
}

// tryAcquire acquires a sandbox's lock, or returns a Conflict error if the lock is held.
func (l *locks) tryAcquire(id caisson.ID) (release func(), err error) {
	release, ok := l.Try(string(id))
	if !ok {
		return nil, caisson.Errorf(caisson.Conflict, "another change of this sandbox is under way; try again when it is done")
	}
	return release, nil
}

// lockWait is how long a change waits for a sandbox's lock that is held by an operation other than a change: the cleanup after a
// completed change, or an access to files.
const lockWait = time.Second

// acquireSoon acquires a sandbox's lock. It returns a Conflict error if the lock is held for longer than lockWait.
func (l *locks) acquireSoon(ctx context.Context, id caisson.ID) (release func(), err error) {
	little, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	if release, err = l.acquire(little, id); err != nil && ctx.Err() == nil {
		return l.tryAcquire(id)
	}
	return release, err
}
