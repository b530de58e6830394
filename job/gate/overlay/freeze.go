package overlay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
	"github.com/caisson-dev/caisson/job/gate/fsat"
)

// MaxEntries is the maximum number of entries in a frozen copy.
const MaxEntries = 200_000

// FreezeLimits are the limits of a frozen copy. Zero fields mean the default.
type FreezeLimits struct {
	Entries int          `json:"entries,omitempty"` // maximum number of entries; default and greatest value 200,000
	Bytes   caisson.Size `json:"bytes,omitempty"`   // maximum size of all files together; default 4 GiB
	File    caisson.Size `json:"file,omitempty"`    // maximum size of one file, including its holes; default 1 GiB
}

func (l FreezeLimits) WithDefaults() FreezeLimits {
	if l.Entries <= 0 || l.Entries > MaxEntries {
		l.Entries = MaxEntries
	}
	l.Bytes = cmp.Or(max(l.Bytes, 0), 4<<30)
	l.File = cmp.Or(max(l.File, 0), 1<<30)
	return l
}

// Freeze copies upper, the upper directory of an overlay, to dst, an empty directory. marked is the output of [Mark] for upper,
// written just before the call. It returns the result of [OpenFrozen] for dst, which the caller must close.
//
// The directory may change during the copy. The copy of each file is consistent, or the file is denied; different files may be
// copied at different times. Devices, pipes, sockets, files that exceed the limits, unreadable files and files with unusual
// attributes are listed as denied; special files are never opened. Entries that exceed the limit of their number are left out,
// and Cut of the result is true.
func Freeze(ctx context.Context, upper *os.File, marked io.Reader, dst *os.File, limits FreezeLimits) (*Frozen, error) {
	defer fsat.KeepAlive(upper, dst)
	m, err := readMarks(marked)
	if err != nil {
		return nil, err
	}
	dir := int(dst.Fd())
	if err := unix.Mkdirat(dir, FrozenObjects, 0o755); err != nil {
		return nil, caisson.Wrap(err, caisson.Internal, "cannot make room for a review")
	}
	objects, err := fsat.OpenDir(dir, FrozenObjects)
	if err != nil {
		return nil, fmt.Errorf("open the objects: %w", err)
	}
	defer unix.Close(objects)
	l := limits.WithDefaults()
	f := &freezer{ctx: ctx, root: int(upper.Fd()), marks: m, left: l.Entries, keeper: NewKeeper(objects, l)}
	if f.keeper.pack, err = newPacking(dst); err != nil {
		return nil, err
	}
	err = f.walk("")
	if err := errors.Join(err, f.keeper.pack.close()); err != nil {
		return nil, err
	}
	if err := WriteIndex(dir, frozenIndex, f.entries, f.cut); err != nil {
		return nil, err
	}
	return OpenFrozen(dst)
}

// WriteIndex writes an index of entries atomically to the file name in the directory with the file descriptor dir. cut means
// that entries were left out of it.
func WriteIndex(dir int, name string, entries []Entry, cut bool) error {
	return fsat.WriteIndex(dir, name, packIndex(entries, cut))
}

// freezer is the state of one [Freeze], which copies the upper directory of an overlay.
type freezer struct {
	ctx     context.Context
	root    int     // file descriptor of the upper directory
	marks   *marks  // the marks of the upper directory
	left    int     // number of entries that may still be recorded
	keeper  *Keeper // stores the contents of files
	entries []Entry // the entries so far
	cut     bool    // entries were left out
}

// walk records the entries of the directory dir and everything below it.
func (f *freezer) walk(dir string) error {
	if err := f.ctx.Err(); err != nil {
		return err
	}
	children, own, err := fsat.ReadChildren(f.root, dir, f.left)
	switch {
	case errors.Is(err, fsat.ErrTooMany):
		f.cut = true
		return nil
	case err != nil && (dir == "" || !fsat.Inaccessible(err)):
		return fmt.Errorf("read %s: %w", safetext.Path(dir), err)
	case err != nil:
		f.deny(dir, "it cannot be looked into")
		return nil
	}
	if m := f.marks.byPath[dir]; dir != "" && m.kind == markOpaque && m.inode != own.Inode {
		f.deny(dir, "it was replaced while it was read; look again")
		return nil
	}
	for _, c := range children {
		path := fsat.Join(dir, c.Name)
		if f.left == 0 || !f.marks.covers(path) {
			f.cut = true
			return nil
		}
		if len(path) > fsat.MaxPathLen {
			f.deny(dir, "it has paths that are too long")
			continue
		}
		f.left--
		e, err := f.entry(path, &c.Stat)
		if err != nil {
			return err
		}
		f.entries = append(f.entries, e)
		if e.Type == fsat.TypeDir && e.Denied == "" {
			if err := f.walk(path); err != nil {
				return err
			}
		}
	}
	return nil
}

// deny marks the entry of the directory dir, which was recorded already, as denied for the reason why.
func (f *freezer) deny(dir, why string) {
	for i := len(f.entries) - 1; i >= 0; i-- {
		if e := &f.entries[i]; e.Path == dir {
			e.Denied, e.Hash = why, ""
			return
		}
	}
}

// entry copies the file at path, whose metadata is st, and returns its entry.
func (f *freezer) entry(path string, st *fsat.Stat) (Entry, error) {
	e := Entry{Path: path, Type: st.Type, Mode: st.Mode}
	if st.IsWhiteout() {
		return Entry{Path: path, Type: fsat.TypeNone, Removed: true, Hash: HashOf(fsat.TypeNone, 0, "", "")}, nil
	}
	m := f.marks.byPath[path]
	if m.kind == markRefuse || m.kind == markOpaque && m.inode != st.Inode {
		e.Size, e.Denied = st.Size, "its overlay attributes are not those of a plain copy"
		return e, nil
	}
	e.Opaque = m.kind == markOpaque && st.Type == fsat.TypeDir
	var err error
	switch st.Type {
	case fsat.TypeDir:
		if fsat.Depth(path) >= fsat.MaxDepth {
			e.Denied = "it is too deep"
		}
	case fsat.TypeFile:
		e.Size = st.Size
		e.Content, e.Size, e.Denied, err = f.keeper.keep(f.root, path, st)
	case fsat.TypeSymlink:
		e.Link, e.Denied, err = readLink(f.root, path)
	default:
		e.Denied = "it is a " + st.Type + ", which is never applied"
	}
	if e.Denied == "" {
		e.Hash = HashOf(e.Type, e.Mode, e.Content, e.Link)
	}
	return e, err
}

// readLink returns the target of the symlink at path, or in denied the reason why the target cannot be read.
func readLink(root int, path string) (link, denied string, err error) {
	fd, err := fsat.Open(root, path, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return "", changedMeanwhile, fsat.UnlessConcurrent(err)
	}
	defer unix.Close(fd)
	buf := make([]byte, fsat.MaxPathLen+1)
	n, err := unix.Readlinkat(fd, "", buf)
	switch {
	case err == unix.ENOENT || err == unix.EINVAL:
		return "", changedMeanwhile, nil // the path is not a symlink any more
	case err != nil:
		return "", "", os.NewSyscallError("readlink", err)
	case n == 0 || n > fsat.MaxPathLen:
		return "", "its target is too long", nil
	}
	return string(buf[:n]), "", nil
}

// Reasons, in [Entry.Denied], why an entry of the upper directory was not copied.
const (
	changedMeanwhile = "it changed while it was read; look again"
	unreadable       = "it cannot be read"
)
