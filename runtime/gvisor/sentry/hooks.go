package sentry

import (
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/syscalls/linux"
)

const sysSetsid = 112 // x86-64; asm/unistd_64.h

// installHooks wraps system calls in gVisor's table. It must run before gVisor starts a kernel.
func installHooks() {
	setsid := linux.AMD64.Table[sysSetsid]
	original := setsid.Fn
	setsid.Fn = func(t *kernel.Task, sysno uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		ret, ctrl, err := original(t, sysno, args)
		if err == nil {
			leaveExecSession(t)
		}
		return ret, ctrl, err
	}
	linux.AMD64.Table[sysSetsid] = setsid
	linux.AMD64.Init()
}

// leaveExecSession makes a daemon out of what an exec session left behind. gVisor kills every process that descends from
// an exec when it restores a checkpoint, because the caller of the exec is gone. A process that has put itself into a
// session of its own has said that it does not depend on its caller, so it continues, as it would on any Unix. The
// exec'd process itself (no parent) stays a session of its caller.
//
// Origin is read only by restore, with all tasks stopped, and written only here, on the task's own goroutine.
func leaveExecSession(t *kernel.Task) {
	if t.Origin == kernel.OriginExec && t.Parent() != nil {
		t.Origin = kernel.OriginUnknown
	}
}
