package sandboxes

import "context"

// Look is a look of the guard.
func (c *Core) Look(ctx context.Context) bool { return c.guard.look(ctx) }
