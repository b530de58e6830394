package sandboxes

import (
	"context"

	"github.com/caisson-dev/caisson"
)

// disconnectFor closes the connections from outside to a sandbox before a change that stops its processes, so that no request waits
// for a frozen sandbox. The sandbox's transient state is stored already.
func (c *changes) disconnectFor(ctx context.Context, id caisson.ID, v caisson.Verb) {
	if c.disconnect == nil || v != caisson.VerbSuspend && v != caisson.VerbPause && v != caisson.VerbStop {
		return
	}
	if err := c.disconnect(ctx, id); err != nil {
		c.log.ErrorContext(ctx, "connections from outside to a sandbox could not be closed", "sandbox", id, "err", err)
	}
}
