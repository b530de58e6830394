package sentry

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/testneed"
	"github.com/caisson-dev/caisson/runtime/gvisor/protocol"
)

// BenchmarkMountOverlay mounts a workspace of 10,000 files in the same way as a launcher; the number of files has no influence.
// The unmounts, which are not measured, are slow: run it with -benchtime 100x.
func BenchmarkMountOverlay(b *testing.B) {
	testneed.Root(b)
	lower := b.TempDir()
	for i := range 10 {
		sub := filepath.Join(lower, fmt.Sprint(i))
		if err := os.Mkdir(sub, 0o755); err != nil {
			b.Fatal(err)
		}
		for j := range 1000 {
			if err := os.WriteFile(filepath.Join(sub, fmt.Sprint(j)), nil, 0o644); err != nil {
				b.Fatal(err)
			}
		}
	}
	failed := make(chan error)
	go func() { // in a separate mount namespace, which is removed when its thread exits
		runtime.LockOSThread()
		failed <- mountOften(b, lower)
	}()
	if err := <-failed; err != nil {
		b.Fatal(err)
	}
}

func mountOften(b *testing.B, lower string) error {
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("stage", "/mnt", "tmpfs", 0, ""); err != nil {
		return err
	}
	dir := "/mnt/workspace" // a tmpfs, because an unmount of another file system waits for the disk
	for _, name := range []string{"upper", "work", "mask"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			return err
		}
	}
	b.ResetTimer()
	for i := range b.N {
		b.StopTimer()
		at := fmt.Sprint("/mnt/m", i)
		if err := os.Mkdir(at, 0o711); err != nil {
			return err
		}
		b.StartTimer()
		var fds [3]int
		for j, path := range []string{lower, dir, filepath.Join(dir, "mask")} {
			fd, err := protocol.CloneMount(unix.AT_FDCWD, path, 0, -1)
			if err != nil {
				return err
			}
			fds[j] = fd
		}
		o := &protocol.LaunchOverlay{DirFD: fds[1], Upper: "upper", Work: "work", MaskFD: fds[2]}
		if err := mountOverlay(o, fds[0], at); err != nil {
			return err
		}
		b.StopTimer()
		if err := unix.Unmount(at, 0); err != nil {
			return err
		}
		b.StartTimer()
	}
	return nil
}
