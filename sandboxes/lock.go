package sandboxes

import (
	"context"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
)

// locks serialise the changes of each sandbox.
type locks struct {
	mu   sync.Mutex
	held map[caisson.ID]*lock // guarded by mu
}

type lock struct {
	token chan struct{} // holds one value while free
	users int           // holders and waiters; guarded by locks.mu
}

func newLocks() *locks { return &locks{held: map[caisson.ID]*lock{}} }

// acquire waits for the sandbox's lock until ctx ends.
func (l *locks) acquire(ctx context.Context, id caisson.ID) (release func(), err error) {
	k := l.enter(id)
	select {
	case <-k.token:
		return func() { k.token <- struct{}{}; l.leave(id, k) }, nil
	case <-ctx.Done():
		l.leave(id, k)
		return nil, context.Cause(ctx)
	}
}

// try returns a Conflict instead of waiting.
func (l *locks) try(id caisson.ID) (release func(), err error) {
	k := l.enter(id)
	select {
	case <-k.token:
		return func() { k.token <- struct{}{}; l.leave(id, k) }, nil
	default:
		l.leave(id, k)
		return nil, caisson.Errorf(caisson.Conflict, "another change of this sandbox is under way; try again when it is done")
	}
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

func (l *locks) enter(id caisson.ID) *lock {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.held[id]
	if k == nil {
		k = &lock{token: make(chan struct{}, 1)}
		k.token <- struct{}{}
		l.held[id] = k
	}
	k.users++
	return k
}

func (l *locks) leave(id caisson.ID, k *lock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k.users--; k.users == 0 {
		delete(l.held, id)
	}
}
