// Package hostdirtest opens directories as clients in other mount namespaces do.
package hostdirtest

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/osthread"
	"github.com/caisson-dev/caisson/internal/testneed"
)

// Open opens dir in a separate mount namespace that exists until the end of the test. With private, an empty file
// system is mounted at dir in that namespace, so that dir is another directory there than here.
func Open(t testing.TB, dir string, private bool) *os.File {
	t.Helper()
	testneed.Root(t)
	opened, done := make(chan *os.File), make(chan struct{})
	failed := make(chan error, 1)
	go func() {
		failed <- osthread.Do(func() error {
			f, err := openInNamespace(dir, private)
			if err == nil {
				opened <- f
				<-done // The namespace is removed with the thread.
			}
			return err
		})
	}()
	t.Cleanup(func() { close(done) })
	select {
	case f := <-opened:
		t.Cleanup(func() { f.Close() })
		return f
	case err := <-failed:
		t.Fatal(err)
		return nil
	}
}

// openInNamespace opens dir in a new mount namespace of the calling thread, with private after mounting an empty tmpfs at dir.
func openInNamespace(dir string, private bool) (*os.File, error) {
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
