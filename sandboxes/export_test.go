package sandboxes

import (
	"context"
	"time"
)

// Look is a look of the guard.
func (c *Core) Look(ctx context.Context) bool { return c.guard.look(ctx) }

// RetryDue sets when what was due and failed is tried again.
func (c *Core) RetryDue(after time.Duration) { c.deadlines.retry = after }
