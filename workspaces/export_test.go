package workspaces

import (
	"context"
	"time"
)

// ApplyAll is what is done every Config.Every.
func (c *Core) ApplyAll(ctx context.Context) { c.applyAll(ctx) }

// Clean forgets what is old at a time.
func (c *Core) Clean(ctx context.Context, at time.Time) { c.clean(ctx, at) }

// Busy is how many read trees.
func (c *Core) Busy() int { return len(c.jobs) }
