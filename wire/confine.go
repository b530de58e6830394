package wire

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// confine gives up everything that the wire process has no need for, on all threads, irrevocably: the user and groups,
// capabilities, gaining privileges through exec, core files and being traced, and where the kernel has the means, the file
// system, being connected to, and most system calls. On error the process must end.
func confine(uid int) (Confinement, error) {
	if err := limit(); err != nil {
		return Confinement{}, err
	}
	if err := dropPrivileges(uid); err != nil {
		return Confinement{}, err
	}
	// The signal is bound to the thread that asks, so that thread must stay. It is asked for after the change of user,
	// which would clear it. An engine that died before this shows as the end of the control connection.
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return Confinement{}, fmt.Errorf("parent death signal: %w", err)
	}
	abi, err := landlock()
	if err != nil {
		return Confinement{}, fmt.Errorf("landlock: %w", err)
	}
	filtered, err := filterSyscalls()
	if err != nil {
		return Confinement{}, fmt.Errorf("seccomp: %w", err)
	}
	return Confinement{Landlock: abi, Seccomp: filtered}, nil
}

// maxMemory bounds the process's memory in bytes. From a quarter of it on garbage is collected as hard as it takes.
const maxMemory = 4 << 30

func limit() error {
	for _, l := range []struct {
		name     string
		resource int
		max      uint64
	}{
		{"core", unix.RLIMIT_CORE, 0},
		{"fsize", unix.RLIMIT_FSIZE, maxJournal},
		{"memlock", unix.RLIMIT_MEMLOCK, 0},
		// What sandboxes can make it hold is bounded piece by piece. This is for the piece that was forgotten: it ends
		// this process, not the host.
		{"data", unix.RLIMIT_DATA, maxMemory},
		{"nofile", unix.RLIMIT_NOFILE, maxDescriptors},
	} {
		// Not syscall.Setrlimit: for nofile that would change what Go restores before an exec.
		// Without CAP_SYS_RESOURCE (root in a container) the hard limit cannot be raised; fewer wires then fit.
		var had unix.Rlimit
		if err := unix.Getrlimit(l.resource, &had); err == nil {
			l.max = min(l.max, had.Max)
		}
		if err := unix.Prlimit(0, l.resource, &unix.Rlimit{Cur: l.max, Max: l.max}, nil); err != nil {
			return fmt.Errorf("limit %s: %w", l.name, err)
		}
	}
	return nil
}

func dropPrivileges(uid int) error {
	if uid == 0 {
		return errors.New("the wire process must not be root")
	}
	for c := uintptr(0); c <= 63; c++ {
		err := allThreads(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, c, 0)
		if err == unix.EINVAL { // past the last capability that the kernel knows
			break
		}
		if err != nil {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	// These three act on all threads. Leaving uid 0 clears the permitted, effective and ambient capabilities.
	if err := syscall.Setgroups(nil); err != nil {
		return fmt.Errorf("setgroups: %w", err)
	}
	if err := syscall.Setresgid(uid, uid, uid); err != nil {
		return fmt.Errorf("setresgid: %w", err)
	}
	if err := syscall.Setresuid(uid, uid, uid); err != nil {
		return fmt.Errorf("setresuid: %w", err)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	err := allThreads(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&none)), 0)
	if err != nil {
		return fmt.Errorf("capset: %w", err)
	}
	if err := allThreads(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("dumpable: %w", err)
	}
	return nil
}

// landlock denies all of the file system, and as far as the kernel can, taking ports and signals and abstract sockets of
// others. Connecting is what the process is for, and policy's to decide. It
// returns the ABI version, 0 if the kernel has no Landlock.
func landlock() (int, error) {
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno == unix.ENOSYS || errno == unix.EOPNOTSUPP {
		return 0, nil
	}
	if errno != 0 {
		return 0, errno
	}
	// No rules follow: what is handled is denied.
	attr := unix.LandlockRulesetAttr{Handled_access_fs: unix.LANDLOCK_ACCESS_FS_MAKE_SYM<<1 - 1}
	if abi >= 2 {
		attr.Handled_access_fs |= unix.LANDLOCK_ACCESS_FS_REFER
	}
	if abi >= 3 {
		attr.Handled_access_fs |= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	if abi >= 4 {
		attr.Handled_access_net = unix.LANDLOCK_ACCESS_NET_BIND_TCP
	}
	if abi >= 5 {
		attr.Handled_access_fs |= unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	}
	if abi >= 6 {
		attr.Scoped = unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL
	}
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if errno != 0 {
		return 0, errno
	}
	defer unix.Close(int(fd))
	if err := allThreads(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0, 0); err != nil {
		return 0, err
	}
	return int(abi), nil
}

// allThreads makes a system call on every thread.
//
//go:uintptrescapes
func allThreads(trap, a1, a2, a3 uintptr) error {
	_, _, errno := syscall.AllThreadsSyscall(trap, a1, a2, a3)
	if errno == unix.ENOTSUP {
		return errors.New("this binary uses cgo and cannot change all its threads: build it with CGO_ENABLED=0")
	}
	if errno != 0 {
		return errno
	}
	return nil
}
