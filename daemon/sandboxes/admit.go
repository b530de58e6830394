package sandboxes

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/caisson-dev/caisson"
)

// checkCreate checks everything about a request that does not depend on the state of the host: its form and limits, the
// directories and workspace that the caller may use, policy and models, and the sandbox that it is assigned to. The host's
// capacity is checked by admit, and money by the lease of each call of a model.
func checkCreate(ctx context.Context, n network, w workspaces, req *caisson.CreateRequest) error {
	if err := validateCreate(req); err != nil {
		return err
	}
	if err := checkDirectories(ctx, req); err != nil {
		return err
	}
	if err := errors.Join(w.check(ctx, req.Workspace, req.Mounts), checkPlaceholder(req)); err != nil {
		return err
	}
	if err := n.check(ctx, "", req.Policy, req.Models); err != nil {
		return err
	}
	return n.checkAssignment(ctx, req.Assigned)
}

// admit checks that the host has room for one more live sandbox, and counts the sandbox as live until release is called.
// need is the memory in bytes that the sandbox uses from the start because it is restored from a checkpoint; it is
// reserved until the restore has filled the sandbox's memory (see releaseMemory). Returns an Exhausted error if a limit
// is reached.
func (h *processes) admit(ctx context.Context, id caisson.ID, need caisson.Size) (release func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.checkCapacity(need); err != nil {
		return nil, err
	}
	if h.c.Limits.MaxSandboxes > 0 {
		list, err := h.c.Runtime.List(ctx)
		if err != nil {
			return nil, err
		}
		live := maps.Clone(h.starting)
		for _, r := range list {
			live[r.ID] = true
		}
		if len(live) >= h.c.Limits.MaxSandboxes {
			return nil, caisson.Errorf(caisson.Exhausted, "%d sandboxes are running, which is the maximum; stop or pause one, or raise limits.maxSandboxes", len(live))
		}
	}
	h.starting[id] = true
	if need > 0 {
		h.reservedMemory[id] = need
	}
	return func() {
		h.mu.Lock()
		delete(h.starting, id)
		h.mu.Unlock()
		h.releaseMemory(id)
	}, nil
}

// releaseMemory ends the memory reservation of a sandbox. If the runtime is still filling the memory of the running sandbox,
// the reservation ends when that is done.
func (h *processes) releaseMemory(id caisson.ID) {
	done := func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.reservedMemory, id)
	}
	h.mu.Lock()
	_, promised := h.reservedMemory[id]
	h.mu.Unlock()
	filling, ok := h.c.Runtime.(caisson.MemoryWaiter)
	if !promised || !ok || !h.c.background.Start(func(ctx context.Context) {
		defer done()
		if err := filling.WaitForMemory(ctx, id); err != nil && caisson.KindOf(err) == caisson.Internal && ctx.Err() == nil {
			h.c.Log.WarnContext(ctx, "whether a sandbox has all of its memory is not known", "sandbox", id, "err", err)
		}
	}) {
		done()
	}
}

// checkCapacity returns an Exhausted error if the host has too little memory, disk space or too few PIDs left for a sandbox that
// uses need bytes of memory from the start. The caller must hold h.mu.
func (h *processes) checkCapacity(need caisson.Size) error {
	if h.c.Limits.MemoryReserve > 0 {
		available, err := h.c.Available()
		if err != nil {
			return err
		}
		for _, n := range h.reservedMemory {
			need += n
		}
		switch reserve := h.c.Limits.MemoryReserve; {
		case available < reserve:
			return caisson.Errorf(caisson.Exhausted, "the host has %s of memory available and keeps %s in reserve; stop or pause a sandbox", available, reserve)
		case available-reserve < need:
			return caisson.Errorf(caisson.Exhausted, "the host has %s of memory available and keeps %s in reserve; this sandbox and those being restored need %s; stop or pause a sandbox", available, reserve, need)
		}
	}
	if reserve := h.c.Limits.DiskReserve; reserve > 0 {
		free, err := h.c.Free()
		if err != nil {
			return err
		}
		if free < reserve {
			return caisson.Errorf(caisson.Exhausted, "the disk of the data directory has %s left and %s are kept in reserve; remove sandboxes, snapshots or workspaces", free, reserve)
		}
	}
	if h.c.Limits.PIDsReserve > 0 {
		used, most, err := hostTasks()
		if err != nil {
			return err
		}
		if most-used < h.c.Limits.PIDsReserve {
			return caisson.Errorf(caisson.Exhausted, "the host runs %d of at most %d processes; stop a sandbox or raise kernel.pid_max and kernel.threads-max", used, most)
		}
	}
	return nil
}

// hostTasks returns the number of processes and threads on the host, and the maximum number that the kernel allows.
func hostTasks() (used, most int, err error) {
	data, err := os.ReadFile("/proc/loadavg") // 0.00 0.01 0.05 1/123 4567
	if err != nil {
		return 0, 0, err
	}
	if f := strings.Fields(string(data)); len(f) > 3 {
		_, total, _ := strings.Cut(f[3], "/")
		used, err = strconv.Atoi(total)
	}
	if err != nil {
		return 0, 0, err
	}
	most = 1 << 30
	for _, p := range []string{"/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"} {
		data, err := os.ReadFile(p)
		if err != nil {
			return 0, 0, err
		}
		n, err := strconv.Atoi(strings.TrimSpace(string(data)))
		if err != nil {
			return 0, 0, err
		}
		most = min(most, n)
	}
	return used, most, nil
}

// memoryOf returns the memory in bytes that a sandbox restored from the checkpoint in dir uses from the start: the disk
// space of the checkpoint's files, except the file archive and the workspace. The names of the other files depend on
// the runtime.
func memoryOf(dir string) caisson.Size {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0 // The restore reports the error.
	}
	var n caisson.Size
	for _, e := range entries {
		if e.Name() != filesTar && e.Name() != workspaceDir {
			n += diskUse(filepath.Join(dir, e.Name()))
		}
	}
	return n
}
