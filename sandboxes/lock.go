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

// try acquires the sandbox's lock, or returns a Conflict error if it is held.
func (l *locks) try(id caisson.ID) (release func(), err error) {
	release, ok := l.Try(string(id))
	if !ok {
		return nil, caisson.Errorf(caisson.Conflict, "another change of this sandbox is under way; try again when it is done")
	}
	return release, nil
}

// lingerTime is how long a change waits for operations that hold the lock but are not changes: the cleanup after a
// completed change, or an access to files.
const lingerTime = time.Second

// soon waits up to lingerTime for the sandbox's lock, and then returns a Conflict error.
func (l *locks) soon(ctx context.Context, id caisson.ID) (release func(), err error) {
	little, cancel := context.WithTimeout(ctx, lingerTime)
	defer cancel()
	if release, err = l.acquire(little, id); err != nil && ctx.Err() == nil {
		return l.try(id)
	}
	return release, err
}
