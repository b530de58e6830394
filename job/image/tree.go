package image

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

const (
	maxPath = 4095 // maximum length of a path in bytes
	maxName = 255  // maximum length of one name in bytes
	// maxDepth is the maximum number of nested directories; also limits the descriptors that removeDir has open at the same time.
	maxDepth = 128
	// opaqueAttr is the extended attribute of an opaque directory, which overlayfs does not merge with lower layers.
	opaqueAttr = "user.overlay.opaque"
)

// cleanPath returns the path inside a layer for a name in an archive: relative, with "." and ".." resolved such that it stays
// inside the layer, or "." for the root itself. Returns Invalid if the name is too long, too deep or contains a NUL.
func cleanPath(name string) (string, error) {
	if strings.ContainsRune(name, 0) || len(name) > maxPath {
		return "", caisson.Errorf(caisson.Invalid, "the archive has the invalid file name %.80q", name)
	}
	p := strings.TrimPrefix(path.Clean("/"+name), "/")
	if p == "" {
		return ".", nil
	}
	if strings.Count(p, "/") >= maxDepth {
		return "", caisson.Errorf(caisson.Invalid, "the archive has more than %d levels of directories", maxDepth)
	}
	for part := range strings.SplitSeq(p, "/") {
		if len(part) > maxName {
			return "", caisson.Errorf(caisson.Invalid, "the archive has a file name of %d bytes, %d are possible", len(part), maxName)
		}
	}
	return p, nil
}

// A tree creates files below a directory. It never follows a symlink, not even one whose target is inside: an archive entry
// beneath a symlink is an error. A tree is not safe for concurrent use, and no other process may change the directory while it
// is used.
type tree struct {
	fd   int      // file descriptor of the root directory
	dir  *os.File // parent directory of the last entry, or nil; cached because archives list the files of a directory together
	path string   // path of dir, relative to the root
}

func newTree(root *os.File) *tree { return &tree{fd: int(root.Fd())} }

// closeParent closes the cached parent directory, for example before it may be removed.
func (t *tree) closeParent() {
	if t.dir != nil {
		t.dir.Close()
		t.dir = nil
	}
}

// open opens the path p, relative to the root. It follows no symlink and does not leave the tree or its file system.
func (t *tree) open(p string, flags int) (*os.File, error) {
	fd, err := unix.Openat2(t.fd, p, &unix.OpenHow{
		Flags:   uint64(flags) | unix.O_CLOEXEC | unix.O_NOFOLLOW,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: p, Err: err}
	}
	return os.NewFile(uintptr(fd), p), nil
}

// parent returns the parent directory of p, which it creates if it does not exist, and the base name of p. fd is valid until
// the next call of parent, remove or closeParent.
func (t *tree) parent(p string) (fd int, base string, err error) {
	dir, base := path.Split(p)
	dir = path.Clean(dir)
	if t.dir != nil && t.path == dir {
		return int(t.dir.Fd()), base, nil
	}
	t.closeParent()
	f, err := t.open(dir, unix.O_DIRECTORY|unix.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		if err = t.makeMissing(dir); err == nil {
			f, err = t.open(dir, unix.O_DIRECTORY|unix.O_RDONLY)
		}
	}
	switch {
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR):
		return 0, "", caisson.Errorf(caisson.Invalid, "the archive puts %.200q beneath something that is not a directory", p)
	case err != nil:
		return 0, "", err
	}
	t.dir, t.path = f, dir
	return int(f.Fd()), base, nil
}

// makeMissing creates dir and its parents, for archives that do not list them.
func (t *tree) makeMissing(dir string) error {
	made := ""
	for part := range strings.SplitSeq(dir, "/") {
		made = path.Join(made, part)
		f, err := t.open(made, unix.O_PATH)
		if err == nil {
			f.Close() // the path exists; if it is not a directory, the caller will fail to open it
			continue
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		parent, err := t.open(path.Dir(made), unix.O_DIRECTORY|unix.O_RDONLY)
		if err != nil {
			return err
		}
		err = t.makeDir(int(parent.Fd()), part)
		parent.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// makeDir creates the directory base in the directory parent, with the mode 0755 and the owner 0:0.
func (t *tree) makeDir(parent int, base string) error {
	if err := unix.Mkdirat(parent, base, 0o755); err != nil {
		return os.NewSyscallError("mkdirat", err)
	}
	// The mode is set again because Mkdirat applies the umask. Fchmodat follows symlinks, but base is certain to be the
	// directory that was created above, because no other process changes the tree.
	if err := unix.Fchmodat(parent, base, 0o755, 0); err != nil {
		return os.NewSyscallError("fchmodat", err)
	}
	return chown(parent, base, 0, 0)
}

// lstat returns the status of p; ok is false if p does not exist.
func (t *tree) lstat(p string) (st unix.Stat_t, ok bool, err error) {
	fd, base, err := t.parent(p)
	if err != nil {
		return st, false, err
	}
	err = unix.Fstatat(fd, base, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return st, false, nil
	}
	return st, err == nil, os.NewSyscallError("fstatat", err)
}

// remove removes the file or directory p, whose status is st.
func (t *tree) remove(p string, st unix.Stat_t) error {
	fd, base, err := t.parent(p)
	if err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return os.NewSyscallError("unlinkat", unix.Unlinkat(fd, base, 0))
	}
	err = removeDir(fd, base)
	t.closeParent() // the cached parent directory may have been p or a directory below p
	return err
}

// removeDir removes the directory base in dir and its contents, without following symlinks.
func removeDir(dir int, base string) error {
	fd, err := unix.Openat(dir, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("openat", err)
	}
	f := os.NewFile(uintptr(fd), base)
	defer f.Close()
	entries, err := f.ReadDir(-1)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			err = removeDir(fd, e.Name())
		} else {
			err = os.NewSyscallError("unlinkat", unix.Unlinkat(fd, e.Name(), 0))
		}
		if err != nil {
			return err
		}
	}
	return os.NewSyscallError("unlinkat", unix.Unlinkat(dir, base, unix.AT_REMOVEDIR))
}

// chown changes the owner of the entry base of dir, and does not follow a symlink.
func chown(dir int, base string, uid, gid int) error {
	return os.NewSyscallError("fchownat", unix.Fchownat(dir, base, uid, gid, unix.AT_SYMLINK_NOFOLLOW))
}

// setTimes sets the access time and the modification time of the entry base of dir to t.
func setTimes(dir int, base string, t time.Time) error {
	ts := []unix.Timespec{timespec(t), timespec(t)}
	return os.NewSyscallError("utimensat", unix.UtimesNanoAt(dir, base, ts, unix.AT_SYMLINK_NOFOLLOW))
}

// timespec converts t to a Timespec, and limits it to the times that every file system can store, 0 to 1<<32-1 seconds since
// 1970.
func timespec(t time.Time) unix.Timespec {
	const last = 1<<32 - 1
	sec := t.Unix()
	if sec < 0 || sec > last {
		return unix.Timespec{Sec: min(max(sec, 0), last)}
	}
	return unix.Timespec{Sec: sec, Nsec: int64(t.Nanosecond())}
}

// isWhiteout reports whether st is that of a whiteout of overlayfs: a character device 0:0.
func isWhiteout(st unix.Stat_t) bool {
	return st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0
}
