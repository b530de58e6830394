package gvisor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// destroyTimeout limits Destroy if the caller sets no earlier deadline. A process that has not exited by then after SIGKILL is
// blocked in the kernel.
const destroyTimeout = 30 * time.Second

// Destroy implements [caisson.Runtime].
func (r *Runtime) Destroy(ctx context.Context, id caisson.ID) error {
	ctx, cancel := context.WithTimeout(ctx, destroyTimeout)
	defer cancel()
	r.mu.Lock()
	s, ok := r.sandboxes[id]
	r.mu.Unlock()
	if !ok {
		// The Runtime has no such sandbox, but a daemon that crashed may have left files or processes.
		s = newSandbox(r.watch, id, filepath.Join(r.cfg.Dir, string(id)))
	}
	s.kill()
	// There may also be a launcher, or processes of a launch that failed before its state was written.
	if err := r.watch.killByDir(ctx, s.dir); err != nil {
		return err
	}
	select {
	case <-s.done:
	case <-r.watch.ended: // the watcher no longer closes s.done, but killByDir has waited for the processes
	case <-ctx.Done():
		return fmt.Errorf("sandbox %s does not stop: %w", id, context.Cause(ctx))
	}
	if err := killGroup(ctx, filepath.Join(r.cfg.Cgroup, string(id))); err != nil {
		return err
	}
	if err := os.RemoveAll(s.dir); err != nil {
		return err
	}
	r.mu.Lock()
	if r.sandboxes[id] == s {
		delete(r.sandboxes, id)
	}
	r.mu.Unlock()
	return nil
}

// goferExited kills the sandbox, which cannot run without its gofer.
func (s *sandbox) goferExited() {
	if s.running() {
		s.kill()
	}
}

// kill kills the sentry and the gofer. Each is the init of a PID namespace, so the kernel kills their descendants too.
func (s *sandbox) kill() {
	for _, p := range []process{s.state.Main, s.state.Gofer} {
		if p.alive() {
			unix.Kill(p.PID, unix.SIGKILL)
		}
	}
}

// killByDir kills the gVisor processes of the sandboxes in or below dir, and waits until there are none. Orphans of a killed
// launcher are reaped by the watcher.
func (w *watcher) killByDir(ctx context.Context, dir string) error {
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		pids, err := gvisorProcesses(dir)
		if err != nil || len(pids) == 0 {
			return err
		}
		for _, pid := range pids {
			w.add(pid, nil) // an error means that the process has just exited
			unix.Kill(pid, unix.SIGKILL)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return fmt.Errorf("processes %v do not exit: %w", pids, context.Cause(ctx))
		}
	}
}

// gvisorProcesses returns the PIDs of the gVisor processes whose arguments contain a path below dir.
func gvisorProcesses(dir string) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		data, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err != nil || !strings.HasPrefix(string(data), "runsc-") {
			continue
		}
		if strings.Contains(string(data), dir+"/") && hasSandboxOwner(pid) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// hasSandboxOwner reports whether a process is owned by root or by a uid of a sandbox. The arguments of a process do not prove
// that it belongs to a sandbox, because any user can start a process with the same arguments.
func hasSandboxOwner(pid int) bool {
	var st unix.Stat_t
	err := unix.Stat("/proc/"+strconv.Itoa(pid), &st)
	return err == nil && (st.Uid == 0 || st.Uid >= minSandboxUID)
}

// minSandboxUID is below the uid ranges of all accounts and above the uids of users on typical hosts.
const minSandboxUID = 0x50000000

// Remains returns the ids of sandboxes that List does not return because they have no directory, but of which processes or
// cgroups of this data directory exist. The caller should destroy them.
func (r *Runtime) Remains() ([]caisson.ID, error) {
	r.mu.Lock()
	known := make(map[caisson.ID]bool, len(r.sandboxes))
	for id := range r.sandboxes {
		known[id] = true
	}
	r.mu.Unlock()

	found := map[caisson.ID]bool{}
	note := func(name string) {
		if id, err := caisson.ParseID(caisson.SandboxPrefix, name); err == nil && !known[id] {
			found[id] = true
		}
	}
	for _, dir := range groupDirs(r.cfg.Cgroup) {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			note(e.Name())
		}
	}
	pids, err := gvisorProcesses(r.cfg.Dir)
	if err != nil {
		return nil, err
	}
	for _, pid := range pids {
		data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		_, rest, _ := strings.Cut(string(data), r.cfg.Dir+"/")
		name, _, _ := strings.Cut(rest, "/")
		note(name)
	}
	return slices.Collect(maps.Keys(found)), nil
}
