package sandboxes

import (
	"context"
	"time"
)

// Look runs one check of the guard.
func (c *Core) Look(ctx context.Context) bool { return c.diskGuard.check(ctx) }

// RetryDue sets the delay before a failed pause or removal is retried.
func (c *Core) RetryDue(after time.Duration) { c.expiry.retry = after }
