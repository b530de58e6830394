package agent

import (
	"unicode/utf8"

	"github.com/caisson-dev/caisson"
)

// The reasons why forks of a warm snapshot draw randomness of their own, see [caisson.Warm].
const (
	fromKernel  = "kernel"
	fromOpenSSL = "openssl"
)

// warm checks the recipe of a warm snapshot.
func (c *checker) warm(a *caisson.Agent) {
	w := a.Warm
	if w == nil {
		return
	}
	c.oneOf("warm.randomness", w.Randomness, fromKernel, fromOpenSSL)
	if w.Randomness == fromKernel && (len(a.Service) > 0 || a.Driver == caisson.DriverOpenClaw) {
		// What a service has seeded before the snapshot would be the same in every fork.
		c.bad("warm.randomness", "kernel is for agents of which nothing runs in the snapshot; this one has a service there")
	}
	if len(w.Prompt) > 64<<10 || !utf8.ValidString(w.Prompt) {
		c.bad("warm.prompt", "is not text of at most 64KiB")
	}
	if w.Pool < 0 || w.Pool > maxPool {
		c.bad("warm.pool", "%d is not between 0 and %d", w.Pool, maxPool)
	} else if w.Pool > 0 && len(a.Service) > 0 {
		c.bad("warm.pool", "is for agents without a service; this one has a snapshot")
	}
}
