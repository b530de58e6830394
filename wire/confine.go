package wire

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/confine"
)

// confineSelf irrevocably drops, on all threads, the privileges that the wire process does not need: the user and groups,
// capabilities, privilege gain through exec, core files and ptrace, and, where the kernel supports it, file system access,
// incoming connections, and most system calls. If it returns an error the process must exit.
func confineSelf(uid int) (Confinement, error) {
	if err := setLimits(); err != nil {
		return Confinement{}, err
	}
	if err := dropPrivileges(uid); err != nil {
		return Confinement{}, err
	}
	// The signal on the death of the parent, the engine, is bound to the calling thread, so that thread must not exit. It is set
	// after the change of user, which would clear it. If the engine has already died, no signal comes, but the control connection
	// is closed.
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return Confinement{}, fmt.Errorf("parent death signal: %w", err)
	}
	// Landlock denies all file system access. It does not restrict outgoing connections, which the wire process makes for
	// sandboxes, as their policies allow.
	version, err := confine.Landlock(true)
	if err != nil {
		return Confinement{}, fmt.Errorf("landlock: %w", err)
	}
	// The kernel does not support seccomp filters if the error is ENOSYS or EINVAL; the process then runs without one.
	err = syscallFilter().Install()
	if err != nil && !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EINVAL) {
		return Confinement{}, fmt.Errorf("seccomp: %w", err)
	}
	return Confinement{Landlock: version, Seccomp: err == nil}, nil
}

// maxMemory is the limit of the wire process's memory (RLIMIT_DATA), in bytes. The Go runtime's soft limit is a quarter of it.
const maxMemory = 4 << 30

// setLimits sets the resource limits of the process (setrlimit).
func setLimits() error {
	for _, l := range []struct {
		name     string
		resource int
		max      uint64
	}{
		{"core", unix.RLIMIT_CORE, 0},
		{"fsize", unix.RLIMIT_FSIZE, maxJournal},
		{"memlock", unix.RLIMIT_MEMLOCK, 0},
		// Other code bounds the memory that a sandbox can make the process allocate. If such a bound is missing, this limit makes
		// an allocation fail, which crashes this process; the host keeps its memory.
		{"data", unix.RLIMIT_DATA, maxMemory},
		{"nofile", unix.RLIMIT_NOFILE, maxDescriptors},
	} {
		// The limits are set with prlimit, not with syscall.Setrlimit, which for nofile would change the value that Go restores
		// before an exec. Without CAP_SYS_RESOURCE (root in a container) the hard limit cannot be raised; with fewer descriptors
		// the process can hold fewer wires.
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

// dropPrivileges changes the user and group to uid, and drops other groups, all capabilities, and the ways to regain them.
func dropPrivileges(uid int) error {
	if uid == 0 {
		return errors.New("the wire process must not be root")
	}
	if c, err := confine.DropBoundingSet(nil); err != nil {
		return fmt.Errorf("drop capability %d: %w", c, err)
	}
	// Setgroups, Setresgid and Setresuid act on all threads. Leaving uid 0 clears the permitted, effective and ambient
	// capabilities.
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
