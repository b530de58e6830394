package gvisor

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
)

// TestPromise11NodeForks checks that the first random values in a fork of a running Node process, from each of its generators,
// differ from those in other forks of the same checkpoint and in the original, and that they are equal without the mitigation.
func TestPromise11NodeForks(t *testing.T) {
	t.Parallel()
	r := open(t)
	p := nodeProgram(t, "draw.js")
	original := p.start(t, r)
	image := original.checkpoint(t)
	original.wantShared(t)
	p.restore(t, r, image, "").wantShared(t, "node")
	p.restore(t, r, image, "openssl").wantShared(t, "node (crypto.randomUUID and crypto.randomInt, if used before)")
	for _, draw := range []string{
		"main randomUUID", "main randomBytes", "main getRandomValues", "main x25519", "main ed25519", "main rsa",
		"worker randomUUID", "worker randomBytes", "worker getRandomValues", "worker x25519", "worker ed25519", "worker rsa",
		"pool randomBytes", "pool x25519", "pool webcrypto",
	} {
		t.Run(draw, func(t *testing.T) {
			a, b := p.restore(t, r, image, "kernel").ask(t, draw), p.restore(t, r, image, "kernel").ask(t, draw)
			// It is not deterministic which thread of the pool generates the value.
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

// TestPromise11ForksOfForks checks that forks of a fork differ, too, whether or not the fork has generated random values itself.
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

// TestPromise11PythonForks checks that Python reads its secrets from the kernel each time, so that its forks need no mitigation,
// and that values from OpenSSL need it.
func TestPromise11PythonForks(t *testing.T) {
	t.Parallel()
	r := open(t)
	p := pythonProgram(t, "identity.py")
	g := p.start(t, r)
	g.ask(t, "tls")
	image := g.checkpoint(t)
	python, err := filepath.EvalSymlinks(p.command[0])
	if err != nil {
		t.Fatal(err)
	}
	seen, tls := map[string]bool{g.ask(t, "token"): true}, map[string]bool{}
	for range 2 {
		g := p.restore(t, r, image, "kernel")
		g.wantShared(t, filepath.Base(python))
		v := g.ask(t, "token")
		if len(v) != 32 || seen[v] {
			t.Errorf("a fork draws %q", v)
		}
		seen[v] = true
		tls[g.ask(t, "tls")] = true
	}
	if len(tls) != 1 {
		t.Error("OpenSSL in two forks draws differently without a mitigation; this test shows nothing")
	}
	for range 2 {
		g := p.restore(t, r, image, "openssl")
		g.wantShared(t)
		v := g.ask(t, "tls")
		if len(v) != 32 || tls[v] {
			t.Errorf("OpenSSL in a fork draws %q", v)
		}
		tls[v] = true
	}
}

// TestRenamedProcess checks that the PIDs that a renamed process gets for itself, its parent and its children are consistent
// after each of several restores, and that it has a different name each time.
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

// TestRenamedProcessWakes checks that a fork keeps its names when it is paused and resumed, and that its forks have others.
func TestRenamedProcessWakes(t *testing.T) {
	t.Parallel()
	r := open(t)
	p := pythonProgram(t, "identity.py")
	original := p.start(t, r)
	if before, woken := original.ask(t, "pid"), p.restore(t, r, original.checkpoint(t), "").ask(t, "pid"); woken != before {
		t.Errorf("a wake changed the pid from %s to %s", before, woken)
	}
	g := p.restore(t, r, original.checkpoint(t), "openssl")
	for range 2 {
		before := g.ask(t, "pid")
		woken := p.restore(t, r, g.checkpoint(t), "")
		if a, pid := woken.ask(t, "all"), woken.ask(t, "pid"); a != "ok" || pid != before {
			t.Errorf("a wake changed the pid from %s to %s: %s", before, pid, a)
		}
		g = p.restore(t, r, woken.checkpoint(t), "openssl")
		if pid := g.ask(t, "pid"); pid == before {
			t.Errorf("a fork has the pid %s of the sandbox before", pid)
		}
	}
}

// TestRenamedJobControl checks that job control of an interactive shell works in a fork, and that session leaders can set the
// terminal's foreground process group. A program with a Python multiprocessing pool continues; it can join a process that was
// started before the checkpoint only if the processes have no new names.
func TestRenamedJobControl(t *testing.T) {
	t.Parallel()
	r := open(t)
	p := pythonProgram(t, "jobs.py")
	image := p.start(t, r).checkpoint(t)
	for randomness, join := range map[string]string{"openssl": "refused: can only join a child process", "": "ok"} {
		g := p.restore(t, r, image, randomness)
		for question, want := range map[string]string{"jobs": "ok", "foreground": "ok", "workers": "ok", "join": join} {
			if a := g.ask(t, question); a != want {
				t.Errorf("randomness %q, asked for %s: %s", randomness, question, a)
			}
		}
		if randomness != "" {
			g.wantShared(t, "perl")
		}
	}
}

// TestRenamedProcessExecutes checks that a renamed process keeps its name after an exec, and that its PIDs are consistent.
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

// TestRenamedProcessAborts checks that abort terminates a renamed process.
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

// TestRenamedNode checks that the PIDs that Node stores and passes to its children are valid after a restore.
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

// TestStillClock checks that with a still clock, the time since the checkpoint is not on the monotonic clock, that without it,
// it is, and that the real-time clock is correct in both cases.
func TestStillClock(t *testing.T) {
	t.Parallel()
	r := open(t)
	for _, still := range []bool{true, false} {
		p := pythonProgram(t, "identity.py")
		p.still = still
		g := p.start(t, r)
		for generation := range 2 {
			image := g.checkpoint(t)
			monotonic, real := g.clocks(t)
			passed := time.Unix(0, int64(real*1e9))
			poll.Until(t, 2*time.Minute, func() bool { return time.Since(passed) > 3*time.Second })
			g = p.restore(t, r, image, "openssl")
			asked := time.Now()
			m, now := g.clocks(t)
			if stood := m-monotonic < 2.9; stood != still {
				t.Errorf("still %v, generation %d: the monotonic clock has gone from %f to %f in at least 3 seconds", still, generation, monotonic, m)
			}
			// The clock was read between asked and now.
			if at := time.Unix(0, int64(now*1e9)); at.Before(asked.Add(-2*time.Second)) || at.After(time.Now().Add(2*time.Second)) {
				t.Errorf("still %v, generation %d: the real-time clock is at %v, asked at %v", still, generation, at, asked)
			}
		}
	}
}

// clocks returns the monotonic clock and the time since 1970, both in seconds, of a guest that runs identity.py.
func (g guest) clocks(t *testing.T) (monotonic, real float64) {
	t.Helper()
	if _, err := fmt.Sscan(g.ask(t, "clocks"), &monotonic, &real); err != nil {
		t.Fatal(err)
	}
	return monotonic, real
}

// TestRandomnessUnknown checks that a restore with an unknown RuntimeSpec.Randomness is refused.
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
