package workspaces

import (
	"context"
	"time"
)

// ApplyAll does the periodic work of every Config.ApplyInterval.
func (c *Core) ApplyAll(ctx context.Context) { c.applyAll(ctx) }

// Clean removes the data that is old at a given time.
func (c *Core) Clean(ctx context.Context, at time.Time) { c.clean(ctx, at) }

// Busy returns how many job slots are in use.
func (c *Core) Busy() int { return len(c.layerFiles.jobSlots) }
