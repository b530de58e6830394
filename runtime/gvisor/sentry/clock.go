package sentry

import (
	"context"
	"math"
	"sync"
	"unsafe"

	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/state"
)

// A stillClock makes the monotonic clock of a restored kernel continue at its value in the checkpoint, as Linux's does after a
// suspension (clock_gettime(2): CLOCK_MONOTONIC does not count time that the system is suspended). gVisor's clock jumps by the
// elapsed time, so in each fork of an older snapshot all timers with shorter periods fire at once: caches are emptied, workers
// exit and connections time out, although the snapshot was made to keep them. The real-time clock is correct in either case.
//
// A stillClock is saved with every kernel. If restoreStillClock is set at a restore, it changes the saved state of gVisor's
// timekeeper after the kernel's state was loaded and before its clocks are set.
type stillClock struct{ keeper *kernel.Timekeeper }

// restoreStillClock reports whether this process restores a sandbox whose monotonic clock must continue at its value in the
// checkpoint. It is set before gVisor starts a kernel.
var restoreStillClock bool

// installClock adds a stillClock to the checkpoints of this process's kernel. If still is set, and the kernel is restored from a
// checkpoint with a stillClock, its monotonic clock continues at the saved value. It must run before gVisor starts a kernel.
func installClock(still bool) {
	restoreStillClock = still
	var once sync.Once
	// The first process of a sandbox starts the command with one of the following system calls, so the stillClock is added before a
	// checkpoint can be made.
	for _, sysno := range []uintptr{sysClone, sysClone3, sysFork, sysVfork} {
		wrapSyscall(sysno, func(original kernel.SyscallFn) kernel.SyscallFn {
			return func(t *kernel.Task, sysno uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
				once.Do(func() { t.Kernel().AddStateToCheckpoint(clockKey, &stillClock{t.Kernel().Timekeeper()}) })
				return original(t, sysno, args)
			}
		})
	}
}

// clockKey is the key under which a checkpoint contains the stillClock.
const clockKey = "caisson.clock"

// savedAtOffset is the offset in [kernel.Timekeeper] of the field with the real time at which the checkpoint was saved.
var savedAtOffset = fieldOffset[kernel.Timekeeper, int64]("saveRealtime")

// afterLoad stores the restored kernel, which calls of the daemon need. If restoreStillClock is set, it also sets the saved real
// time to the maximum of its type: gVisor's timekeeper assumes that no time has elapsed if that time is later than the current.
func (c *stillClock) afterLoad(ctx context.Context) {
	processSharing.storeKernel(ctx)
	if !restoreStillClock {
		return
	}
	*(*int64)(unsafe.Add(unsafe.Pointer(c.keeper), savedAtOffset)) = math.MaxInt64
}

func init() { state.Register((*stillClock)(nil)) } // checkpoints contain a stillClock

func (c *stillClock) StateTypeName() string { return "runtime/gvisor/sentry.stillClock" }
func (c *stillClock) StateFields() []string { return []string{"keeper"} }

func (c *stillClock) StateSave(sink state.Sink) { sink.Save(0, &c.keeper) }

func (c *stillClock) StateLoad(ctx context.Context, source state.Source) {
	source.LoadWait(0, &c.keeper)
	source.AfterLoad(func() { c.afterLoad(ctx) })
}
