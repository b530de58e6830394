package runs

import (
	"context"
	"time"
)

// Settle does the periodic work of Run on idle sessions, at a given time.
func (c *Core) Settle(ctx context.Context, at time.Time) error {
	return c.keeper.sessions.pauseIdle(ctx, at)
}

// Trim removes the runs that ended before the given time.
func (c *Core) Trim(ctx context.Context, before time.Time) error { return c.keeper.trim(ctx, before) }

// Waiting returns how many callers wait for the warm snapshot of an account's agent.
func (c *Core) Waiting(id string) int {
	c.warm.mu.Lock()
	defer c.warm.mu.Unlock()
	if m := c.warm.captures[id]; m != nil {
		return len(m.waiting)
	}
	return 0
}

// Watched returns how many runs are watched.
func (c *Core) Watched() int {
	return c.streams.notifier.Len()
}

// Idle reports whether no work is in progress, including cleanups and warm snapshots.
func (c *Core) Idle() bool {
	busy := c.live.any() || c.live.anyCleaning()
	c.warm.mu.Lock()
	defer c.warm.mu.Unlock()
	return !busy && len(c.warm.captures)+len(c.warm.scheduled) == 0
}
