// Package socketpair creates connected sockets for communication between processes of this program.
package socketpair

import (
	"os"

	"golang.org/x/sys/unix"
)

// New returns the two ends of a stream, both with close-on-exec set. near is nonblocking, so that deadlines and Close interrupt
// pending operations; far is blocking and is to be passed to another process, which chooses the mode.
func New() (near, far *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		unix.Close(fds[0])
		unix.Close(fds[1])
		return nil, nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fds[0]), "near"), os.NewFile(uintptr(fds[1]), "far"), nil
}
