package runs

import (
	"context"
	"time"
)

// Settle is what Run does from time to time, at a time of the test's.
func (c *Core) Settle(ctx context.Context, at time.Time) error { return c.sessions.settle(ctx, at) }

// Trim forgets the runs that ended before.
func (c *Core) Trim(ctx context.Context, before time.Time) error { return c.trim(ctx, before) }

// Waiting is how many wait for the warm snapshot of an account's agent.
func (c *Core) Waiting(id string) int {
	c.warmth.mu.Lock()
	defer c.warmth.mu.Unlock()
	if m := c.warmth.making[id]; m != nil {
		return len(m.waiting)
	}
	return 0
}

// Watched is how many runs somebody watches.
func (c *Core) Watched() int {
	c.streams.mu.Lock()
	defer c.streams.mu.Unlock()
	return len(c.streams.wake)
}

// Idle reports whether nothing is under way, what runs leave behind and warm snapshots included.
func (c *Core) Idle() bool {
	c.mu.Lock()
	busy := len(c.live) + len(c.leaving)
	c.mu.Unlock()
	c.warmth.mu.Lock()
	defer c.warmth.mu.Unlock()
	return busy+len(c.warmth.making)+len(c.warmth.soon) == 0
}
