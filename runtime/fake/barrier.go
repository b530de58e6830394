package fake

import (
	"context"
	"sync"
)

// A stepBarrier blocks the processes of a sandbox between two steps, which are calls of [Proc.Step], while it is closed. Its zero
// value is open.
type stepBarrier struct {
	mu       sync.Mutex
	active   int           // number of steps in progress; guarded by mu, as all fields
	reopened chan struct{} // closed when the barrier is opened again; nil while the barrier is open
	idle     chan struct{} // closed when active becomes 0; nil unless close waits for that
}

// enter waits until the barrier is open and begins a step. After a nil error, the caller must call leave.
func (g *stepBarrier) enter(ctx context.Context) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		g.mu.Lock()
		shut := g.reopened
		if shut == nil {
			g.active++
			g.mu.Unlock()
			return nil
		}
		g.mu.Unlock()
		select {
		case <-shut:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// leave ends a step that enter has begun.
func (g *stepBarrier) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.active--
	if g.active == 0 && g.idle != nil {
		close(g.idle)
		g.idle = nil
	}
}

// close closes the barrier and waits until no step is in progress. On error, the barrier is open again. It reports whether the
// barrier was open before.
func (g *stepBarrier) close(ctx context.Context) (wasOpen bool, err error) {
	g.mu.Lock()
	if g.reopened != nil {
		g.mu.Unlock()
		return false, nil
	}
	g.reopened = make(chan struct{})
	if g.active == 0 {
		g.mu.Unlock()
		return true, nil
	}
	quiet := make(chan struct{})
	g.idle = quiet
	g.mu.Unlock()
	select {
	case <-quiet:
		return true, nil
	case <-ctx.Done():
		g.open()
		return true, ctx.Err()
	}
}

// open opens the barrier, so that steps can begin again.
func (g *stepBarrier) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.reopened != nil {
		close(g.reopened)
		g.reopened, g.idle = nil, nil
	}
}
