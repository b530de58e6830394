package worker

import (
	"errors"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// readable is what a job with network may read: how to resolve names, whom to trust, what time it is.
var readable = []string{
	"/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/services", "/etc/protocols", "/etc/localtime",
	"/etc/ssl", "/etc/pki", "/etc/ca-certificates", "/usr/share/ca-certificates", "/usr/local/share/ca-certificates",
	"/usr/share/zoneinfo", "/var/lib/ca-certificates", "/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager",
	"/mnt/wsl",
}

const landlockReads = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR

// restrictFiles leaves the process nothing of the file system but readable; descriptors that are open stay as they are.
// A kernel without Landlock is no error: the process owns nothing there in any case.
func restrictFiles() error {
	// All rights of the first version of Landlock, which every kernel that has it knows: execute up to make_sym.
	attr := unix.LandlockRulesetAttr{Handled_access_fs: 1<<13 - 1}
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr.Handled_access_fs), 0)
	switch errno {
	case 0:
	case unix.ENOSYS, unix.EOPNOTSUPP:
		return nil
	default:
		return errno
	}
	defer unix.Close(int(fd))
	for _, path := range readable {
		if err := allowReading(int(fd), path); err != nil {
			return err
		}
	}
	return allThreads(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0, 0)
}

func allowReading(ruleset int, path string) error {
	f, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	if err != nil {
		return os.NewSyscallError("open", err)
	}
	defer unix.Close(f)
	var st unix.Stat_t
	if err := unix.Fstat(f, &st); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	rule := unix.LandlockPathBeneathAttr{Allowed_access: landlockReads, Parent_fd: int32(f)}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		rule.Allowed_access = unix.LANDLOCK_ACCESS_FS_READ_FILE
	}
	_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(ruleset), unix.LANDLOCK_RULE_PATH_BENEATH,
		uintptr(unsafe.Pointer(&rule)), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
