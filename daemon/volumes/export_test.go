package volumes

import "time"

// SetCountTime replaces the timeout of a count. Call it before the first count.
func (c *Core) SetCountTime(d time.Duration) { c.counts.timeout = d }
