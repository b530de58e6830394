package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/cgroup"

	"github.com/caisson-dev/caisson"
)

// group returns the sandbox's cgroup; it need not exist.
func (s *sandbox) group() (cgroup.Cgroup, error) {
	if s.state.Cgroup == "" {
		return nil, os.ErrNotExist
	}
	return cgroup.NewFromPath(s.state.Cgroup, false)
}

// Stats implements [caisson.Runtime]. The numbers are the cgroup's: they include gVisor's own use for this sandbox.
func (r *Runtime) Stats(ctx context.Context, id caisson.ID) (*caisson.Stats, error) {
	s, err := r.getRunning(id)
	if err != nil {
		return nil, err
	}
	g, err := s.group()
	if err != nil {
		return nil, err
	}
	cpu, err := g.CPUUsage()
	if err != nil {
		return nil, fmt.Errorf("read processor time: %w", err)
	}
	used, _ := memoryFiles(cgroup.IsOnlyV2())
	memory, err := readNumber(filepath.Join(g.MakePath("memory"), used))
	if err != nil {
		return nil, fmt.Errorf("read memory use: %w", err)
	}
	procs, err := r.Processes(ctx, id)
	if err != nil {
		return nil, err
	}
	return &caisson.Stats{
		At: time.Now().UTC(), CPUNanos: int64(cpu), Memory: caisson.Size(memory), MemoryMax: s.state.Memory, PIDs: len(procs),
	}, nil
}

// memoryFiles returns the names of the files that tell how much memory a cgroup uses, and whether the kernel had to kill
// for want of it.
func memoryFiles(v2 bool) (used, events string) {
	if v2 {
		return "memory.current", "memory.events"
	}
	return "memory.usage_in_bytes", "memory.oom_control"
}

func readNumber(path string) (int64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
}

// EndReason says in a few words why a sandbox that is no longer running ended. It must be asked before Destroy.
func (r *Runtime) EndReason(id caisson.ID) string {
	s, err := r.get(id)
	if err != nil || !s.outOfMemory() {
		return "its main process died"
	}
	return "out of memory"
}

// endReason says why the sandbox ended, if the kernel did it for want of memory.
func (s *sandbox) endReason() string {
	if s.outOfMemory() {
		return "out of memory"
	}
	return "the sandbox ended"
}

// outOfMemory reports whether the kernel has killed a process of the sandbox for want of memory.
func (s *sandbox) outOfMemory() bool {
	g, err := s.group()
	if err != nil {
		return false
	}
	_, events := memoryFiles(cgroup.IsOnlyV2())
	data, err := os.ReadFile(filepath.Join(g.MakePath("memory"), events))
	return err == nil && oomKills(string(data)) > 0
}

// oomKills reads how many processes were killed out of either version's file; their line for it is the same.
func oomKills(events string) int {
	for line := range strings.Lines(events) {
		if n, ok := strings.CutPrefix(line, "oom_kill "); ok {
			kills, _ := strconv.Atoi(strings.TrimSpace(n))
			return kills
		}
	}
	return 0
}

// controllers are the hierarchies of cgroup v1 that gVisor makes groups in; on v2 all have one path.
var controllers = []string{
	"blkio", "cpu", "cpuacct", "cpuset", "devices", "freezer", "memory", "net_cls", "net_prio", "perf_event", "pids", "systemd", "rdma", "hugetlb", "job",
}

// groupDirs returns the directories of the cgroup of that name which exist on this host.
func groupDirs(name string) []string {
	g, err := cgroup.NewFromPath(name, false)
	if err != nil {
		return nil
	}
	var dirs []string
	seen := map[string]bool{}
	for _, c := range controllers {
		dir := g.MakePath(c)
		if _, err := os.Stat(dir); err == nil && !seen[dir] {
			seen[dir] = true
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// killGroup kills every process in the cgroup and removes it, however it came about.
func killGroup(ctx context.Context, name string) error {
	var errs []error
	for _, dir := range groupDirs(name) {
		errs = append(errs, removeGroup(ctx, dir))
	}
	return errors.Join(errs...)
}

func removeGroup(ctx context.Context, dir string) error {
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0) // v2 only
		data, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		for line := range strings.Lines(string(data)) {
			if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil && pid > 1 {
				unix.Kill(pid, unix.SIGKILL)
			}
		}
		err := unix.Rmdir(dir)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("remove cgroup %s: %w", dir, err)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return fmt.Errorf("remove cgroup %s: %w", dir, context.Cause(ctx))
		}
	}
}

// removeEmptyGroup removes the parent of the sandboxes' cgroups if nothing is in it. What is in use stays: rmdir sees to it.
// The parent's own parent is shared with other instances, which may be making their groups now, and stays too.
func removeEmptyGroup(name string) {
	for _, dir := range groupDirs(name) {
		if unix.Rmdir(dir) != nil {
			return
		}
	}
}

// expectMove makes the kernel ready for a process to be moved to another cgroup, which takes 10 ms otherwise: on v1, where a
// process cannot be born into its cgroup, it first waits until no processor is in the middle of a fork (a grace period of
// RCU), unless it has just done so. Writing this process's id to its own cgroup moves nothing, but begins the wait while the
// launcher is still starting. It is of no consequence if that fails.
func expectMove() {
	data, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return
	}
	for line := range strings.Lines(string(data)) {
		// hierarchy:controllers:path; v2 has neither a number nor controllers, other groups are those of systemd and the like.
		hierarchy, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		names, path, _ := strings.Cut(rest, ":")
		if hierarchy == "0" || names == "" || strings.Contains(names, "=") {
			continue
		}
		group := filepath.Join("/sys/fs/cgroup", names, path, "cgroup.procs")
		pid := strconv.Itoa(os.Getpid())
		// In a container the path may be another's here; then writing would move this process.
		members, err := os.ReadFile(group)
		if err == nil && slices.Contains(strings.Fields(string(members)), pid) && os.WriteFile(group, []byte(pid), 0) == nil {
			return
		}
	}
}
