package sandboxes

import (
	"context"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/keylock"
)

// locks serialise the changes of each sandbox.
type locks struct{ keylock.Locks }

// acquire waits for the sandbox's lock until ctx ends.
func (l *locks) acquire(ctx context.Context, id caisson.ID) (release func(), err error) {
	return l.Acquire(ctx, string(id))
}

// try returns a Conflict instead of waiting.
func (l *locks) try(id caisson.ID) (release func(), err error) {
	release, ok := l.Try(string(id))
	if !ok {
		return nil, caisson.Errorf(caisson.Conflict, "another change of this sandbox is under way; try again when it is done")
	}
	return release, nil
}

// lingerTime is how long a change waits for what is no change: the tidying after one that is done, a look at files.
const lingerTime = time.Second

// soon waits a little, and then returns a Conflict.
func (l *locks) soon(ctx context.Context, id caisson.ID) (release func(), err error) {
	little, cancel := context.WithTimeout(ctx, lingerTime)
	defer cancel()
	if release, err = l.acquire(little, id); err != nil && ctx.Err() == nil {
		return l.try(id)
	}
	return release, err
}
