// Package confine restricts this process: its capabilities, file access and system calls. The restrictions are permanent and
// apply to all threads and child processes. The binary must be static: with cgo, a Go program cannot change all its threads.
package confine

import (
	"errors"
	"slices"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// AllThreads makes a system call on every thread.
//
//go:uintptrescapes
func AllThreads(trap, a1, a2, a3 uintptr) error {
	_, _, errno := syscall.AllThreadsSyscall(trap, a1, a2, a3)
	if errno == unix.ENOTSUP {
		return errors.New("this binary uses cgo and cannot change all its threads: build it with CGO_ENABLED=0")
	}
	if errno != 0 {
		return errno
	}
	return nil
}

// DropBoundingSet removes all capabilities except those in keep from the bounding set, so that no exec can grant them.
// failed is the capability that caused an error.
func DropBoundingSet(keep []uint) (failed uint, err error) {
	for c := range uint(64) {
		if slices.Contains(keep, c) {
			continue
		}
		err := AllThreads(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, uintptr(c), 0)
		if errors.Is(err, unix.EINVAL) { // The kernel has neither c nor a capability with a higher number.
			break
		}
		if err != nil {
			return c, err
		}
	}
	return 0, nil
}

// SetCapabilities sets the effective and permitted capabilities of all threads to those in keep.
func SetCapabilities(keep []uint) error {
	var data [2]unix.CapUserData
	for _, c := range keep {
		data[c/32].Effective |= 1 << (c % 32)
		data[c/32].Permitted |= 1 << (c % 32)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	return AllThreads(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data)), 0)
}
