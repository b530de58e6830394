package sandboxes

import (
	"context"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/background"
)

// admission decides whether the host has room for a sandbox that starts.
type admission struct {
	limits  Limits // limits of all sandboxes together
	runtime lister // lists the sandboxes on the host
	// memory waits until a restored sandbox has all of its memory; nil: restored sandboxes have it from the start.
	memory     caisson.MemoryWaiter
	evictor    *evictor                     // removes sandboxes from pools
	available  func() (caisson.Size, error) // returns the available memory of the host in bytes
	free       func() (caisson.Size, error) // returns the free disk space for the data directory in bytes
	background *background.Group            // background goroutines of the core
	log        *slog.Logger

	mu             sync.Mutex
	starting       map[caisson.ID]bool         // admitted sandboxes that may not be in the runtime's list yet; guarded by mu
	reservedMemory map[caisson.ID]caisson.Size // memory in bytes reserved for sandboxes that are being restored; guarded by mu
}

// admit checks that the host has room for one more live sandbox, and counts the sandbox as live until release is called. need is
// the memory in bytes that a sandbox restored from a checkpoint uses from the start, otherwise 0; it is reserved until the
// restore has filled the sandbox's memory (see releaseMemory). Returns an Exhausted error if a limit is reached. Sandboxes of
// pools are removed to make room for a sandbox that does not belong to a pool. For a fork that belongs to a pool, twice
// Limits.MemoryReserve must remain available.
func (a *admission) admit(ctx context.Context, sb *caisson.Sandbox, need caisson.Size) (release func(), err error) {
	if err := a.checkDisk(); err != nil {
		return nil, err
	}
	reserve := a.limits.MemoryReserve
	if sb.Pooled && need > 0 {
		if err := a.checkPoolMemory(ctx, need); err != nil {
			return nil, err
		}
		reserve *= 2
	}
	for {
		release, err = a.tryAdmit(ctx, sb.ID, need, reserve)
		if caisson.KindOf(err) != caisson.Exhausted || sb.Pooled || !a.evictionHelps(ctx, need) || !a.evictor.evict(ctx) {
			return release, err
		}
	}
}

// evictionHelps reports whether the removal of sandboxes from pools can make room for a sandbox that needs need bytes of memory.
// It returns true if a pool contains a sandbox of a template, because the memory that its removal makes available is not known.
func (a *admission) evictionHelps(ctx context.Context, need caisson.Size) bool {
	list, err := a.evictor.list(ctx)
	if err != nil || len(list) == 0 {
		return false
	}
	if slices.ContainsFunc(list, func(sb *caisson.Sandbox) bool { return sb.Parent == "" }) {
		return true
	}
	pooled := a.evictor.forkMemory(list)
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.checkMemory(need, a.limits.MemoryReserve, pooled) == nil
}

// checkPoolMemory returns an Exhausted error if the forks in all pools, together with a new fork that needs need bytes of memory,
// would use more memory than Limits.PoolMemory.
func (a *admission) checkPoolMemory(ctx context.Context, need caisson.Size) error {
	list, err := a.evictor.list(ctx)
	used := a.evictor.forkMemory(list)
	if most := a.limits.PoolMemory; err == nil && most > 0 && used+need > most {
		return caisson.Errorf(caisson.Exhausted, "forks that are made in advance have %s of memory, this one needs %s, and %s is the maximum; raise limits.poolMemory", used, need, most)
	}
	return err
}

// tryAdmit checks for [admission.admit] that the host has enough memory and process ids, and fewer sandboxes than
// Limits.MaxSandboxes; it removes no sandboxes. It counts the sandbox as live until release is called, and reserves need bytes of
// memory for it. reserve is the memory in bytes that must remain available.
func (a *admission) tryAdmit(ctx context.Context, id caisson.ID, need, reserve caisson.Size) (release func(), err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.checkCapacity(need, reserve); err != nil {
		return nil, err
	}
	if a.limits.MaxSandboxes > 0 {
		list, err := a.runtime.List(ctx)
		if err != nil {
			return nil, err
		}
		live := maps.Clone(a.starting)
		for _, r := range list {
			live[r.ID] = true
		}
		if len(live) >= a.limits.MaxSandboxes {
			return nil, caisson.Errorf(caisson.Exhausted, "%d sandboxes are running, and the maximum is %d; stop or pause one, or raise limits.maxSandboxes",
				len(live), a.limits.MaxSandboxes)
		}
	}
	a.starting[id] = true
	if need > 0 {
		a.reservedMemory[id] = need
	}
	return func() {
		a.mu.Lock()
		delete(a.starting, id)
		a.mu.Unlock()
		a.releaseMemory(id)
	}, nil
}

// releaseMemory ends the memory reservation of a sandbox. If the runtime is still filling the memory of the restored sandbox, the
// reservation ends when the runtime has filled it.
func (a *admission) releaseMemory(id caisson.ID) {
	done := func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.reservedMemory, id)
	}
	a.mu.Lock()
	_, promised := a.reservedMemory[id]
	a.mu.Unlock()
	if !promised || a.memory == nil || !a.background.Start(func(ctx context.Context) {
		defer done()
		if err := a.memory.WaitForMemory(ctx, id); err != nil && caisson.KindOf(err) == caisson.Internal && ctx.Err() == nil {
			a.log.WarnContext(ctx, "whether a sandbox has all of its memory is not known", "sandbox", id, "err", err)
		}
	}) {
		done()
	}
}

// waitForMemory waits until the runtime has filled all memory of a restored sandbox.
func (a *admission) waitForMemory(ctx context.Context, id caisson.ID) error {
	if a.memory == nil {
		return nil
	}
	return a.memory.WaitForMemory(ctx, id)
}

// run removes sandboxes from pools, one in each checkInterval, while the host has less available memory than
// Limits.MemoryReserve. It returns when ctx ends.
func (a *admission) run(ctx context.Context) {
	if a.limits.MemoryReserve == 0 {
		return
	}
	for {
		if available, err := a.available(); err != nil {
			a.log.ErrorContext(ctx, "the available memory is not known", "err", err)
		} else if available < a.limits.MemoryReserve {
			a.evictor.evict(ctx)
		}
		select {
		case <-time.After(checkInterval):
		case <-ctx.Done():
			return
		}
	}
}

// checkMemory returns an Exhausted error if the host has too little available memory for a sandbox that uses need bytes from the
// start: reserve bytes must remain. freed is the memory in bytes of sandboxes that can be removed. The caller must hold a.mu.
func (a *admission) checkMemory(need, reserve, freed caisson.Size) error {
	if reserve == 0 {
		return nil
	}
	available, err := a.available()
	if err != nil {
		return err
	}
	available += freed
	for _, n := range a.reservedMemory {
		need += n
	}
	switch {
	case available < reserve:
		return caisson.Errorf(caisson.Exhausted, "the host has %s of memory available and keeps %s in reserve; stop or pause a sandbox", available, reserve)
	case available-reserve < need:
		return caisson.Errorf(caisson.Exhausted, "the host has %s of memory available and keeps %s in reserve; this sandbox and those being restored need %s; stop or pause a sandbox", available, reserve, need)
	}
	return nil
}

// checkCapacity returns an Exhausted error if the host has too little memory, or too few process ids, for a sandbox that uses
// need bytes of memory from the start: reserve bytes of memory must remain available. The caller must hold a.mu.
func (a *admission) checkCapacity(need, reserve caisson.Size) error {
	if err := a.checkMemory(need, reserve, 0); err != nil {
		return err
	}
	if a.limits.PIDsReserve > 0 {
		used, most, err := hostTasks()
		if err != nil {
			return err
		}
		if most-used < a.limits.PIDsReserve {
			return caisson.Errorf(caisson.Exhausted, "the host runs %d of at most %d processes; stop a sandbox or raise kernel.pid_max and kernel.threads-max", used, most)
		}
	}
	return nil
}

// checkDisk returns an Exhausted error if the file system of the data directory has less free space than Limits.DiskReserve.
func (a *admission) checkDisk() error {
	reserve := a.limits.DiskReserve
	if reserve == 0 {
		return nil
	}
	free, err := a.free()
	if err == nil && free < reserve {
		return caisson.Errorf(caisson.Exhausted, "the disk of the data directory has %s left and %s are kept in reserve; remove sandboxes, snapshots or workspaces", free, reserve)
	}
	return err
}

// hostTasks returns the number of processes and threads on the host, and the maximum number that the kernel allows.
func hostTasks() (used, most int, err error) {
	data, err := os.ReadFile("/proc/loadavg") // such as "0.00 0.01 0.05 1/123 4567", where 123 is the number of tasks
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

// checkpointMemory returns the memory in bytes that a sandbox restored from the checkpoint in dir uses from the start: the disk
// space of its files, except the archive of changed files and the workspace. The names of the other files depend on the runtime.
func checkpointMemory(dir string) caisson.Size {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0 // not reported here, because the restore of the checkpoint will fail, too
	}
	var n caisson.Size
	for _, e := range entries {
		if e.Name() != filesTar && e.Name() != workspaceDir {
			n += diskUse(filepath.Join(dir, e.Name()))
		}
	}
	return n
}
