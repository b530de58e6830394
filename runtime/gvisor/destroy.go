package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// destroyTimeout bounds a destroy whose caller sets no bound: a process that SIGKILL does not end within it hangs in the
// kernel.
const destroyTimeout = 30 * time.Second

// Destroy implements [caisson.Runtime].
func (r *Runtime) Destroy(ctx context.Context, id caisson.ID) error {
	ctx, cancel := context.WithTimeout(ctx, destroyTimeout)
	defer cancel()
	r.mu.Lock()
	s, ok := r.sandboxes[id]
	r.mu.Unlock()
	if !ok {
		// Nothing is known; there may be remains of a daemon that died early.
		s = newSandbox(r.watch, id, filepath.Join(r.cfg.Dir, string(id)))
	}
	s.kill()
	// Besides the two processes there may be a launcher, and processes of a launch whose state was never written.
	if err := r.watch.killByDir(ctx, s.dir); err != nil {
		return err
	}
	select {
	case <-s.done:
	case <-r.watch.ended: // closed; nobody tells, but killByDir has seen the end
	case <-ctx.Done():
		return fmt.Errorf("sandbox %s does not end: %w", id, context.Cause(ctx))
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

// goferEnded ends what cannot go on without files.
func (s *sandbox) goferEnded() {
	if s.running() {
		s.kill()
	}
}

// kill ends the sandbox's processes: each is the init of a pid namespace, so all below it ends too.
func (s *sandbox) kill() {
	for _, p := range []process{s.state.Main, s.state.Gofer} {
		if p.alive() {
			unix.Kill(p.PID, unix.SIGKILL)
		}
	}
}

// killByDir kills the gVisor processes of the sandboxes in or below dir, and waits until there are none. What a killed
// launcher left is the daemon's to reap.
func (w *watcher) killByDir(ctx context.Context, dir string) error {
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		pids, err := processesOf(dir)
		if err != nil || len(pids) == 0 {
			return err
		}
		for _, pid := range pids {
			w.add(pid, nil) // it may have ended just now
			unix.Kill(pid, unix.SIGKILL)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return fmt.Errorf("processes %v do not end: %w", pids, context.Cause(ctx))
		}
	}
}

// processesOf returns the gVisor processes whose bundle is below dir: its path is in their arguments.
func processesOf(dir string) ([]int, error) {
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
		if strings.Contains(string(data), dir+"/") && mayBeOurs(pid) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// mayBeOurs reports whether a process belongs to root or to a sandbox. What its arguments say, anybody can say of himself.
func mayBeOurs(pid int) bool {
	var st unix.Stat_t
	err := unix.Stat("/proc/"+strconv.Itoa(pid), &st)
	return err == nil && (st.Uid == 0 || st.Uid >= minSandboxUID)
}

// minSandboxUID is below all accounts' ranges and above the users of any host that is set up in a usual way.
const minSandboxUID = 0x50000000

// Remains returns what exists on the host beyond the sandboxes that List knows: processes and cgroups of this data
// directory whose sandbox has no directory any more. The ids are to be destroyed.
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
	pids, err := processesOf(r.cfg.Dir)
	if err != nil {
		return nil, err
	}
	for _, pid := range pids {
		data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		_, rest, _ := strings.Cut(string(data), r.cfg.Dir+"/")
		name, _, _ := strings.Cut(rest, "/")
		note(name)
	}
	ids := make([]caisson.ID, 0, len(found))
	for id := range found {
		ids = append(ids, id)
	}
	return ids, nil
}
