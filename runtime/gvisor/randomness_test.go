package gvisor

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
)

// TestPromise11NodeForks: what a fork of a running Node draws first, whichever generator that comes from, is drawn by no
// other fork of the same checkpoint, nor by the original. Without the mitigation it is.
func TestPromise11NodeForks(t *testing.T) {
	t.Parallel()
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

// TestPromise11ForksOfForks: forks of a fork differ too, whether or not that has drawn anything since it was one.
func TestPromise11ForksOfForks(t *testing.T) {
	t.Parallel()
	r := open(t)
	p := nodeProgram(t, "draw.js")
	image := p.start(t, r).checkpoint(t)
	for _, c := range []struct{ name, between string }{
		{"used", "main randomBytes"}, {"private generator not used", "worker randomUUID"}, {"not used", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			parent := p.restore(t, r, image, "openssl")
			if c.between != "" {
				parent.ask(t, c.between)
			}
			second := parent.checkpoint(t)
			seen := map[string]bool{}
			forks := []guest{parent, p.restore(t, r, second, "openssl"), p.restore(t, r, second, "openssl")}
			for _, draw := range []string{"main x25519", "worker x25519", "main randomBytes"} {
				for i, g := range forks {
					v := g.ask(t, draw)
					if seen[v] {
						t.Errorf("fork %d draws %.80s for %s, as another does", i, v, draw)
					}
					seen[v] = true
				}
			}
		})
	}
}

// TestPromise11PythonForks: Python's secrets come from the kernel each time, so that its forks need no mitigation.
func TestPromise11PythonForks(t *testing.T) {
	t.Parallel()
	r := open(t)
	p := pythonProgram(t, "identity.py")
	g := p.start(t, r)
	image := g.checkpoint(t)
	seen := map[string]bool{g.ask(t, "token"): true}
	for range 3 {
		v := p.restore(t, r, image, "kernel").ask(t, "token")
		if len(v) != 32 || seen[v] {
			t.Errorf("a fork draws %q", v)
		}
		seen[v] = true
	}
}

// TestRenamedProcess: a process that was given another pid by a restore is at one with itself and its relatives, restore
// after restore, and has a name of its own each time.
func TestRenamedProcess(t *testing.T) {
	t.Parallel()
	r := open(t)
	p := pythonProgram(t, "identity.py")
	g := p.start(t, r)
	names := map[string]bool{}
	for generation := range 4 {
		for _, question := range []string{"all", "all", "end", "all"} {
			if a := g.ask(t, question); a != "ok" {
				t.Fatalf("generation %d, asked for %s: %s", generation, question, a)
			}
		}
		pid := g.ask(t, "pid")
		if names[pid] {
			t.Errorf("in generation %d the pid is %s again", generation, pid)
		}
		names[pid] = true
		g = p.restore(t, r, g.checkpoint(t), "openssl")
	}
}

// TestRenamedProcessExecutes: a renamed process that becomes another program is as much at one with itself.
func TestRenamedProcessExecutes(t *testing.T) {
	t.Parallel()
	r := open(t)
	p := pythonProgram(t, "identity.py")
	g := p.restore(t, r, p.start(t, r).checkpoint(t), "openssl")
	before := g.ask(t, "pid")
	g.try(t, "exec")
	g.waitReady(t)
	if after := g.ask(t, "pid"); after != before {
		t.Errorf("execve changed the pid from %s to %s", before, after)
	}
	if a := g.ask(t, "all"); a != "ok" {
		t.Error(a)
	}
}

// TestRenamedProcessAborts: abort ends a renamed process as it ends any.
func TestRenamedProcessAborts(t *testing.T) {
	t.Parallel()
	r := open(t)
	for name, p := range map[string]program{"python": pythonProgram(t, "identity.py"), "node": nodeProgram(t, "draw.js")} {
		t.Run(name, func(t *testing.T) {
			g := p.restore(t, r, p.start(t, r).checkpoint(t), "openssl")
			g.try(t, "abort")
			if st, err := r.WaitCommand(t.Context(), g.id); err != nil || st.Signal != int(unix.SIGABRT) {
				t.Errorf("it ended with %v, %v", st, err)
			}
		})
	}
}

// TestRenamedNode: what Node says about itself and to its children holds after a restore.
func TestRenamedNode(t *testing.T) {
	t.Parallel()
	r := open(t)
	p := nodeProgram(t, "draw.js")
	g := p.restore(t, r, p.start(t, r).checkpoint(t), "openssl")
	for range 2 {
		if a := g.ask(t, "self"); a != "ok" {
			t.Error(a)
		}
	}
}

// TestStillClock: for a fork of a warm snapshot no time has passed, but the hour is the hour. For what is resumed, it has.
func TestStillClock(t *testing.T) {
	t.Parallel()
	r := open(t)
	for _, randomness := range []string{"openssl", ""} {
		p := pythonProgram(t, "identity.py")
		g := p.start(t, r)
		for generation := range 2 {
			image := g.checkpoint(t)
			monotonic, real := g.clocks(t)
			passed := time.Unix(0, int64(real*1e9))
			poll.Until(t, 20*time.Second, func() bool { return time.Since(passed) > 3*time.Second })
			g = p.restore(t, r, image, randomness)
			asked := time.Now()
			m, now := g.clocks(t)
			if still := m-monotonic < 2.9; still != (randomness != "") {
				t.Errorf("randomness %q, generation %d: the monotonic clock has gone from %f to %f in at least 3 seconds", randomness, generation, monotonic, m)
			}
			// It was read at some time between asking and now.
			if at := time.Unix(0, int64(now*1e9)); at.Before(asked.Add(-2*time.Second)) || at.After(time.Now().Add(2*time.Second)) {
				t.Errorf("randomness %q, generation %d: the real-time clock is at %v, asked at %v", randomness, generation, at, asked)
			}
		}
	}
}

// clocks asks an identity.py for its monotonic clock and for the time since 1970, in seconds.
func (g guest) clocks(t *testing.T) (monotonic, real float64) {
	t.Helper()
	if _, err := fmt.Sscan(g.ask(t, "clocks"), &monotonic, &real); err != nil {
		t.Fatal(err)
	}
	return monotonic, real
}

// TestRandomnessUnknown: what nobody knows how to make fresh is not restored.
func TestRandomnessUnknown(t *testing.T) {
	t.Parallel()
	r := open(t)
	p := pythonProgram(t, "identity.py")
	image := p.start(t, r).checkpoint(t)
	id := caisson.NewID("sb")
	spec := p.spec(t, r, id)
	spec.Randomness = "dice"
	if err := r.Restore(t.Context(), id, spec, image); caisson.KindOf(err) != caisson.Invalid {
		t.Errorf("restored with %v", err)
	}
}
