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

// A stillClock makes the monotonic clock of a restored kernel go on where it was when the checkpoint was made, as Linux's does
// after a suspension (clock_gettime(2): CLOCK_MONOTONIC does not count time that the system is suspended). gVisor's jumps by
// the time that has passed, and with that every timer of a snapshot that is older than the timer's period fires in each of
// its forks at once: caches are emptied, workers end, connections time out, all of which was kept warm for the fork. The
// real-time clock is right in either case.
//
// It is saved with every kernel. Where a fork is to have it, it changes what gVisor's timekeeper has saved for itself, between
// the load of the kernel's state and the setting of its clocks.
type stillClock struct{ keeper *kernel.Timekeeper }

// wantStill says that this process restores such a fork. Written before gVisor runs.
var wantStill bool

// installClock has a stillClock saved with the kernel of this process, and used if it comes out of a checkpoint that has one
// and still is set. It must run before gVisor starts a kernel.
func installClock(still bool) {
	wantStill = still
	var once sync.Once
	// Every sandbox's first process begins its command with one of these.
	for _, sysno := range []uintptr{sysClone, sysClone3, sysFork, sysVfork} {
		wrap(sysno, func(original kernel.SyscallFn) kernel.SyscallFn {
			return func(t *kernel.Task, sysno uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
				once.Do(func() { t.Kernel().AddStateToCheckpoint(clockKey, &stillClock{t.Kernel().Timekeeper()}) })
				return original(t, sysno, args)
			}
		})
	}
}

// clockKey is what a stillClock is saved under.
const clockKey = "caisson.clock"

// savedAtOffset is where the timekeeper has the real time at which it was saved.
var savedAtOffset = fieldOf[kernel.Timekeeper, int64]("saveRealtime")

// afterLoad makes it seem that no time has passed since the checkpoint: the timekeeper takes a real-time clock that was put
// back for no time.
func (c *stillClock) afterLoad(ctx context.Context) {
	loaded.restored(ctx)
	if !wantStill {
		return
	}
	*(*int64)(unsafe.Add(unsafe.Pointer(c.keeper), savedAtOffset)) = math.MaxInt64
}

func init() { state.Register((*stillClock)(nil)) }

func (c *stillClock) StateTypeName() string { return "runtime/gvisor/sentry.stillClock" }
func (c *stillClock) StateFields() []string { return []string{"keeper"} }

func (c *stillClock) StateSave(sink state.Sink) { sink.Save(0, &c.keeper) }

func (c *stillClock) StateLoad(ctx context.Context, source state.Source) {
	source.LoadWait(0, &c.keeper)
	source.AfterLoad(func() { c.afterLoad(ctx) })
}
