package gate

import (
	"errors"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// stat is what is looked at of one file, by itself and never by what a symlink leads to.
type stat struct {
	typ   string
	mode  uint32 // permission bits
	size  int64
	mtime int64 // in ns
	ctime int64 // in ns
	inode uint64
	dev   uint64
	rdev  uint64
	nlink uint32
}

// whiteout reports whether this is how overlayfs says that something was removed.
func (s *stat) whiteout() bool { return s.typ == typeDevice && s.rdev == 0 }

// same reports whether two states of a path are one, as far as metadata can tell.
func (s *stat) same(o *stat) bool {
	if s.typ != o.typ || s.mode != o.mode {
		return false
	}
	return s.typ == typeDir || s.size == o.size && s.mtime == o.mtime && s.ctime == o.ctime && s.inode == o.inode
}

const statMask = unix.STATX_TYPE | unix.STATX_MODE | unix.STATX_SIZE | unix.STATX_MTIME | unix.STATX_CTIME | unix.STATX_INO | unix.STATX_NLINK

// lookAt is lstat of name in the directory fd; with an empty name, of fd itself.
func lookAt(fd int, name string) (stat, error) {
	var x unix.Statx_t
	flags := unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT
	if name == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	for {
		err := unix.Statx(fd, name, flags, statMask, &x)
		if err == nil {
			break
		}
		if err != unix.EINTR {
			return stat{}, err
		}
	}
	s := stat{
		typ: typeOf(uint32(x.Mode)), mode: uint32(x.Mode) & modeBits, size: int64(x.Size),
		mtime: x.Mtime.Sec*1e9 + int64(x.Mtime.Nsec), ctime: x.Ctime.Sec*1e9 + int64(x.Ctime.Nsec),
		inode: x.Ino, dev: unix.Mkdev(x.Dev_major, x.Dev_minor), rdev: unix.Mkdev(x.Rdev_major, x.Rdev_minor), nlink: x.Nlink,
	}
	if uint32(x.Mode)&unix.S_IFMT == unix.S_IFBLK {
		s.rdev |= 1 << 63 // no whiteout, whatever its number
	}
	if s.typ != typeFile && s.typ != typeSymlink {
		s.size = 0
	}
	return s, nil
}

// child is one name in a directory.
type child struct {
	name string
	stat
}

// errTooMany says that a directory has more names than may be read.
var errTooMany = errors.New("too many names")

// openDir opens the directory path beneath root for reading.
func openDir(root int, path string) (int, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_NONBLOCK
	fd, err := openUnder(root, path, flags|unix.O_NOATIME, 0)
	if err == unix.EPERM {
		// Only owners may leave no trace of having read.
		fd, err = openUnder(root, path, flags, 0)
	}
	return fd, err
}

// readNames returns the names in the directory fd, in order. errTooMany if there are more than limit.
func readNames(fd, limit int) ([]string, error) {
	names, err := listNames(fd, limit)
	slices.Sort(names)
	return names, err
}

// listNames is readNames in any order.
func listNames(fd, limit int) ([]string, error) {
	buf := make([]byte, 32<<10)
	var names []string
	for {
		n, err := unix.ReadDirent(fd, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, err
		}
		if n <= 0 {
			break
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names)
		if len(names) > limit {
			return nil, errTooMany
		}
	}
	return names, nil
}

// readChildren returns what is in the directory path beneath root, sorted by name. What vanishes meanwhile is left out. It
// returns the directory's own state, too. errTooMany if there are more than limit: which come first is a matter of chance.
func readChildren(root int, path string, limit int) (children []child, own stat, err error) {
	fd, err := openDir(root, path)
	if err != nil {
		return nil, own, err
	}
	defer unix.Close(fd)
	if own, err = lookAt(fd, ""); err != nil {
		return nil, own, err
	}
	names, err := readNames(fd, limit)
	if err != nil {
		return nil, own, err
	}
	children = make([]child, 0, len(names))
	for _, name := range names {
		s, err := lookAt(fd, name)
		if err == unix.ENOENT {
			continue
		}
		if err != nil {
			return nil, own, err
		}
		children = append(children, child{name: name, stat: s})
	}
	return children, own, nil
}

// shut reports whether err means that a directory cannot be looked into, or is not one any more, rather than that the file
// system is broken.
func shut(err error) bool {
	for _, e := range []unix.Errno{unix.EACCES, unix.EPERM, unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.EXDEV, unix.ENAMETOOLONG} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// join puts a name below a directory.
func join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

// depth is the number of names in path.
func depth(path string) int { return strings.Count(path, "/") + 1 }
