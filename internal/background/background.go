// Package background runs goroutines that outlive the calls that start them.
package background

import (
	"context"
	"errors"
	"sync"
	"time"
)

// errClosing is the cause with which the context of a closed group is cancelled.
var errClosing = errors.New("the daemon is shutting down")

// Group is a set of goroutines. It is safe for concurrent use.
type Group struct {
	ctx  context.Context         // the context that is passed to the goroutines
	stop context.CancelCauseFunc // cancels ctx

	mu sync.Mutex     // held while a goroutine is added, and while ctx is cancelled
	wg sync.WaitGroup // no goroutine is added once ctx has ended
}

// New returns a group without goroutines.
func New() *Group {
	g := &Group{}
	g.ctx, g.stop = context.WithCancelCause(context.Background())
	return g
}

// Context returns the context of the goroutines, which Close cancels. It belongs to no request and carries no caller.
func (g *Group) Context() context.Context { return g.ctx }

// Start runs f in a goroutine with the group's context. If g is closed, it does not run f and returns false.
func (g *Group) Start(f func(ctx context.Context)) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ctx.Err() != nil {
		return false
	}
	g.wg.Go(func() { f(g.ctx) })
	return true
}

// Stop cancels the context of the goroutines. Goroutines cannot be started afterwards.
func (g *Group) Stop() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stop(errClosing)
}

// Close cancels the context of the goroutines and waits until they have ended.
func (g *Group) Close() {
	g.Stop()
	g.wg.Wait()
}

// Every calls f periodically, for the first time after one interval, until ctx ends.
func Every(ctx context.Context, interval time.Duration, f func(ctx context.Context)) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			f(ctx)
		case <-ctx.Done():
			return
		}
	}
}
