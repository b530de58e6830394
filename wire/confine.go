package wire

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/confine"
)

// confineSelf gives up everything that the wire process has no need for, on all threads, irrevocably: the user and groups,
// capabilities, gaining privileges through exec, core files and being traced, and where the kernel has the means, the file
// system, being connected to, and most system calls. On error the process must end.
func confineSelf(uid int) (Confinement, error) {
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
	// All of the file system is denied. Connecting is what the process is for, and policy's to decide.
	version, err := confine.Landlock(true)
	if err != nil {
		return Confinement{}, fmt.Errorf("landlock: %w", err)
	}
	err = syscallFilter().Install()
	if err != nil && !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EINVAL) { // these two: not in this kernel
		return Confinement{}, fmt.Errorf("seccomp: %w", err)
	}
	return Confinement{Landlock: version, Seccomp: err == nil}, nil
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
	if c, err := confine.DropBounding(nil); err != nil {
		return fmt.Errorf("drop capability %d: %w", c, err)
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
	if err := confine.SetCapabilities(nil); err != nil {
		return fmt.Errorf("capset: %w", err)
	}
	if err := confine.AllThreads(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("dumpable: %w", err)
	}
	return nil
}
