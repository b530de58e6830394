package volumes

import "time"

// SetCountTime bounds a count otherwise than a daemon does. Call it before the first one.
func (c *Core) SetCountTime(d time.Duration) { c.counts.bound = d }
