// Package socketpair makes streams between processes of this program.
package socketpair

import (
	"os"

	"golang.org/x/sys/unix"
)

// New returns the two ends of a stream, which no program inherits unasked. near is nonblocking, so that deadlines and Close end what is
// under way; far is to be given away, to a process that sets it as it likes.
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
