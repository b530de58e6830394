package apply

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/errno"
	"github.com/caisson-dev/caisson/job/gate"
	"github.com/caisson-dev/caisson/job/gate/fsat"
)

// openBeneath opens name below dir, a file descriptor. It fails if name is a symlink.
func openBeneath(dir int, name string, flags int, mode uint32) (int, error) {
	if flags&unix.O_CREAT == 0 {
		mode = 0 // openat2 requires this
	}
	fd, err := fsat.Open(dir, name, flags|unix.O_NOFOLLOW, mode)
	return fd, os.NewSyscallError("openat2", err)
}

// A place is an entry of a directory, given by the directory's file descriptor and a name. It refers to the same directory even
// if the directory is renamed.
type place struct {
	dir  int
	name string
}

// at returns the place of a path below root, a file descriptor. The caller must close it.
func at(root int, name string) (place, error) {
	dir, base := path.Split(name)
	if dir == "" {
		dir = "."
	}
	fd, err := openBeneath(root, path.Clean(dir), unix.O_PATH|unix.O_DIRECTORY, 0)
	return place{fd, base}, err
}

func (p place) close() { unix.Close(p.dir) }

// vanishedParent reports whether err means that a parent directory of a path does not exist any more because another process has
// removed or replaced it.
func vanishedParent(err error) bool {
	return fsat.IsOneOf(err, unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.EXDEV)
}

func (p place) stat() (unix.Stat_t, error) {
	var st unix.Stat_t
	err := unix.Fstatat(p.dir, p.name, &st, unix.AT_SYMLINK_NOFOLLOW)
	return st, os.NewSyscallError("stat", err)
}

// open opens a regular file or directory for reading. If another process has replaced the entry by another type, opening it
// neither blocks nor has a side effect.
func (p place) open(flags int) (*os.File, error) {
	fd, err := openBeneath(p.dir, p.name, unix.O_RDONLY|unix.O_NONBLOCK|flags, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), p.name), nil
}

func (p place) readlink() ([]byte, error) {
	buf := make([]byte, unix.PathMax+1)
	n, err := unix.Readlinkat(p.dir, p.name, buf)
	if err != nil {
		return nil, os.NewSyscallError("readlink", err)
	}
	return buf[:n], nil
}

// node returns the entry at p without its content; Link is set for symlinks. A type that cannot be in a plan is "special".
func (p place) node() (gate.Node, unix.Stat_t, error) {
	st, err := p.stat()
	if errors.Is(err, unix.ENOENT) {
		return gate.Node{Type: gate.NodeNone}, st, nil
	}
	if err != nil {
		return gate.Node{}, st, err
	}
	n := gate.Node{Mode: st.Mode & 0o7777}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		n.Type = gate.NodeFile
	case unix.S_IFDIR:
		n.Type = gate.NodeDir
	case unix.S_IFLNK:
		n.Type, n.Mode = gate.NodeLink, 0
		if n.Link, err = p.readlink(); err != nil {
			return gate.Node{}, st, err
		}
		n.Hash = gate.HashText(n.Link)
	default:
		n.Type = "special"
	}
	return n, st, nil
}

// matches reports whether the entry at p is n. If it returns true, it has read the content and, unless w is nil, copied it to
// w. With anyMode, it ignores the permissions of directories.
func (p place) matches(ctx context.Context, n gate.Node, anyMode bool, w io.Writer) (bool, unix.Stat_t, error) {
	now, st, err := p.node()
	if err != nil {
		return false, st, err
	}
	if now.Type == gate.NodeDir && anyMode {
		now.Mode = n.Mode
	}
	if now.Type != gate.NodeFile || n.Type != gate.NodeFile || now.Mode != n.Mode {
		if w != nil && now.Type == gate.NodeLink && now.Same(n) {
			_, err = w.Write(now.Link)
		}
		return now.Same(n), st, err
	}
	f, err := p.open(0)
	if err != nil {
		if vanishedParent(err) {
			return false, st, nil
		}
		return false, st, err
	}
	defer f.Close()
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return false, st, os.NewSyscallError("stat", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Mode&0o7777 != n.Mode {
		return false, st, nil
	}
	if w == nil {
		w = io.Discard
	}
	sum, err := hashTo(ctx, w, f)
	return sum == n.Hash, st, err
}

// hashTo copies r to w and returns the hash of what it copied.
func hashTo(ctx context.Context, w io.Writer, r io.Reader) (string, error) {
	h := sha256.New()
	buf := make([]byte, 128<<10)
	for {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		n, err := r.Read(buf)
		if _, werr := w.Write(buf[:n]); werr != nil {
			return "", werr
		}
		h.Write(buf[:n])
		if errors.Is(err, io.EOF) {
			return hex.EncodeToString(h.Sum(nil)), nil
		}
		if err != nil {
			return "", err
		}
	}
}

// renameat2 is the system call. Tests replace it by a function that does not support flags.
var renameat2 = unix.Renameat2

// moveTo renames the entry at p to q. It fails with EEXIST if q exists.
func (p place) moveTo(q place) error {
	err := renameat2(p.dir, p.name, q.dir, q.name, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) {
		// Some file systems, such as network file systems, do not support RENAME_NOREPLACE. No other process uses the staging
		// directory, so a move into it is safe. A move out of it replaces an entry that another process creates at q between
		// the two calls.
		if _, err := q.stat(); err == nil {
			return os.NewSyscallError("rename", unix.EEXIST)
		} else if !errors.Is(err, unix.ENOENT) {
			return err
		}
		err = renameat2(p.dir, p.name, q.dir, q.name, 0)
	}
	return os.NewSyscallError("rename", err)
}

// swapWith exchanges the entries at p and q. spare is a place that does not exist, used on file systems that do not support
// RENAME_EXCHANGE.
func (p place) swapWith(q, spare place) error {
	err := renameat2(p.dir, p.name, q.dir, q.name, unix.RENAME_EXCHANGE)
	if !errors.Is(err, unix.EINVAL) {
		return os.NewSyscallError("rename", err)
	}
	if err := p.moveTo(spare); err != nil {
		return err
	}
	if err := q.moveTo(p); err != nil {
		return errors.Join(err, spare.moveTo(p))
	}
	return spare.moveTo(q)
}

// chmod sets the permissions of a directory or regular file, unless they are set already. It returns false if the entry does
// not exist or has another type.
func (p place) chmod(mode uint32, typ string) (bool, error) {
	flags := 0
	if typ == gate.NodeDir {
		flags = unix.O_DIRECTORY
	}
	f, err := p.open(flags)
	if vanishedParent(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return false, os.NewSyscallError("stat", err)
	}
	if typ == gate.NodeFile && st.Mode&unix.S_IFMT != unix.S_IFREG {
		return false, nil
	}
	if st.Mode&0o7777 == mode {
		return true, nil
	}
	if err := unix.Fchmod(int(f.Fd()), mode); err != nil {
		return true, os.NewSyscallError("chmod", err)
	}
	return true, f.Sync()
}

// withPath adds the path to err.
func withPath(err error, name string) error {
	if _, ok := errors.AsType[*caisson.Error](err); ok || err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return errno.Wrap(&os.PathError{Op: "apply", Path: quotedPath(name), Err: err})
}
