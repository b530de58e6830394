package worker

import (
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/confine"
)

// closeInherited closes the descriptors from first on that this process has inherited although they are not part of the request:
// libraries in the parent (gVisor) have sockets that are not close-on-exec. Descriptors that are close-on-exec were opened by
// this process and stay open.
func closeInherited(first int) error {
	dir, err := unix.Open("/proc/self/fd", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("open", err)
	}
	defer unix.Close(dir)
	buf := make([]byte, 8192)
	var names []string
	for {
		n, err := unix.ReadDirent(dir, buf)
		if err != nil {
			return os.NewSyscallError("getdents", err)
		}
		if n <= 0 {
			break
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names)
	}
	for _, name := range names {
		fd, err := strconv.Atoi(name)
		if err != nil || fd < first {
			continue
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err == nil && flags&unix.FD_CLOEXEC == 0 {
			unix.Close(fd)
		}
	}
	return nil
}

// readablePaths are the paths that a job with network may read: settings of name resolution, trusted certificates, time zones.
var readablePaths = []string{
	"/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/services", "/etc/protocols", "/etc/localtime",
	"/etc/ssl", "/etc/pki", "/etc/ca-certificates", "/usr/share/ca-certificates", "/usr/local/share/ca-certificates",
	"/usr/share/zoneinfo", "/var/lib/ca-certificates", "/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager",
	"/mnt/wsl",
}

// confineSelf drops all privileges of this process that the job does not need. Each step must succeed, except Landlock, which
// older kernels lack and which only adds to the other steps. The numbers of the request's descriptors are less than given;
// rootFD is the descriptor of the root, or -1.
func confineSelf(req jobRequest, given, rootFD int) error {
	for fd := range given {
		unix.CloseOnExec(fd)
	}
	unix.Umask(0o022) // the daemon's umask is not inherited, because jobs create files for other users
	if err := setLimits(req.Limits); err != nil {
		return err
	}
	if !req.Network {
		if err := enterRoot(rootFD, req.Programs); err != nil {
			return fmt.Errorf("enter root directory: %w", err)
		}
	}
	if req.Programs != nil {
		if err := raiseLoopback(); err != nil {
			return fmt.Errorf("raise loopback device: %w", err)
		}
	}
	if err := dropCapabilities(req); err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
	}
	for _, p := range [][2]uintptr{
		{unix.PR_SET_NO_NEW_PRIVS, 1},
		{unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL)}, // set again, because a change of credentials clears it
		{unix.PR_SET_DUMPABLE, 0},
	} {
		if err := confine.AllThreads(unix.SYS_PRCTL, p[0], p[1], 0); err != nil {
			return fmt.Errorf("prctl %d: %w", p[0], err)
		}
	}
	if req.Network {
		if _, err := confine.Landlock(false, readablePaths...); err != nil {
			return fmt.Errorf("landlock: %w", err)
		}
	}
	if err := syscallFilter(req.Network, req.Programs).Install(); err != nil {
		return fmt.Errorf("seccomp: %w", err)
	}
	return nil
}

const maxProcesses = 512 // maximum number of processes and threads of one job

// setLimits sets the resource limits of this process and of those that it starts.
func setLimits(l Limits) error {
	cpu := uint64(l.CPU / time.Second)
	for _, r := range []struct {
		what     int
		cur, max uint64
	}{
		{unix.RLIMIT_CPU, cpu, cpu}, // both limits are equal, so that the kernel sends SIGKILL: Go programs ignore SIGXCPU
		{unix.RLIMIT_DATA, uint64(l.Memory), uint64(l.Memory)},
		{unix.RLIMIT_FSIZE, uint64(l.FileSize), uint64(l.FileSize)},
		{unix.RLIMIT_NOFILE, 256, 256},
		{unix.RLIMIT_NPROC, maxProcesses, maxProcesses}, // counts threads as well, of all jobs of this user in this namespace
		{unix.RLIMIT_CORE, 0, 0},
	} {
		if err := unix.Setrlimit(r.what, &unix.Rlimit{Cur: r.cur, Max: r.max}); err != nil {
			return fmt.Errorf("setrlimit %d: %w", r.what, err)
		}
	}
	// The heap may use half of the limit, because stacks, and memory that is freed but not yet returned to the kernel, count as
	// well.
	debug.SetMemoryLimit(l.Memory / 2)
	// Jobs are short: collecting garbage costs more than keeping it.
	debug.SetGCPercent(400)
	return nil
}

// enterRoot makes the detached mount at rootFD the root of this process, or an empty read-only file system if rootFD is negative.
// For a job with programs, whose layout is l, it builds the root from l; l is nil for other jobs.
func enterRoot(rootFD int, l *layout) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return os.NewSyscallError("mount", err)
	}
	// The new root is first mounted at newRoot. Any existing directory will do; /proc exists, because closeInherited reads it.
	const newRoot = "/proc"
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	switch {
	case l != nil:
		if err := unix.Mount("caisson", newRoot, "tmpfs", flags, "size=64k,nr_inodes=256,mode=755"); err != nil {
			return os.NewSyscallError("mount", err)
		}
	case rootFD < 0:
		if err := unix.Mount("caisson", newRoot, "tmpfs", flags|unix.MS_RDONLY, "size=4k,mode=555"); err != nil {
			return os.NewSyscallError("mount", err)
		}
	default:
		if err := unix.MoveMount(rootFD, "", unix.AT_FDCWD, newRoot, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return os.NewSyscallError("move_mount", err)
		}
		unix.Close(rootFD)
	}
	if err := unix.Chdir(newRoot); err != nil {
		return os.NewSyscallError("chdir", err)
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return os.NewSyscallError("pivot_root", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return os.NewSyscallError("umount", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return os.NewSyscallError("chdir", err)
	}
	if l != nil {
		return buildRoot(rootFD, l)
	}
	return nil
}

// securebits are the flags for PR_SET_SECUREBITS, locked: no program gets capabilities because its user is root, and no
// capability can become ambient.
const securebits = 1<<0 | 1<<1 | 1<<6 | 1<<7 // SECBIT_NOROOT, SECBIT_NO_CAP_AMBIENT_RAISE, and both locked

// dropCapabilities leaves the job no capabilities except req.Capabilities, and no way to get others. A program that it starts
// gets none, because of the securebits and no_new_privs. For jobs that may start programs, the other capabilities are removed
// from the bounding set as well. That takes one system call for each capability, with all threads stopped, which on a busy
// machine is most of the time that a job takes to start; other jobs need no smaller bounding set because they have no execve.
func dropCapabilities(req jobRequest) error {
	if !req.Network { // jobs with network may not set securebits, and have no capabilities
		if err := confine.AllThreads(unix.SYS_PRCTL, unix.PR_SET_SECUREBITS, securebits, 0); err != nil {
			return err
		}
	}
	if req.Programs != nil {
		if _, err := confine.DropBoundingSet(req.Capabilities); err != nil {
			return err
		}
	}
	return confine.SetCapabilities(req.Capabilities)
}
