package fake

import (
	"context"
	"sync"
)

// A gate blocks the processes of a sandbox between two steps while it is closed. Its zero value is open.
type gate struct {
	mu     sync.Mutex
	inside int           // number of steps in progress
	shut   chan struct{} // nil while open; closed when the gate opens again
	quiet  chan struct{} // nil unless close waits for inside to become 0
}

// enter waits until the gate is open and begins a step. After a nil error, the caller must call leave.
func (g *gate) enter(ctx context.Context) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		g.mu.Lock()
		shut := g.shut
		if shut == nil {
			g.inside++
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

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inside--
	if g.inside == 0 && g.quiet != nil {
		close(g.quiet)
		g.quiet = nil
	}
}

// close closes the gate and waits until no step is in progress. On error, the gate is open again. It reports whether the gate
// was open before.
func (g *gate) close(ctx context.Context) (was bool, err error) {
	g.mu.Lock()
	if g.shut != nil {
		g.mu.Unlock()
		return false, nil
	}
	g.shut = make(chan struct{})
	if g.inside == 0 {
		g.mu.Unlock()
		return true, nil
	}
	quiet := make(chan struct{})
	g.quiet = quiet
	g.mu.Unlock()
	select {
	case <-quiet:
		return true, nil
	case <-ctx.Done():
		g.open()
		return true, ctx.Err()
	}
}

// open opens the gate, so that steps can begin again.
func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut != nil {
		close(g.shut)
		g.shut, g.quiet = nil, nil
	}
}
