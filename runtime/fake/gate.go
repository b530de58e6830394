package fake

import (
	"context"
	"sync"
)

// A gate lets the processes of a sandbox take steps, or holds all of them between two steps. Its zero value is open.
type gate struct {
	mu     sync.Mutex
	inside int           // steps under way
	shut   chan struct{} // nil while open; closed when the gate opens again
	quiet  chan struct{} // nil unless somebody waits for inside to become 0
}

// enter waits until the gate is open and counts a step; leave must follow a nil error.
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

// close lets no further step begin and returns when none is under way; on error the gate is open again. It reports
// whether the gate was open before.
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

// open lets steps begin again.
func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut != nil {
		close(g.shut)
		g.shut, g.quiet = nil, nil
	}
}
