package fsat

import (
	"errors"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Stat is the metadata of one file, or of a symlink itself.
type Stat struct {
	Type  string // TypeFile, TypeDir or another type; TypeNone if there is no file
	Mode  uint32 // permission bits, with setuid, setgid and sticky
	Size  int64  // size in bytes; 0 unless the type is file or symlink
	Mtime int64  // time of the last change of the content, in ns since 1970
	Ctime int64  // time of the last change of content or metadata, in ns since 1970
	Inode uint64 // inode number, unique within Dev
	Dev   uint64 // device number of the file system
	rdev  uint64 // device number of a device; never 0 for block devices
	Nlink uint32 // number of hard links
}

// IsWhiteout reports whether the file is a whiteout, with which overlayfs marks a removed name.
func (s *Stat) IsWhiteout() bool { return s.Type == TypeDevice && s.rdev == 0 }

// Same reports whether s and o, the metadata of a path at two times, show no change. Of directories, only the type and the mode
// are compared.
func (s *Stat) Same(o *Stat) bool {
	if s.Type != o.Type || s.Mode != o.Mode {
		return false
	}
	return s.Type == TypeDir || s.Size == o.Size && s.Mtime == o.Mtime && s.Ctime == o.Ctime && s.Inode == o.Inode
}

// statMask is the set of fields that Lstat requests from the kernel.
const statMask = unix.STATX_TYPE | unix.STATX_MODE | unix.STATX_SIZE | unix.STATX_MTIME | unix.STATX_CTIME | unix.STATX_INO | unix.STATX_NLINK

// Lstat returns the metadata of the entry name of the directory fd, or of fd itself if name is empty. It does not follow
// symlinks.
func Lstat(fd int, name string) (Stat, error) {
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
			return Stat{}, err
		}
	}
	s := Stat{
		Type: TypeOf(uint32(x.Mode)), Mode: uint32(x.Mode) & ModeBits, Size: int64(x.Size),
		Mtime: x.Mtime.Sec*1e9 + int64(x.Mtime.Nsec), Ctime: x.Ctime.Sec*1e9 + int64(x.Ctime.Nsec),
		Inode: x.Ino, Dev: unix.Mkdev(x.Dev_major, x.Dev_minor), rdev: unix.Mkdev(x.Rdev_major, x.Rdev_minor), Nlink: x.Nlink,
	}
	if uint32(x.Mode)&unix.S_IFMT == unix.S_IFBLK {
		s.rdev |= 1 << 63 // makes rdev nonzero, because a block device is never a whiteout
	}
	if s.Type != TypeFile && s.Type != TypeSymlink {
		s.Size = 0
	}
	return s, nil
}

// Child is one entry of a directory, with its metadata.
type Child struct {
	Name string
	Stat
}

// ErrTooMany is returned for a directory that has more entries than the caller's limit.
var ErrTooMany = errors.New("too many names")

// OpenDir opens the directory path beneath root for reading.
func OpenDir(root int, path string) (int, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_NONBLOCK
	fd, err := Open(root, path, flags|unix.O_NOATIME, 0)
	if err == unix.EPERM {
		// Only the owner may use O_NOATIME, so the directory is opened without it.
		fd, err = Open(root, path, flags, 0)
	}
	return fd, err
}

// ReadNames returns the names in the directory fd, sorted. Returns ErrTooMany if there are more than limit.
func ReadNames(fd, limit int) ([]string, error) {
	names, err := ListNames(fd, limit)
	slices.Sort(names)
	return names, err
}

// ListNames returns the names in the directory fd, in any order. Returns ErrTooMany if there are more than limit.
func ListNames(fd, limit int) ([]string, error) {
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
			return nil, ErrTooMany
		}
	}
	return names, nil
}

// ReadChildren returns the entries of the directory path beneath root, sorted by name, and the metadata of the directory. Entries
// that are removed during the call are left out. Returns ErrTooMany if there are more than limit entries.
func ReadChildren(root int, path string, limit int) (children []Child, own Stat, err error) {
	fd, err := OpenDir(root, path)
	if err != nil {
		return nil, own, err
	}
	defer unix.Close(fd)
	if own, err = Lstat(fd, ""); err != nil {
		return nil, own, err
	}
	names, err := ReadNames(fd, limit)
	if err != nil {
		return nil, own, err
	}
	children = make([]Child, 0, len(names))
	for _, name := range names {
		s, err := Lstat(fd, name)
		if err == unix.ENOENT {
			continue
		}
		if err != nil {
			return nil, own, err
		}
		children = append(children, Child{Name: name, Stat: s})
	}
	return children, own, nil
}

// Inaccessible reports whether err means that a directory cannot be read because of its permissions, or is no longer a
// directory, and not that the file system has failed.
func Inaccessible(err error) bool {
	return IsOneOf(err, unix.EACCES, unix.EPERM, unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.EXDEV, unix.ENAMETOOLONG)
}

// IsOneOf reports whether err is or wraps one of the error numbers.
func IsOneOf(err error, numbers ...unix.Errno) bool {
	return slices.ContainsFunc(numbers, func(n unix.Errno) bool { return errors.Is(err, n) })
}

// Join returns the path of name in dir.
func Join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

// Depth returns the number of names in path.
func Depth(path string) int { return strings.Count(path, "/") + 1 }
