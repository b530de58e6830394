package sandboxes

import (
	"context"
	"maps"
	"os"
	"strconv"
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/meminfo"
)

// admit decides whether the host can take one more live sandbox, and keeps its place until release, when it runs or will not.
func (h *host) admit(ctx context.Context, id caisson.ID) (release func(), err error) {
	if err := h.room(); err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
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
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.starting, id)
	}, nil
}

// room tells whether the host has memory and processes left for a sandbox.
func (h *host) room() error {
	if h.c.Limits.MemoryReserve > 0 {
		available, err := meminfo.Available()
		if err != nil {
			return err
		}
		if available < h.c.Limits.MemoryReserve {
			return caisson.Errorf(caisson.Exhausted, "the host has %s of memory available and keeps %s in reserve; stop or pause a sandbox", available, h.c.Limits.MemoryReserve)
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
