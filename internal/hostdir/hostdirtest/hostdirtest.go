// Package hostdirtest opens directories as clients in other mount namespaces do.
package hostdirtest

import (
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/testneed"
)

// Open opens dir in a mount namespace of its own, which lasts as long as the test. With private an empty file system has been mounted
// at dir there, so that here another directory has its path.
func Open(t testing.TB, dir string, private bool) *os.File {
	t.Helper()
	testneed.Root(t)
	type result struct {
		f   *os.File
		err error
	}
	opened, done := make(chan result), make(chan struct{})
	var alone func()
	alone = func() {
		runtime.LockOSThread() // it ends with this goroutine, and the namespace with it
		if unix.Gettid() == os.Getpid() {
			go alone() // on another thread: the main one stands for the process in /proc
		} else {
			f, err := openAlone(dir, private)
			opened <- result{f, err}
		}
		<-done
	}
	go alone()
	r := <-opened
	t.Cleanup(func() { close(done) })
	if r.err != nil {
		t.Fatal(r.err)
	}
	t.Cleanup(func() { r.f.Close() })
	return r.f
}

// openAlone gives the calling thread a mount namespace of its own.
func openAlone(dir string, private bool) (*os.File, error) {
	if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
		return nil, os.NewSyscallError("unshare", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return nil, os.NewSyscallError("mount", err)
	}
	if private {
		if err := unix.Mount("private", dir, "tmpfs", 0, ""); err != nil {
			return nil, os.NewSyscallError("mount", err)
		}
	}
	return os.Open(dir)
}
