package repos

import "github.com/caisson-dev/caisson"

// Watched is how many wait for deliveries.
func (c *Core) Watched() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, of := range c.watch {
		n += len(of)
	}
	return n
}

// Busy is how many streams and tries are under way.
func (c *Core) Busy() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.jobs) + len(c.sending) + len(c.tries)
}

// Touch stores a grant again, as a push does that is recorded; it reports whether there still is one.
func (c *Core) Touch(sandbox caisson.ID, repo string) (bool, error) {
	g := c.grants.granted(sandbox, repo)
	if g == nil {
		return false, nil
	}
	g, err := c.grants.change(g, func(*grant) {})
	return g != nil, err
}
