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

// group returns the sandbox's cgroup, whether or not the cgroup exists on the host. Returns os.ErrNotExist if the sandbox's state
// names no cgroup.
func (s *sandbox) group() (cgroup.Cgroup, error) {
	if s.state.Cgroup == "" {
		return nil, os.ErrNotExist
	}
	return cgroup.NewFromPath(s.state.Cgroup, false)
}

// Stats implements [caisson.Runtime]. The numbers are those of the cgroup, which include gVisor's overhead for this sandbox.
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
	used, _ := memoryStatFiles(cgroup.IsOnlyV2())
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

// memoryStatFiles returns the names of the files with a cgroup's memory use and with its number of out-of-memory kills.
func memoryStatFiles(v2 bool) (used, events string) {
	if v2 {
		return "memory.current", "memory.events"
	}
	return "memory.usage_in_bytes", "memory.oom_control"
}

// readNumber returns the decimal number that is the content of a file.
func readNumber(path string) (int64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
}

// EndReason implements [caisson.EndReporter]: it returns a short description of why the sentry of a sandbox exited. It must
// be called after the exit and before Destroy, which removes the cgroup from which the reason is read.
func (r *Runtime) EndReason(id caisson.ID) string {
	s, err := r.get(id)
	if err != nil || !s.outOfMemory() {
		return "its main process died"
	}
	return "out of memory"
}

// statusReason returns the Reason in the exit status of a process that ended with its sandbox: "out of memory", or that the
// sandbox ended.
func (s *sandbox) statusReason() string {
	if s.outOfMemory() {
		return "out of memory"
	}
	return "the sandbox ended"
}

// outOfMemory reports whether the kernel has killed a process of the sandbox because the sandbox's memory limit was reached.
func (s *sandbox) outOfMemory() bool {
	g, err := s.group()
	if err != nil {
		return false
	}
	_, events := memoryStatFiles(cgroup.IsOnlyV2())
	data, err := os.ReadFile(filepath.Join(g.MakePath("memory"), events))
	return err == nil && oomKills(string(data)) > 0
}

// oomKills returns the number of processes that the kernel has killed for lack of memory. events is the content of the cgroup's
// file with this number, whose line has the same form in cgroup v1 and v2.
func oomKills(events string) int {
	for line := range strings.Lines(events) {
		if n, ok := strings.CutPrefix(line, "oom_kill "); ok {
			kills, _ := strconv.Atoi(strings.TrimSpace(n))
			return kills
		}
	}
	return 0
}

// controllers are the hierarchies of cgroup v1 in which gVisor creates groups. With cgroup v2, the path of a group is the same
// for each controller.
var controllers = []string{
	"blkio", "cpu", "cpuacct", "cpuset", "devices", "freezer", "memory", "net_cls", "net_prio", "perf_event", "pids", "systemd", "rdma", "hugetlb", "job",
}

// groupDirs returns the existing directories of the cgroup name, one for each hierarchy.
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

// killGroup kills every process in the cgroup and removes the cgroup.
func killGroup(ctx context.Context, name string) error {
	var errs []error
	for _, dir := range groupDirs(name) {
		errs = append(errs, removeGroup(ctx, dir))
	}
	return errors.Join(errs...)
}

// removeGroup kills every process in the cgroup with the directory dir and removes the directory, until that succeeds or ctx
// is done.
func removeGroup(ctx context.Context, dir string) error {
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0) // kills all processes at once; exists only in cgroup v2
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

// removeEmptyGroup removes the parent of the sandboxes' cgroups if it is empty; otherwise rmdir fails. The parent's parent is
// not removed, because it is shared with other instances of Caisson, which may be creating groups.
func removeEmptyGroup(name string) {
	for _, dir := range groupDirs(name) {
		if unix.Rmdir(dir) != nil {
			return
		}
	}
}

// prepareCgroupMove saves up to 10 ms when the launcher's process is moved to another cgroup. On v1, where a process cannot be
// created in its cgroup, the kernel first waits for an RCU grace period, unless there was one shortly before. Writing this
// process's PID to its current cgroup moves no process, but starts the grace period while the launcher is still starting.
// Errors are ignored, because this is only an optimisation.
func prepareCgroupMove() {
	data, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return
	}
	for line := range strings.Lines(string(data)) {
		// A line is hierarchy:controllers:path. The hierarchy of v2 has the number 0 and no controllers; named hierarchies such
		// as name=systemd have no controllers either.
		hierarchy, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		names, path, _ := strings.Cut(rest, ":")
		if hierarchy == "0" || names == "" || strings.Contains(names, "=") {
			continue
		}
		group := filepath.Join("/sys/fs/cgroup", names, path, "cgroup.procs")
		pid := strconv.Itoa(os.Getpid())
		// In a container, the path may refer to another cgroup; writing the PID to that cgroup would move this process.
		members, err := os.ReadFile(group)
		if err == nil && slices.Contains(strings.Fields(string(members)), pid) && os.WriteFile(group, []byte(pid), 0) == nil {
			return
		}
	}
}
