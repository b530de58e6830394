package sentry

import (
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/devpts"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
)

// refuseSeeks makes a system call that reads or writes at an offset fail on terminals with ESPIPE, as on Linux, instead of
// EINVAL. Programs such as OpenCode then read and write without an offset; with EINVAL they show nothing.
func refuseSeeks(original kernel.SyscallFn) kernel.SyscallFn {
	return func(t *kernel.Task, sysno uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		ret, ctrl, err := original(t, sysno, args)
		if linuxerr.Equals(linuxerr.EINVAL, err) && args[3].Int64() >= 0 && isTerminal(t, args[0].Int()) {
			err = linuxerr.ESPIPE
		}
		return ret, ctrl, err
	}
}

// isTerminal reports whether a descriptor is that of a terminal.
func isTerminal(t *kernel.Task, fd int32) bool {
	file := t.GetFile(fd)
	if file == nil {
		return false
	}
	defer file.DecRef(t)
	return file.Mount().Filesystem().FilesystemType().Name() == devpts.Name
}
