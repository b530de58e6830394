// Package osthread runs functions on threads that may be changed permanently, for example by unshare(2) and setns(2).
package osthread

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Do calls f on a new OS thread and returns the error of f. The thread is terminated after f, so f may change the
// thread's namespaces. It is never the main thread of the process: /proc/self shows the namespaces of that thread, and
// the runtime does not terminate it. Processes that f starts are in the namespaces of the thread; f must wait for those
// that have a parent death signal.
func Do(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // The thread stays locked, so that the runtime terminates it.
		if unix.Gettid() != unix.Getpid() {
			result <- f()
			return
		}
		// While the main thread is locked to this goroutine, other goroutines run on other threads.
		defer runtime.UnlockOSThread()
		result <- Do(f)
	}()
	return <-result
}
