package confine

import (
	"errors"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Landlock restricts file system access to reading at and below the readable paths that exist; open descriptors are not
// affected. If all is set it also denies what later versions of Landlock can restrict, as far as the kernel supports
// it: binding TCP ports, sending signals to other processes and connecting to their abstract sockets. It returns the
// version of Landlock, or 0 if the kernel has none.
func Landlock(all bool, readable ...string) (version int, err error) {
	// All access rights of Landlock's first version, from "execute" to "make_sym". Every kernel with Landlock supports them.
	attr := unix.LandlockRulesetAttr{Handled_access_fs: unix.LANDLOCK_ACCESS_FS_MAKE_SYM<<1 - 1}
	abi, size, errno := uintptr(1), unsafe.Sizeof(attr.Handled_access_fs), unix.Errno(0)
	if all {
		abi, _, errno = unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
		size = unsafe.Sizeof(attr)
	}
	for since, right := range map[uintptr]uint64{
		2: unix.LANDLOCK_ACCESS_FS_REFER, 3: unix.LANDLOCK_ACCESS_FS_TRUNCATE, 5: unix.LANDLOCK_ACCESS_FS_IOCTL_DEV,
	} {
		if abi >= since {
			attr.Handled_access_fs |= right
		}
	}
	if abi >= 4 {
		attr.Handled_access_net = unix.LANDLOCK_ACCESS_NET_BIND_TCP
	}
	if abi >= 6 {
		attr.Scoped = unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL
	}
	var fd uintptr
	if errno == 0 {
		fd, _, errno = unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), size, 0)
	}
	if errno == unix.ENOSYS || errno == unix.EOPNOTSUPP {
		return 0, nil
	}
	if errno != 0 {
		return 0, errno
	}
	defer unix.Close(int(fd))
	for _, path := range readable {
		if err := allowReading(int(fd), path); err != nil {
			return 0, err
		}
	}
	return int(abi), AllThreads(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0, 0)
}

// allowReading adds a rule to ruleset that allows reading at and below path, if path exists.
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
	rule := unix.LandlockPathBeneathAttr{Allowed_access: unix.LANDLOCK_ACCESS_FS_READ_FILE, Parent_fd: int32(f)}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		rule.Allowed_access |= unix.LANDLOCK_ACCESS_FS_READ_DIR
	}
	_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(ruleset), unix.LANDLOCK_RULE_PATH_BENEATH,
		uintptr(unsafe.Pointer(&rule)), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
