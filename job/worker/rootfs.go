package worker

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// workDir is the path at which a job with programs has its Root.
const workDir = "/work"

// buildRoot fills the root of a job with programs, which is an empty tmpfs. The mounts of l are the descriptors after rootFD. At
// the end it makes the root read-only.
func buildRoot(rootFD int, l *layout) error {
	places := append([]mountPoint{{At: workDir}}, l.Mounts...)
	for i, m := range places {
		if err := moveMount(rootFD+i, m); err != nil {
			return fmt.Errorf("%s: %w", m.At, err)
		}
	}
	for _, s := range l.Links {
		if err := os.Symlink(s.To, s.At); err != nil {
			return err
		}
	}
	// Programs need a name for their user.
	if err := os.WriteFile("/etc/passwd", []byte("root:x:0:0:root:/nonexistent:/bin/false\n"), 0o444); err != nil {
		return err
	}
	if err := os.Mkdir("/tmp", 0o755); err != nil {
		return err
	}
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("caisson", "/tmp", "tmpfs", flags, "size=64m,nr_inodes=16k,mode=1777"); err != nil {
		return os.NewSyscallError("mount", err)
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	return os.NewSyscallError("mount_setattr", unix.MountSetattr(unix.AT_FDCWD, "/", 0, &attr))
}

// moveMount moves the detached mount fd to m.At, and closes fd.
func moveMount(fd int, m mountPoint) error {
	dir := m.At
	if m.File {
		dir = filepath.Dir(m.At)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if m.File {
		if err := os.WriteFile(m.At, nil, 0o444); err != nil {
			return err
		}
	}
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, m.At, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return os.NewSyscallError("move_mount", err)
	}
	return os.NewSyscallError("close", unix.Close(fd))
}

// raiseLoopback brings up the loopback device, the only device in a new network namespace.
func raiseLoopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, lo); err != nil {
		return os.NewSyscallError("ioctl", err)
	}
	lo.SetUint16(lo.Uint16() | unix.IFF_UP)
	return os.NewSyscallError("ioctl", unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo))
}
