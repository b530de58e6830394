package agent

import (
	"unicode/utf8"

	"github.com/caisson-dev/caisson"
)

// Values of Warm.Randomness: the mechanism that gives each fork of a warm snapshot its own random numbers.
const (
	randomnessKernel  = "kernel"
	randomnessOpenSSL = "openssl"
)

// warm checks the configuration of warm snapshots.
func (c *checker) warm(a *caisson.Agent) {
	w := a.Warm
	if w == nil {
		return
	}
	c.oneOf("warm.randomness", w.Randomness, randomnessKernel, randomnessOpenSSL)
	if w.Randomness == randomnessKernel && (len(a.Service) > 0 || a.Driver == caisson.DriverOpenClaw) {
		// A service may have seeded its random number generator before the snapshot was taken, and all forks would then draw
		// the same numbers.
		c.addf("warm.randomness", "kernel is for agents of which nothing runs in the snapshot; this one has a service there")
	}
	if len(w.Prompt) > 64<<10 || !utf8.ValidString(w.Prompt) {
		c.addf("warm.prompt", "is not text of at most 64KiB")
	}
	if w.Pool < 0 || w.Pool > maxPool {
		c.addf("warm.pool", "%d is not between 0 and %d", w.Pool, maxPool)
	}
}
