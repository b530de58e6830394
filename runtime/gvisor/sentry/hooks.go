package sentry

import (
	"fmt"
	"os"

	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/syscalls/linux"
)

// Numbers of the system calls that are wrapped, for x86-64 (asm/unistd_64.h).
const (
	sysRtSigaction = 13
	sysIoctl       = 16
	sysPread64     = 17
	sysPwrite64    = 18
	sysGetpid      = 39
	sysClone       = 56
	sysFork        = 57
	sysVfork       = 58
	sysWait4       = 61
	sysKill        = 62
	sysSetpgid     = 109
	sysGetppid     = 110
	sysSetsid      = 112
	sysGettid      = 186
	sysWaitid      = 247
	sysPreadv      = 295
	sysPwritev     = 296
	sysPreadv2     = 327
	sysPwritev2    = 328
	sysClone3      = 435
)

// installHooks wraps system calls in gVisor's table of system calls, and request handlers in the gofer, depending on this
// process's arguments. It must run before gVisor starts a kernel.
func installHooks(args []string) {
	wrapSyscall(sysSetsid, func(original kernel.SyscallFn) kernel.SyscallFn {
		return func(t *kernel.Task, sysno uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
			ret, ctrl, err := original(t, sysno, args)
			if err == nil {
				leaveExecSession(t)
			}
			return ret, ctrl, err
		}
	})
	for _, sysno := range []uintptr{sysPread64, sysPwrite64, sysPreadv, sysPwritev, sysPreadv2, sysPwritev2} {
		wrapSyscall(sysno, refuseSeeks)
	}
	if hasCommand(args, "boot") {
		want, err := readRestoreConfig(args)
		if err != nil {
			fmt.Fprintf(os.Stderr, "caisson: cannot read how to restore the sandbox's random state: %v\n", err)
			os.Exit(1)
		}
		processSharing.install(want.reseed)
		if err := processConnections.install(); err != nil {
			fmt.Fprintf(os.Stderr, "caisson: cannot prepare for connections into the sandbox: %v\n", err)
			os.Exit(1)
		}
		installClock(want.still)
		if want.rename {
			(&pidRenamer{reseed: want.reseed}).install()
		}
		targets, err := readRecordTargets(args)
		if err != nil {
			fmt.Fprintf(os.Stderr, "caisson: cannot read the sandbox's workspaces: %v\n", err)
			os.Exit(1)
		}
		if len(targets) > 0 {
			newRecorder(targets).install()
		}
	}
	if hasCommand(args, "gofer") {
		hidden, targets, err := readHidden(args)
		if err == nil {
			err = installNameFilter(hidden, targets)
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "caisson: cannot hide names from the sandbox: %v\n", err)
			os.Exit(1)
		}
	}
	linux.AMD64.Init()
}

// wrapSyscall replaces gVisor's implementation of a system call by the result of around, which is called with that
// implementation.
func wrapSyscall(sysno uintptr, around func(original kernel.SyscallFn) kernel.SyscallFn) {
	call, ok := linux.AMD64.Table[sysno]
	if !ok {
		panic(fmt.Sprintf("gVisor has no system call %d", sysno))
	}
	call.Fn = around(call.Fn)
	linux.AMD64.Table[sysno] = call
}

// leaveExecSession marks a process that has called setsid as independent of the exec session that it descends from. At a
// restore, gVisor kills every process that descends from an exec, because the caller of the exec no longer exists. A process in
// a new session does not depend on its caller, so it continues, as on any Unix. The exec'd process itself, which has no parent,
// is not changed.
//
// The field Origin of a task is read only by a restore, while all tasks are stopped, and written only here, by the task itself.
func leaveExecSession(t *kernel.Task) {
	if t.Origin == kernel.OriginExec && t.Parent() != nil {
		t.Origin = kernel.OriginUnknown
	}
}
