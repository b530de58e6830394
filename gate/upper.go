package gate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
)

const maxEntries = 200_000

// FreezeLimits bound what is frozen; zero fields mean the default.
type FreezeLimits struct {
	Entries int          `json:"entries,omitempty"` // 200,000, which is the most
	Bytes   caisson.Size `json:"bytes,omitempty"`   // of all files; 4 GiB
	File    caisson.Size `json:"file,omitempty"`    // of one file; 1 GiB. Holes count.
}

func (l FreezeLimits) withDefaults() FreezeLimits {
	if l.Entries <= 0 || l.Entries > maxEntries {
		l.Entries = maxEntries
	}
	if l.Bytes <= 0 {
		l.Bytes = 4 << 30
	}
	if l.File <= 0 {
		l.File = 1 << 30
	}
	return l
}

// Freeze copies what a sandbox has written: the upper layer of an overlay, whose attributes [Mark] has written to marked just
// before. The copy is made in dst, an empty directory, and what [OpenFrozen] returns for that is returned; the caller closes it.
//
// The layer may change meanwhile. Each file is whole as it was at one time, or denied; different files may be of different times.
// What cannot be kept (devices, pipes, sockets, files beyond the limits, unreadable or with odd attributes) is listed as denied
// and never opened. Entries beyond the limit are left out, and the result is cut.
func Freeze(ctx context.Context, upper *os.File, marked io.Reader, dst *os.File, limits FreezeLimits) (*Frozen, error) {
	defer keepAlive(upper, dst)
	m, err := readMarks(marked)
	if err != nil {
		return nil, err
	}
	dir := int(dst.Fd())
	if err := unix.Mkdirat(dir, frozenObjects, 0o755); err != nil {
		return nil, caisson.Wrap(err, caisson.Internal, "cannot make room for a review")
	}
	objects, err := openDir(dir, frozenObjects)
	if err != nil {
		return nil, fmt.Errorf("open the objects: %w", err)
	}
	defer unix.Close(objects)
	l := limits.withDefaults()
	f := &freezer{ctx: ctx, root: int(upper.Fd()), marks: m, left: l.Entries, keeper: newKeeper(objects, l)}
	if f.keeper.pack, err = newPacking(dst); err != nil {
		return nil, err
	}
	err = f.walk("")
	if err := errors.Join(err, f.keeper.pack.close()); err != nil {
		return nil, err
	}
	if err := writeIndex(dir, frozenIndex, f.entries, f.cut); err != nil {
		return nil, err
	}
	return OpenFrozen(dst)
}

// writeIndex puts an index in place, in one step.
func writeIndex(dir int, name string, entries []Entry, cut bool) error {
	tmp := name + ".new"
	fd, err := openUnder(dir, tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return fmt.Errorf("make an index: %w", err)
	}
	file := os.NewFile(uintptr(fd), tmp)
	_, err = file.Write(packIndex(entries, cut))
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("write an index: %w", err)
	}
	return os.NewSyscallError("rename", unix.Renameat(dir, tmp, dir, name))
}

type freezer struct {
	ctx     context.Context
	root    int
	marks   *marks
	left    int
	keeper  *keeper
	entries []Entry
	cut     bool
}

func (f *freezer) walk(dir string) error {
	if err := f.ctx.Err(); err != nil {
		return err
	}
	children, own, err := readChildren(f.root, dir, f.left)
	switch {
	case errors.Is(err, errTooMany):
		f.cut = true
		return nil
	case err != nil && (dir == "" || !shut(err)):
		return fmt.Errorf("read %s: %w", safetext.Path(dir), err)
	case err != nil:
		f.deny(dir, "it cannot be looked into")
		return nil
	}
	if m := f.marks.byPath[dir]; dir != "" && m.kind == markOpaque && m.inode != own.inode {
		f.deny(dir, "it was replaced while it was read; look again")
		return nil
	}
	for _, c := range children {
		path := join(dir, c.name)
		if f.left == 0 || !f.marks.covers(path) {
			f.cut = true
			return nil
		}
		if len(path) > maxPathLen {
			f.deny(dir, "it has paths that are too long")
			continue
		}
		f.left--
		e, err := f.entry(path, &c.stat)
		if err != nil {
			return err
		}
		f.entries = append(f.entries, e)
		if e.Type == typeDir && e.Denied == "" {
			if err := f.walk(path); err != nil {
				return err
			}
		}
	}
	return nil
}

// deny denies a directory that has been recorded already.
func (f *freezer) deny(dir, why string) {
	for i := len(f.entries) - 1; i >= 0; i-- {
		if e := &f.entries[i]; e.Path == dir {
			e.Denied, e.Hash = why, ""
			return
		}
	}
}

func (f *freezer) entry(path string, st *stat) (Entry, error) {
	e := Entry{Path: path, Type: st.typ, Mode: st.mode}
	if st.whiteout() {
		return Entry{Path: path, Type: typeNone, Removed: true, Hash: HashOf(typeNone, 0, "", "")}, nil
	}
	m := f.marks.byPath[path]
	if m.kind == markRefuse || m.kind == markOpaque && m.inode != st.inode {
		e.Size, e.Denied = st.size, "its overlay attributes are not those of a plain copy"
		return e, nil
	}
	e.Opaque = m.kind == markOpaque && st.typ == typeDir
	var err error
	switch st.typ {
	case typeDir:
		if depth(path) >= maxDepth {
			e.Denied = "it is too deep"
		}
	case typeFile:
		e.Size = st.size
		e.Content, e.Size, e.Denied, err = f.keeper.keep(f.root, path, st)
	case typeSymlink:
		e.Link, e.Denied, err = readLink(f.root, path)
	default:
		e.Denied = "it is a " + st.typ + ", which is never applied"
	}
	if e.Denied == "" {
		e.Hash = HashOf(e.Type, e.Mode, e.Content, e.Link)
	}
	return e, err
}

// readLink returns where the symlink at path leads, or why it cannot be known.
func readLink(root int, path string) (link, denied string, err error) {
	fd, err := openUnder(root, path, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return "", vanished, unexpected(err)
	}
	defer unix.Close(fd)
	buf := make([]byte, maxPathLen+1)
	n, err := unix.Readlinkat(fd, "", buf)
	switch {
	case err == unix.ENOENT || err == unix.EINVAL:
		return "", vanished, nil // it is something else now
	case err != nil:
		return "", "", os.NewSyscallError("readlink", err)
	case n == 0 || n > maxPathLen:
		return "", "its target is too long", nil
	}
	return string(buf[:n]), "", nil
}

const (
	vanished   = "it changed while it was read; look again"
	unreadable = "it cannot be read"
)
