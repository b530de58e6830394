// Package hostdir identifies directories of the host by device and inode instead of by name. A client passes a
// directory as a descriptor, and later it is opened by its path only if it is still the same directory.
package hostdir

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A Dir identifies a directory and records its attributes.
type Dir struct {
	Path   string // path of the directory, as reported by the kernel
	Device uint64 // device number of the file system
	Inode  uint64 // inode number, unique within Device
	UID    uint32
	GID    uint32
	Mode   uint32 // permission bits with setuid, setgid and sticky
}

// Errors that callers distinguish, to add an explanation to them.
var (
	ErrNotDir   = errors.New("not a directory")
	ErrRemoved  = errors.New("the directory has been removed")
	ErrReplaced = errors.New("another directory has its place")
	// ErrOtherNamespace means that this process cannot open or mount a client's directory because the client has opened it
	// in another mount namespace. Its text suggests solutions.
	ErrOtherNamespace = errors.New("it was opened in another mount namespace than the daemon's, which is so if the daemon is a systemd unit with PrivateTmp, " +
		"ProtectHome or ProtectSystem, or if one of the two runs in a container; remove these settings from the unit, or run the command where the daemon runs")
)

// FromFD returns the Dir of the directory fd. It returns ErrNotDir or ErrRemoved if fd is not a directory or was removed.
func FromFD(fd uintptr) (Dir, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(fd), &st); err != nil {
		return Dir{}, os.NewSyscallError("fstat", err)
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return Dir{}, ErrNotDir
	case st.Nlink == 0:
		return Dir{}, ErrRemoved
	}
	p, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return Dir{}, err
	}
	return Dir{Path: p, Device: st.Dev, Inode: st.Ino, UID: st.Uid, GID: st.Gid, Mode: st.Mode & 0o7777}, nil
}

// Open opens the directory at d.Path if it is the same one as d. It returns ErrRemoved if there is none and ErrReplaced if
// there is another one. The owner and mode may have changed. flags are added to those of open(2), such as O_PATH.
func (d Dir) Open(flags int) (*os.File, error) {
	fd, err := unix.Open(d.Path, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC|flags, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, ErrRemoved
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return nil, ErrReplaced
	case err != nil:
		return nil, &fs.PathError{Op: "open", Path: d.Path, Err: err}
	}
	f := os.NewFile(uintptr(fd), d.Path)
	if same, err := d.SameAs(f.Fd()); err != nil || !same {
		f.Close()
		return nil, errors.Join(err, ErrReplaced)
	}
	return f, nil
}

// CheckReachable returns nil if d, which a client has opened as fd, can be opened by its path. Otherwise it returns
// ErrOtherNamespace, or the error of opening the path, such as ErrReplaced.
func (d Dir) CheckReachable(fd uintptr) error {
	f, err := d.Open(unix.O_PATH)
	if err == nil {
		return f.Close()
	}
	if here, hereErr := InMountNamespace(fd); hereErr == nil && !here {
		return ErrOtherNamespace
	}
	return err
}

// InMountNamespace reports whether fd was opened in this process's mount namespace. The kernel does not bind-mount directories
// of other mount namespaces.
func InMountNamespace(fd uintptr) (bool, error) {
	var st unix.Statx_t
	if err := unix.Statx(int(fd), "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &st); err != nil {
		return false, os.NewSyscallError("statx", err)
	}
	if st.Mask&unix.STATX_MNT_ID == 0 {
		return false, errors.ErrUnsupported
	}
	mounts, err := os.Open("/proc/thread-self/mountinfo")
	if err != nil {
		return false, err
	}
	defer mounts.Close()
	id := strconv.FormatUint(st.Mnt_id, 10)
	lines := bufio.NewScanner(mounts)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if first, _, _ := strings.Cut(lines.Text(), " "); first == id {
			return true, nil
		}
	}
	return false, lines.Err()
}

// SameAs reports whether fd is the directory d.
func (d Dir) SameAs(fd uintptr) (bool, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(fd), &st); err != nil {
		return false, os.NewSyscallError("fstat", err)
	}
	return st.Dev == d.Device && st.Ino == d.Inode && st.Mode&unix.S_IFMT == unix.S_IFDIR, nil
}

// Overlap reports whether two directories are the same or one contains the other. It does not compare names, because
// they can change concurrently.
func Overlap(a, b uintptr) (bool, error) {
	first, err := ancestors(int(a))
	if err != nil {
		return false, err
	}
	second, err := ancestors(int(b))
	if err != nil {
		return false, err
	}
	return slices.Contains(first, second[0]) || slices.Contains(second, first[0]), nil
}

// fileID identifies a directory independently of its name.
type fileID struct{ dev, ino uint64 }

// ancestors returns the directory dir followed by all its ancestors.
func ancestors(dir int) (list []fileID, err error) {
	const flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC
	fd, err := unix.Openat(dir, ".", flags, 0)
	for err == nil {
		var st unix.Stat_t
		err = unix.Fstat(fd, &st)
		p := fileID{st.Dev, st.Ino}
		if err != nil || len(list) > 0 && list[len(list)-1] == p { // The root is its own parent.
			return list, errors.Join(err, unix.Close(fd))
		}
		list = append(list, p)
		up, uerr := unix.Openat(fd, "..", flags, 0)
		unix.Close(fd)
		fd, err = up, uerr
	}
	return nil, err
}
