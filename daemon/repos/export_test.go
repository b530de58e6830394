package repos

import "github.com/caisson-dev/caisson"

// Watched returns how many deliveries calls wait for.
func (c *Core) Watched() int { return c.queue.notifier.Len() }

// Busy returns how many streams and attempts are under way.
func (c *Core) Busy() int {
	c.streams.mu.Lock()
	defer c.streams.mu.Unlock()
	c.queue.mu.Lock()
	defer c.queue.mu.Unlock()
	return len(c.streams.open) + len(c.queue.sending) + len(c.queue.attempts)
}

// Touch stores a grant again, as the record of a push does; it reports whether the grant still exists.
func (c *Core) Touch(sandbox caisson.ID, repo string) (bool, error) {
	g := c.access.grants.get(sandbox, repo)
	if g == nil {
		return false, nil
	}
	g, err := c.access.grants.change(g, func(*grant) {})
	return g != nil, err
}
