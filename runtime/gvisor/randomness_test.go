package gvisor

import (
	"strings"
	"testing"
)

// TestPromise11NodeForks: what a fork of a running Node draws first, whichever generator that comes from, is drawn by no
// other fork of the same checkpoint, nor by the original. Without the mitigation it is.
func TestPromise11NodeForks(t *testing.T) {
	r := open(t)
	p := nodeProgram(t, "draw.js")
	original := p.start(t, r)
	image := original.checkpoint(t)
	for _, draw := range []string{
		"main randomUUID", "main randomBytes", "main getRandomValues", "main x25519", "main ed25519", "main rsa",
		"worker randomUUID", "worker randomBytes", "worker getRandomValues", "worker x25519", "worker ed25519", "worker rsa",
		"pool randomBytes", "pool x25519", "pool webcrypto",
	} {
		t.Run(draw, func(t *testing.T) {
			a, b := p.restore(t, r, image, "kernel").ask(t, draw), p.restore(t, r, image, "kernel").ask(t, draw)
			// Which of the pool's threads draws is chance.
			if a != b && !strings.HasPrefix(draw, "pool") {
				t.Errorf("two forks draw %.60s and %.60s without a mitigation; this test shows nothing", a, b)
			}
			seen := map[string]string{original.ask(t, draw): "the original"}
			for _, name := range []string{"first", "second", "third"} {
				g := p.restore(t, r, image, "openssl")
				for range 2 {
					v := g.ask(t, draw)
					if other := seen[v]; other != "" || len(v) < 32 || strings.HasPrefix(v, "error") {
						t.Errorf("the %s fork draws %.300s, as does %s", name, v, other)
					}
					seen[v] = name
				}
			}
		})
	}
}
