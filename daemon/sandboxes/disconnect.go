package sandboxes

import (
	"context"

	"github.com/caisson-dev/caisson"
)

// disconnect closes the connections from outside to a sandbox before a change that stops its processes, so that no request waits
// for a frozen sandbox. The sandbox's transient state is stored already.
func (c *Core) disconnect(ctx context.Context, id caisson.ID, v caisson.Verb) {
	if c.Disconnect == nil || v != caisson.VerbSuspend && v != caisson.VerbPause && v != caisson.VerbStop {
		return
	}
	if err := c.Disconnect(ctx, id); err != nil {
		c.Log.ErrorContext(ctx, "connections from outside to a sandbox could not be closed", "sandbox", id, "err", err)
	}
}
