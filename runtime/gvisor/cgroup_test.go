package gvisor

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gvisor.dev/gvisor/runsc/cgroup"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/testneed"
)

// TestCgroup reads the limits back from the kernel. With cgroup v2 only, the files have other names; this test has not been run
// on such a host.
func TestCgroup(t *testing.T) {
	t.Parallel()
	r := open(t)
	if cgroup.IsOnlyV2() {
		testneed.Skip(t, "cgroup1", "the host has only cgroup v2")
	}
	id := caisson.NewID(caisson.SandboxPrefix)
	spec := newSpec(t, r, id)
	spec.Resources.CPUs, spec.Resources.PIDs, spec.Resources.Memory = 1.5, 200, 300<<20
	s := create(t, r, id, spec)
	g, err := s.group()
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]int64{
		"memory/memory.limit_in_bytes": 300 << 20, "cpu/cpu.cfs_quota_us": 150_000, "cpu/cpu.cfs_period_us": 100_000,
		"pids/pids.max": 200 * hostPIDsFactor,
	} {
		controller, name := filepath.Split(file)
		if got, err := readNumber(filepath.Join(g.MakePath(filepath.Clean(controller)), name)); err != nil || got != want {
			t.Errorf("%s is %d, %v; want %d", file, got, err, want)
		}
	}
	for _, controller := range []string{"memory", "pids", "cpu", "cpuacct"} {
		procs := strings.Fields(readFile(t, filepath.Join(g.MakePath(controller), "cgroup.procs")))
		for _, p := range []process{s.state.Main, s.state.Gofer} {
			if !slices.Contains(procs, strconv.Itoa(p.PID)) {
				t.Errorf("process %d is not in %s: %v", p.PID, g.MakePath(controller), procs)
			}
		}
	}
}

func TestCgroupPaths(t *testing.T) {
	t.Parallel()
	g, err := cgroup.NewFromPath("/caisson/test/sb-1", false)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []string{"memory", "pids", "cpu"} {
		if p := g.MakePath(c); !strings.HasPrefix(p, "/sys/fs/cgroup/") || !strings.HasSuffix(p, "/caisson/test/sb-1") {
			t.Errorf("the group for %s is %s", c, p)
		}
	}
	if dirs := groupDirs("/no/such/group"); len(dirs) > 0 {
		t.Errorf("a group that does not exist has %q", dirs)
	}
}

// TestMemoryFiles tests the part of cgroup v2 that is independent of the host: names and formats, as in cgroups(7) and in the
// kernel's cgroup-v2.rst.
func TestMemoryFiles(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		v2             bool
		used, events   string
		content, after string
	}{
		{false, "memory.usage_in_bytes", "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"},
		{true, "memory.current", "memory.events", "low 0\nhigh 0\nmax 7\noom 1\noom_kill 0\noom_group_kill 0\n", "low 0\nhigh 0\nmax 7\noom 1\noom_kill 3\noom_group_kill 1\n"},
	} {
		used, events := memoryStatFiles(c.v2)
		if used != c.used || events != c.events {
			t.Errorf("memoryFiles(%v) = %q, %q", c.v2, used, events)
		}
		if oomKills(c.content) != 0 || oomKills(c.after) != 3 || oomKills("oom_kill x") != 0 || oomKills("") != 0 {
			t.Errorf("oomKills of %q is %d, of %q %d", c.content, oomKills(c.content), c.after, oomKills(c.after))
		}
	}
	file := filepath.Join(t.TempDir(), "memory.current")
	if err := os.WriteFile(file, []byte("4096\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if n, err := readNumber(file); n != 4096 || err != nil {
		t.Errorf("readNumber = %d, %v", n, err)
	}
}

// TestOutOfMemory makes the kernel kill a sandbox because it is out of memory.
func TestOutOfMemory(t *testing.T) {
	t.Parallel()
	r := open(t)
	id := caisson.NewID(caisson.SandboxPrefix)
	spec := newSpec(t, r, id)
	spec.Resources.Memory = 192 << 20
	spec.Command = []string{"/bin/sleep", "1000"}
	create(t, r, id, spec)
	done := r.Done(id)
	if _, st := run(t, r, id, guestdPath, "test", "alloc", fmt.Sprint(1<<30)); !strings.Contains(st.Reason, "memory") {
		t.Errorf("what used too much ended with %+v", st)
	}
	<-done
	if st, err := r.WaitCommand(t.Context(), id); err != nil || !strings.Contains(st.Reason, "memory") {
		t.Errorf("the command ended with %+v, %v", st, err)
	}
	if reason := r.EndReason(id); !strings.Contains(reason, "memory") {
		t.Errorf("the sandbox ended because %s", reason)
	}
}
