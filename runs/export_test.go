package runs

import (
	"context"
	"time"
)

// Settle is what Run does from time to time, at a time of the test's.
func (c *Core) Settle(ctx context.Context, at time.Time) error { return c.sessions.settle(ctx, at) }

// Trim forgets the runs that ended before.
func (c *Core) Trim(ctx context.Context, before time.Time) error { return c.trim(ctx, before) }
