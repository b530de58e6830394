package gvisor

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
)

// TestForkBomb starts far more processes than allowed, in several concurrent attempts, as the guest's root.
func TestForkBomb(t *testing.T) {
	t.Parallel()
	const limit = 64
	r := open(t)
	id := caisson.NewID(caisson.SandboxPrefix)
	spec := newSpec(t, r, id)
	spec.Resources.PIDs = limit
	s := create(t, r, id, spec)
	var g errgroup.Group
	for range 4 {
		g.Go(func() error {
			out, _ := run(t, r, id, guestdPath, "test", "spawn", "2000")
			if n, err := strconv.Atoi(strings.TrimSpace(out)); err == nil && n >= limit {
				return fmt.Errorf("root could start %d processes with a limit of %d", n, limit)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	for script, want := range map[string]string{
		"ulimit -u": strconv.Itoa(limit),
		"ulimit -u 100000 2>/dev/null || echo no":  "no",
		"ulimit -Hu 100000 2>/dev/null || echo no": "no",
	} {
		if out, _ := run(t, r, id, "/bin/bash", "-c", script); strings.TrimSpace(out) != want {
			t.Errorf("%q says %q, want %q", script, out, want)
		}
	}
	p, err := r.Exec(t.Context(), id, caisson.RuntimeExec{Command: []string{"/bin/bash", "-c", ":(){ :|:& };: >/dev/null 2>&1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	count := func() int {
		list, err := r.Processes(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	poll.Until(t, time.Minute, func() bool { return count() > limit/2 })
	if err := r.Signal(t.Context(), id, -1, int(unix.SIGKILL)); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, time.Minute, func() bool { return count() == 1 })
	if out, st := run(t, r, id, "/bin/echo", "alive"); out != "alive\n" || !s.running() {
		t.Errorf("after a fork bomb the sandbox says %q, %v", out, st)
	}
}

// TestSizes fills the file systems that a guest can write to.
func TestSizes(t *testing.T) {
	t.Parallel()
	r := open(t)
	id := caisson.NewID(caisson.SandboxPrefix)
	spec := newSpec(t, r, id)
	spec.Resources.Memory, spec.Resources.Disk = 256<<20, 32<<20
	s := create(t, r, id, spec)
	for _, c := range []struct {
		file  string
		limit int64
	}{
		{"/root/big", 32 << 20}, {"/tmp/big", 32 << 20}, {"/dev/shm/big", 64 << 20},
	} {
		out, st := run(t, r, id, guestdPath, "test", "fill", c.file, strconv.Itoa(1<<30))
		written, why, _ := strings.Cut(strings.TrimSpace(out), " ")
		if n, err := strconv.ParseInt(written, 10, 64); err != nil || n > c.limit || n < c.limit/2 || !strings.Contains(why, "no space") {
			t.Errorf("filling %s with a limit of %d gave %q, %v", c.file, c.limit, out, st)
		}
	}
	if !s.running() {
		t.Error("the sandbox has ended")
	}
}
