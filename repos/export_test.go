package repos

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
