package sandboxes

import "time"

// RetryDue sets when what was due and failed is tried again.
func (c *Core) RetryDue(after time.Duration) { c.deadlines.retry = after }
