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
	maxPath    = 4095
	maxName    = 255
	maxDepth   = 128 // directories in directories; also bounds the descriptors that removing them takes
	opaqueAttr = "user.overlay.opaque"
)

// cleanPath returns the place inside a layer that an archive's name means: relative, without ".", ".." cleaned so that it
// stays inside, "." for the root itself.
func cleanPath(name string) (string, error) {
	if strings.ContainsRune(name, 0) || len(name) > maxPath {
		return "", caisson.Errorf(caisson.Invalid, "the archive has the impossible file name %.80q", name)
	}
	p := strings.TrimPrefix(path.Clean("/"+name), "/")
	if p == "" {
		return ".", nil
	}
	if strings.Count(p, "/") >= maxDepth {
		return "", caisson.Errorf(caisson.Invalid, "the archive has more than %d directories in each other", maxDepth)
	}
	for part := range strings.SplitSeq(p, "/") {
		if len(part) > maxName {
			return "", caisson.Errorf(caisson.Invalid, "the archive has a file name of %d bytes, %d are possible", len(part), maxName)
		}
	}
	return p, nil
}

// A tree creates files below a directory. It never follows a symlink, not even one that stays inside: what an archive
// puts beneath a symlink is an error. Not safe for concurrent use, and nothing else may change the directory meanwhile.
type tree struct {
	fd   int      // the root
	dir  *os.File // parent of the last entry; archives list directories together
	path string   // of dir
}

func newTree(root *os.File) *tree { return &tree{fd: int(root.Fd())} }

// forget lets go of the remembered parent, which may be about to go.
func (t *tree) forget() {
	if t.dir != nil {
		t.dir.Close()
		t.dir = nil
	}
}

// open opens p itself, never through a symlink and never leaving the tree or its file system.
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

// parent returns the directory that p is in, and makes what is missing of it.
func (t *tree) parent(p string) (fd int, base string, err error) {
	dir, base := path.Split(p)
	dir = path.Clean(dir)
	if t.dir != nil && t.path == dir {
		return int(t.dir.Fd()), base, nil
	}
	t.forget()
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

// makeMissing makes dir and its parents, for archives that do not list them.
func (t *tree) makeMissing(dir string) error {
	made := ""
	for part := range strings.SplitSeq(dir, "/") {
		made = path.Join(made, part)
		f, err := t.open(made, unix.O_PATH)
		if err == nil {
			f.Close() // whatever it is: the caller's open judges
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

func (t *tree) makeDir(parent int, base string) error {
	if err := unix.Mkdirat(parent, base, 0o755); err != nil {
		return os.NewSyscallError("mkdirat", err)
	}
	// Whatever the umask; it is a directory, made just now, and no one else is around.
	if err := unix.Fchmodat(parent, base, 0o755, 0); err != nil {
		return os.NewSyscallError("fchmodat", err)
	}
	return chown(parent, base, 0, 0)
}

// lstat says what is at p; ok is false if there is nothing.
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

// clear removes what is at p.
func (t *tree) clear(p string, st unix.Stat_t) error {
	fd, base, err := t.parent(p)
	if err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return os.NewSyscallError("unlinkat", unix.Unlinkat(fd, base, 0))
	}
	err = removeDir(fd, base)
	t.forget() // it may have been one of those below p
	return err
}

// removeDir removes the directory base in dir and what it holds, without following anything.
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

func chown(dir int, base string, uid, gid int) error {
	return os.NewSyscallError("fchownat", unix.Fchownat(dir, base, uid, gid, unix.AT_SYMLINK_NOFOLLOW))
}

// setTimes sets the time of modification of base in dir.
func setTimes(dir int, base string, t time.Time) error {
	ts := []unix.Timespec{timespec(t), timespec(t)}
	return os.NewSyscallError("utimensat", unix.UtimesNanoAt(dir, base, ts, unix.AT_SYMLINK_NOFOLLOW))
}

// timespec clamps t to what every file system can store.
func timespec(t time.Time) unix.Timespec {
	const last = 1<<32 - 1
	sec := t.Unix()
	if sec < 0 || sec > last {
		return unix.Timespec{Sec: min(max(sec, 0), last)}
	}
	return unix.Timespec{Sec: sec, Nsec: int64(t.Nanosecond())}
}

func isWhiteout(st unix.Stat_t) bool {
	return st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0
}
