package drive

import (
	"errors"

	"golang.org/x/sys/unix"
)

// waitForHangup waits until the pipe or socket fd has no reader, and returns true; false if the state of fd cannot be determined.
func waitForHangup(fd int32) bool {
	ask := []unix.PollFd{{Fd: fd}} // requests no events: POLLERR and POLLHUP are always reported
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
