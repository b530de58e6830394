// Package osthread runs functions on threads that may be changed for good, such as by unshare(2) and setns(2).
package osthread

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Do calls f on an OS thread of its own and returns f's error. The thread ends with f, so f may change the thread's namespaces. It is
// never the main thread of the process, whose namespaces /proc/self shows as those of the process and which the runtime does not end.
// Processes that f starts are in the namespaces of the thread; f must wait for those with a parent death signal.
func Do(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and not unlocked, so that the runtime ends the thread
		if unix.Gettid() != unix.Getpid() {
			result <- f()
			return
		}
		// While the main thread is locked to this goroutine, another goroutine runs on another thread.
		defer runtime.UnlockOSThread()
		result <- Do(f)
	}()
	return <-result
}
