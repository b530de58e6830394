package sandboxes

import (
	"context"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/keylock"
)

// locks serialises the changes of each sandbox.
type locks struct{ keylock.Locks }

// acquire waits for the sandbox's lock until ctx ends.
func (l *locks) acquire(ctx context.Context, id caisson.ID) (release func(), err error) {
	return l.Acquire(ctx, string(id))
}

// tryAcquire acquires the sandbox's lock, or returns a Conflict error if it is held.
func (l *locks) tryAcquire(id caisson.ID) (release func(), err error) {
	release, ok := l.Try(string(id))
	if !ok {
		return nil, caisson.Errorf(caisson.Conflict, "another change of this sandbox is under way; try again when it is done")
	}
	return release, nil
}

// lockWait is how long a change waits for operations that hold the lock but are not changes: the cleanup after a
// completed change, or an access to files.
const lockWait = time.Second

// acquireSoon waits up to lockWait for the sandbox's lock, and then returns a Conflict error.
func (l *locks) acquireSoon(ctx context.Context, id caisson.ID) (release func(), err error) {
	little, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	if release, err = l.acquire(little, id); err != nil && ctx.Err() == nil {
		return l.tryAcquire(id)
	}
	return release, err
}
