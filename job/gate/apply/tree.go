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

// openBeneath opens the path name below dir, a file descriptor. It fails if name is a symlink or leads through one.
func openBeneath(dir int, name string, flags int, mode uint32) (int, error) {
	if flags&unix.O_CREAT == 0 {
		mode = 0 // openat2 requires mode 0 without O_CREAT
	}
	fd, err := fsat.Open(dir, name, flags|unix.O_NOFOLLOW, mode)
	return fd, os.NewSyscallError("openat2", err)
}

// A dirEntry is a name in a directory. The directory is given by a file descriptor, so that the dirEntry remains valid if the
// directory is renamed. The entry need not exist.
type dirEntry struct {
	dir  int    // file descriptor of the directory
	name string // name of the entry
}

// entryAt returns the entry at the path name below root, a file descriptor. The caller must close it.
func entryAt(root int, name string) (dirEntry, error) {
	dir, base := path.Split(name)
	if dir == "" {
		dir = "."
	}
	fd, err := openBeneath(root, path.Clean(dir), unix.O_PATH|unix.O_DIRECTORY, 0)
	return dirEntry{fd, base}, err
}

func (p dirEntry) close() { unix.Close(p.dir) }

// vanishedParent reports whether err, of opening a path, means that another process has removed the path or a parent directory,
// or has replaced a parent directory.
func vanishedParent(err error) bool {
	return fsat.IsOneOf(err, unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.EXDEV)
}

// stat returns the status of p and does not follow a symlink.
func (p dirEntry) stat() (unix.Stat_t, error) {
	var st unix.Stat_t
	err := unix.Fstatat(p.dir, p.name, &st, unix.AT_SYMLINK_NOFOLLOW)
	return st, os.NewSyscallError("stat", err)
}

// open opens a regular file or directory for reading. If another process has replaced the entry by another type, opening it
// neither blocks nor has a side effect.
func (p dirEntry) open(flags int) (*os.File, error) {
	fd, err := openBeneath(p.dir, p.name, unix.O_RDONLY|unix.O_NONBLOCK|flags, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), p.name), nil
}

// readlink returns the target of p, a symlink.
func (p dirEntry) readlink() ([]byte, error) {
	buf := make([]byte, unix.PathMax+1)
	n, err := unix.Readlinkat(p.dir, p.name, buf)
	if err != nil {
		return nil, os.NewSyscallError("readlink", err)
	}
	return buf[:n], nil
}

// node returns the state of the entry at p: its type and mode, and the target and its hash if it is a symlink, but not the hash
// of a file. The type is "special" for a device or another entry that no plan contains.
func (p dirEntry) node() (gate.Node, unix.Stat_t, error) {
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

// matches reports whether the entry at p is in the state n. If it is, matches has read the content and, unless w is nil, copied
// it to w. anyMode means that the permissions of a directory are ignored.
func (p dirEntry) matches(ctx context.Context, n gate.Node, anyMode bool, w io.Writer) (bool, unix.Stat_t, error) {
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

// hashTo copies r to w and returns the SHA-256 of the copied bytes, in hexadecimal.
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

// renameat2 calls the system call of that name. Tests replace it by a function that does not support flags.
var renameat2 = unix.Renameat2

// moveTo renames the entry p to q. It fails with EEXIST if q exists.
func (p dirEntry) moveTo(q dirEntry) error {
	err := renameat2(p.dir, p.name, q.dir, q.name, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) {
		// Some file systems, such as network file systems, do not support RENAME_NOREPLACE. No other process uses the staging
		// directory, so a move into the staging directory is safe. A move out of the staging directory replaces an entry that
		// another process creates at q between the calls of stat and rename.
		if _, err := q.stat(); err == nil {
			return os.NewSyscallError("rename", unix.EEXIST)
		} else if !errors.Is(err, unix.ENOENT) {
			return err
		}
		err = renameat2(p.dir, p.name, q.dir, q.name, 0)
	}
	return os.NewSyscallError("rename", err)
}

// swapWith exchanges the entries p and q. spare is an entry that does not exist; it is used on file systems that do not support
// RENAME_EXCHANGE.
func (p dirEntry) swapWith(q, spare dirEntry) error {
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

// chmod sets the permissions of p, unless they are set already. It returns false if p does not exist or does not have the type
// typ, that of a directory or a file.
func (p dirEntry) chmod(mode uint32, typ string) (bool, error) {
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

// withPath returns err as a caisson.Error that contains the path name, and whose kind depends on the error number in err. It
// returns a caisson.Error, or an error of a canceled context, unchanged.
func withPath(err error, name string) error {
	if _, ok := errors.AsType[*caisson.Error](err); ok || err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return errno.Wrap(&os.PathError{Op: "apply", Path: quotedPath(name), Err: err})
}
