package baseline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
	"github.com/caisson-dev/caisson/job/gate/fsat"
)

// CopyLimits are the limits of [Copy]. Zero fields mean the default.
type CopyLimits struct {
	Bytes   caisson.Size `json:"bytes,omitempty"`   // maximum number of bytes written; default 4 GiB
	Entries int          `json:"entries,omitempty"` // maximum number of entries; default 1,000,000
}

func (l CopyLimits) withDefaults() CopyLimits {
	l.Bytes = cmp.Or(max(l.Bytes, 0), 4<<30)
	l.Entries = cmp.Or(max(l.Entries, 0), 1_000_000)
	return l
}

// CopyResult is the result of [Copy].
type CopyResult struct {
	Files   int   `json:"files,omitempty"`   // number of regular files that were copied
	Shared  int   `json:"shared,omitempty"`  // number of the files that share their blocks with the original
	Bytes   int64 `json:"bytes,omitempty"`   // number of bytes written
	Left    int   `json:"left,omitempty"`    // number of entries that were left out: pipes, sockets, devices, unreadable entries
	Changed int   `json:"changed,omitempty"` // number of files that changed while they were copied
}

// Copy copies the entries of the directory root that manifest has recorded, except hidden ones, into the empty directory dst,
// with permissions and times. The caller owns all copies. Files share their blocks with the originals if the file system
// supports it. Entries that were created since the scan are left out; entries that changed since are copied in their current
// state. Copy does not follow symlinks, which are copied, and stays on root's file system. Owners, special bits and extended
// attributes are not copied.
//
// Returns Exhausted if the copy exceeds limits or the disk is full.
func Copy(ctx context.Context, root, manifest, dst *os.File, limits CopyLimits) (CopyResult, error) {
	defer fsat.KeepAlive(root, dst)
	m, err := OpenManifest(manifest)
	if err != nil {
		return CopyResult{}, err
	}
	c := &copier{ctx: ctx, root: int(root.Fd()), dst: int(dst.Fd()), parent: -1, limits: limits.withDefaults(), buf: make([]byte, 1<<20)}
	defer c.closeParent()
	err = c.all(m)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		err = caisson.Wrap(err, caisson.Exhausted, "the disk is too full for a copy of the directory; free some space in the data directory, or use an overlay")
	}
	return c.sum, err
}

// all copies all entries of the manifest that are not hidden.
func (c *copier) all(m *Manifest) error {
	for r, err := range m.Below("") {
		if err = cmp.Or(err, c.ctx.Err()); err != nil {
			return err
		}
		if r.Hidden {
			continue
		}
		if err := c.copyEntry(&r); err != nil {
			return err
		}
	}
	return c.finish()
}

// copier is the state of one [Copy].
type copier struct {
	ctx       context.Context
	root, dst int // file descriptors of the original directory and of the copy
	limits    CopyLimits
	entries   int        // number of entries that were visited
	sum       CopyResult // the result so far
	buf       []byte     // buffer for copying contents
	dirs      []Record   // the directories that were created, parents first

	parent     int    // file descriptor of the directory in dst that gets the current entry; -1 if none is open
	parentPath string // path of the directory of which parent is the descriptor
}

// openParent opens the directory path of dst as c.parent, unless it is open already.
func (c *copier) openParent(path string) error {
	if c.parent >= 0 && c.parentPath == path {
		return nil
	}
	c.closeParent()
	fd, err := fsat.Open(c.dst, path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("open the copy of %s: %w", safetext.Path(path), err)
	}
	c.parent, c.parentPath = fd, path
	return nil
}

// closeParent closes c.parent if it is open.
func (c *copier) closeParent() {
	if c.parent >= 0 {
		unix.Close(c.parent)
		c.parent = -1
	}
}

// copyEntry copies the entry of the record r. It returns an error if the directory of the entry was not copied.
func (c *copier) copyEntry(r *Record) error {
	if c.entries++; c.entries > c.limits.Entries {
		return caisson.Errorf(caisson.Exhausted, "the directory has more than %d entries, which is too much for a copy; use an overlay, or a smaller directory", c.limits.Entries)
	}
	if err := c.openParent(fsat.Parent(r.Path)); err != nil {
		return err
	}
	name := lastName(r.Path)
	switch r.Type {
	case fsat.TypeDir:
		c.dirs = append(c.dirs, *r)
		return c.withPath(r, unix.Mkdirat(c.parent, name, 0o700))
	case fsat.TypeSymlink:
		return c.link(r, name)
	case fsat.TypeFile:
		return c.file(r, name)
	}
	c.sum.Left++
	return nil
}

// withPath adds the path of the record r to err.
func (c *copier) withPath(r *Record, err error) error {
	if err != nil {
		return fmt.Errorf("copy %s: %w", safetext.Path(r.Path), err)
	}
	return nil
}

// countLeftOut counts the entry of r as left out if err means that the entry cannot be copied because of its type, its
// permissions or a concurrent change. Otherwise it returns err.
func (c *copier) countLeftOut(r *Record, err error) error {
	if err := fsat.UnlessConcurrent(err); err != nil && !errors.Is(err, unix.EINVAL) {
		return c.withPath(r, err)
	}
	c.sum.Left++
	return nil
}

// link copies the symlink of the record r to name in c.parent.
func (c *copier) link(r *Record, name string) error {
	fd, err := fsat.Open(c.root, r.Path, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return c.countLeftOut(r, err)
	}
	defer unix.Close(fd)
	text := make([]byte, fsat.MaxPathLen+1)
	n, err := unix.Readlinkat(fd, "", text)
	if err != nil || n == 0 || n > fsat.MaxPathLen {
		return c.countLeftOut(r, err)
	}
	if err := unix.Symlinkat(string(text[:n]), c.parent, name); err != nil {
		return c.withPath(r, err)
	}
	return c.setTimes(r, name, r.Mtime)
}

// setTimes sets the times of name, the copy of r in c.parent, to mtime, in ns since 1970.
func (c *copier) setTimes(r *Record, name string, mtime int64) error {
	at := unix.NsecToTimespec(mtime)
	return c.withPath(r, unix.UtimesNanoAt(c.parent, name, []unix.Timespec{at, at}, unix.AT_SYMLINK_NOFOLLOW))
}

// file copies the file of the record r to name in c.parent.
func (c *copier) file(r *Record, name string) error {
	fd, err := fsat.OpenContent(c.root, r.Path)
	if err != nil {
		return c.countLeftOut(r, err)
	}
	src := os.NewFile(uintptr(fd), name)
	defer src.Close()
	before, err := fsat.Lstat(fd, "")
	if err != nil {
		return c.withPath(r, err)
	}
	if before.Type != fsat.TypeFile {
		c.sum.Left++
		return nil
	}
	out, err := unix.Openat(c.parent, name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return c.withPath(r, err)
	}
	dst := os.NewFile(uintptr(out), name)
	is, err := c.copyContent(src, dst, before)
	if err == nil {
		err = unix.Fchmod(out, is.Mode&fsat.Permissions)
	}
	if err = errors.Join(err, dst.Close()); err != nil {
		return c.withPath(r, err)
	}
	c.sum.Files++
	return c.setTimes(r, name, is.Mtime)
}

// copyContent copies the content of the file src to dst. before is the metadata of src before the copy. copyContent returns the
// metadata of src when it had the copied content. It copies a second time if src has changed during the first copy. If src has
// changed during both copies, the returned modification time differs from that of src.
func (c *copier) copyContent(src, dst *os.File, before fsat.Stat) (fsat.Stat, error) {
	if unix.IoctlFileClone(int(dst.Fd()), int(src.Fd())) == nil {
		c.sum.Shared++
		return fsat.Lstat(int(src.Fd()), "") // a clone of the blocks is a consistent snapshot of the file
	}
	for again := true; ; again = false {
		if err := c.copyData(src, dst, before.Size); err != nil {
			return before, err
		}
		after, err := fsat.Lstat(int(src.Fd()), "")
		if err != nil || after.Same(&before) {
			return after, err
		}
		if before = after; !again {
			c.sum.Changed++
			after.Mtime-- // the copy may be inconsistent; another modification time marks it as different from the original
			return after, nil
		}
	}
}

// copyData copies the data of src, a file with the given size in bytes, to dst, and skips holes.
func (c *copier) copyData(src, dst *os.File, size int64) error {
	if err := dst.Truncate(0); err != nil {
		return err
	}
	for off := int64(0); off < size; {
		data, err := src.Seek(off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break // the rest of the file is a hole
		}
		if err != nil {
			return err
		}
		hole, err := src.Seek(data, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		if err := c.copyRange(src, dst, data, min(hole, size)); err != nil {
			return err
		}
		off = hole
	}
	return dst.Truncate(size)
}

// copyRange copies the bytes of src from the offset from to the offset to.
func (c *copier) copyRange(src, dst *os.File, from, to int64) error {
	for from < to {
		if err := c.ctx.Err(); err != nil {
			return err
		}
		n, err := src.ReadAt(c.buf[:min(int64(len(c.buf)), to-from)], from)
		if n == 0 && errors.Is(err, io.EOF) {
			return nil // the file was truncated during the copy
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if c.sum.Bytes += int64(n); c.sum.Bytes > int64(c.limits.Bytes) {
			return caisson.Errorf(caisson.Exhausted, "the directory has more than %s to copy; use an overlay, or a smaller directory", c.limits.Bytes)
		}
		if _, err := dst.WriteAt(c.buf[:n], from); err != nil {
			return err
		}
		from += int64(n)
	}
	return nil
}

// finish sets the permissions and times of the copied directories, from the leaves up.
func (c *copier) finish() error {
	for i := len(c.dirs) - 1; i >= 0; i-- {
		r := &c.dirs[i]
		if err := c.openParent(fsat.Parent(r.Path)); err != nil {
			return err
		}
		name := lastName(r.Path)
		fd, err := unix.Openat(c.parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err == nil {
			err = unix.Fchmod(fd, r.Mode&fsat.Permissions)
			unix.Close(fd)
		}
		if err != nil {
			return c.withPath(r, err)
		}
		is, err := c.original(r)
		if err != nil {
			continue // the original directory was removed
		}
		if err := c.setTimes(r, name, is.Mtime); err != nil {
			return err
		}
	}
	return nil
}

// original returns the current metadata of the path of r in the original directory. The manifest does not contain the times of
// directories.
func (c *copier) original(r *Record) (fsat.Stat, error) {
	fd, err := fsat.Open(c.root, r.Path, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fsat.Stat{}, err
	}
	defer unix.Close(fd)
	return fsat.Lstat(fd, "")
}

// lastName returns the last element of path.
func lastName(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }
