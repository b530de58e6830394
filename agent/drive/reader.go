package drive

import (
	"errors"

	"golang.org/x/sys/unix"
)

// gone waits until nobody can read from the pipe or socket fd any more. It is false if that cannot be told.
func gone(fd int32) bool {
	ask := []unix.PollFd{{Fd: fd}} // errors are reported without being asked for
	for {
		_, err := unix.Poll(ask, -1)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil || ask[0].Revents&unix.POLLNVAL != 0:
			return false
		case ask[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0:
			return true
		}
	}
}
