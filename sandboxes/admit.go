package sandboxes

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/caisson-dev/caisson"
)

// admit decides whether the host can take one more live sandbox, and keeps its place until release, when it runs or will not. need is
// the memory that it has from the start, because it continues with what a checkpoint holds: so much is promised to it, and nobody else
// can be promised it, until it has it.
func (h *host) admit(ctx context.Context, id caisson.ID, need caisson.Size) (release func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.room(need); err != nil {
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
			return nil, caisson.Errorf(caisson.Exhausted, "%d sandboxes run already, as many as allowed; stop or pause one, or raise limits.maxSandboxes", len(live))
		}
	}
	h.starting[id] = true
	if need > 0 {
		h.promised[id] = need
	}
	return func() {
		h.mu.Lock()
		delete(h.starting, id)
		h.mu.Unlock()
		h.settle(id)
	}, nil
}

// settle takes back what was promised to a sandbox once it has its memory, or never will. A runtime that still fills the memory of
// sandboxes that run already says when that is done.
func (h *host) settle(id caisson.ID) {
	done := func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.promised, id)
	}
	h.mu.Lock()
	_, promised := h.promised[id]
	h.mu.Unlock()
	filling, ok := h.c.Runtime.(interface {
		Filled(context.Context, caisson.ID) error
	})
	if !promised || !ok || !h.c.do(func(ctx context.Context) {
		defer done()
		if err := filling.Filled(ctx, id); err != nil && caisson.KindOf(err) == caisson.Internal && ctx.Err() == nil {
			h.c.Log.WarnContext(ctx, "whether a sandbox has all of its memory is not known", "sandbox", id, "err", err)
		}
	}) {
		done()
	}
}

// room tells whether the host has memory and processes left for a sandbox that begins with need. Callers hold h.mu.
func (h *host) room(need caisson.Size) error {
	if h.c.Limits.MemoryReserve > 0 {
		available, err := h.c.Available()
		if err != nil {
			return err
		}
		for _, n := range h.promised {
			need += n
		}
		switch reserve := h.c.Limits.MemoryReserve; {
		case available < reserve:
			return caisson.Errorf(caisson.Exhausted, "the host has %s of memory available and keeps %s in reserve; stop or pause a sandbox", available, reserve)
		case available-reserve < need:
			return caisson.Errorf(caisson.Exhausted, "the host has %s of memory available and keeps %s in reserve; this and what is being restored already need %s; stop or pause a sandbox", available, reserve, need)
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

// hostTasks returns how many processes and threads the host runs and how many it may.
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

// memoryOf is how much memory what continues from the checkpoint in dir has from the start: the pages that are on disk. What they are
// kept in is the runtime's business, but not in the archive of files.
func memoryOf(dir string) caisson.Size {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0 // who restores from it will say so
	}
	var n caisson.Size
	for _, e := range entries {
		if e.Name() != filesTar && e.Name() != workspaceDir {
			n += diskUse(filepath.Join(dir, e.Name()))
		}
	}
	return n
}
