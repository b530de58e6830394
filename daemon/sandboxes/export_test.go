package sandboxes

import (
	"context"
	"time"

	"github.com/caisson-dev/caisson"
)

// Look runs one check of the guard.
func (c *Core) Look(ctx context.Context) bool { return c.diskGuard.check(ctx) }

// RetryDue sets the delay before a failed pause or removal is retried.
func (c *Core) RetryDue(after time.Duration) { c.expiry.retry = after }

// Expire does what is due for a sandbox now.
func (c *Core) Expire(ctx context.Context, id caisson.ID) error { return c.expiry.expire(ctx, id) }

// KeepFor sets how long a sandbox is kept whose final snapshot cannot be taken.
func (c *Core) KeepFor(d time.Duration) { c.expiry.keeper.retryFor = d }
