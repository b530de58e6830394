package runs

import (
	"context"
	"time"
)

// Settle does the periodic work of Run on idle sessions, at a given time.
func (c *Core) Settle(ctx context.Context, at time.Time) error {
	return c.sessions.pauseIdle(ctx, at)
}

// Trim removes the runs that ended before the given time.
func (c *Core) Trim(ctx context.Context, before time.Time) error { return c.trim(ctx, before) }

// Waiting returns how many callers wait for the warm snapshot of an account's agent.
func (c *Core) Waiting(id string) int {
	c.warmSnapshots.mu.Lock()
	defer c.warmSnapshots.mu.Unlock()
	if m := c.warmSnapshots.making[id]; m != nil {
		return len(m.waiting)
	}
	return 0
}

// Watched returns how many runs are watched.
func (c *Core) Watched() int {
	c.streams.mu.Lock()
	defer c.streams.mu.Unlock()
	return len(c.streams.notifiers)
}

// Idle reports whether no work is in progress, including cleanups and warm snapshots.
func (c *Core) Idle() bool {
	c.mu.Lock()
	busy := len(c.live) + len(c.cleanups)
	c.mu.Unlock()
	c.warmSnapshots.mu.Lock()
	defer c.warmSnapshots.mu.Unlock()
	return busy+len(c.warmSnapshots.making)+len(c.warmSnapshots.scheduled) == 0
}
