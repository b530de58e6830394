package overlay

import (
	"bytes"
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

const (
	marksMagic    = "caisson marks 1\n" // the first bytes of the output of Mark
	overlayPrefix = "trusted.overlay."  // prefix of the names of overlay attributes
	maxXattrList  = 64 << 10            // maximum size in bytes of the list of a file's attributes: XATTR_LIST_MAX
)

// The kinds of marks, which describe the extended attributes that the overlay has given to a path.
const (
	markOpaque = 1 // the path is an opaque directory, which hides the entries that the lower layers have in it
	// The path has attributes that an overlay with the mount options of workspaces does not set; its entry is denied.
	markRefuse = 2
)

// A mark describes the overlay attributes of one path; see the kinds of marks.
type mark struct {
	kind  byte   // markOpaque or markRefuse
	inode uint64 // inode number of the path when it was marked
}

// marks are the marks of an upper layer, decoded from the output of [Mark].
type marks struct {
	byPath map[string]mark // the marks of the paths that have one
	// cutAt is the first path, in the order of a walk, for which a mark may be missing because there are too many entries.
	// Marks of all later paths may be missing as well. "" means that no marks are missing, and "." that all may be missing.
	cutAt string
}

// Mark writes to out, for [Freeze], which directories of the upper layer of an overlay are opaque, and which entries have
// refused overlay attributes: attributes that an overlay with the mount options of workspaces does not give. The kernel shows
// overlay attributes only to root of the initial user namespace, so Mark cannot be a worker job. It lists names and their
// attributes, and reads nothing else. Returns Denied if the layer's root is opaque or has refused attributes.
func Mark(ctx context.Context, upper *os.File, out io.Writer) error {
	defer fsat.KeepAlive(upper)
	if err := requireTrustedXattrs(); err != nil {
		return err
	}
	m := &marker{ctx: ctx, root: int(upper.Fd()), left: MaxEntries, buf: make([]byte, maxXattrList)}
	m.out.B = []byte(marksMagic)
	kind, err := m.attributes(fmt.Sprintf("/proc/self/fd/%d/.", m.root), true)
	if err != nil {
		return err
	}
	if kind != 0 {
		return caisson.Errorf(caisson.Denied, "the layer with the sandbox's changes is not one of this workspace; remove the workspace")
	}
	if err := m.walk(""); err != nil {
		return err
	}
	m.out.Byte(0)
	m.out.String(m.cutAt)
	_, err = out.Write(fsat.Seal(m.out.B))
	return err
}

// requireTrustedXattrs returns an error if this process cannot see trusted extended attributes, because the kernel would then
// omit them without an error.
func requireTrustedXattrs() error {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return os.NewSyscallError("capget", err)
	}
	ids, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return err
	}
	if data[0].Effective&(1<<unix.CAP_SYS_ADMIN) == 0 || strings.Join(strings.Fields(string(ids)), " ") != "0 0 4294967295" {
		return caisson.Errorf(caisson.Denied, "only root can see what a sandbox has removed; run the daemon as root")
	}
	return nil
}

// marker is the state of one [Mark], which lists the overlay attributes of the entries of an upper directory.
type marker struct {
	ctx   context.Context
	root  int         // file descriptor of the upper directory
	left  int         // number of entries that may still be listed
	cutAt string      // first path for which a mark may be missing; "" for none, "." for all
	buf   []byte      // buffer for the names of attributes
	out   fsat.Packer // the encoded marks so far
}

// walk records the marks of the entries of the directory dir and of everything below it.
func (m *marker) walk(dir string) error {
	if err := m.ctx.Err(); err != nil {
		return err
	}
	fd, err := fsat.OpenDir(m.root, dir)
	if err != nil {
		if dir != "" && fsat.Inaccessible(err) {
			return nil // Freeze cannot read the directory either, and denies its entry
		}
		return fmt.Errorf("open %s: %w", safetext.Path(dir), err)
	}
	names, err := fsat.ReadNames(fd, m.left)
	if err != nil {
		unix.Close(fd)
		if errors.Is(err, fsat.ErrTooMany) {
			m.cutAt, m.left = max(dir, "."), 0
			return nil
		}
		return fmt.Errorf("read %s: %w", safetext.Path(dir), err)
	}
	kinds := make([]bool, len(names)) // for each name, whether it is a directory
	for i, name := range names {
		if kinds[i], err = m.markEntry(fd, fsat.Join(dir, name), name); err != nil {
			unix.Close(fd)
			return err
		}
	}
	unix.Close(fd)
	for i, name := range names {
		path := fsat.Join(dir, name)
		if m.left == 0 {
			if m.cutAt == "" {
				m.cutAt = path
			}
			return nil
		}
		m.left--
		if kinds[i] && len(path) <= fsat.MaxPathLen && fsat.Depth(path) < fsat.MaxDepth {
			if err := m.walk(path); err != nil {
				return err
			}
		}
	}
	return nil
}

// markEntry records the mark, if any, of the entry name of the directory fd, which has the given path, and reports whether it
// is a directory.
func (m *marker) markEntry(fd int, path, name string) (dir bool, err error) {
	st, err := fsat.Lstat(fd, name)
	if err == unix.ENOENT {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	kind, err := m.attributes(fmt.Sprintf("/proc/self/fd/%d/%s", fd, name), st.Type == fsat.TypeDir)
	if err != nil || kind == 0 || len(path) > fsat.MaxPathLen {
		return st.Type == fsat.TypeDir, err
	}
	m.out.Byte(kind)
	m.out.String(path)
	m.out.Uint(st.Inode)
	return st.Type == fsat.TypeDir, nil
}

// attributes returns the kind of the mark that the attributes of path require, or 0 for no mark. dir tells whether path is a
// directory. Symlinks are not followed.
func (m *marker) attributes(path string, dir bool) (kind byte, err error) {
	n, err := unix.Llistxattr(path, m.buf)
	switch err {
	case nil:
	case unix.ENOENT, unix.ENOTSUP:
		return 0, nil
	default:
		return 0, os.NewSyscallError("llistxattr", err)
	}
	for name := range bytes.SplitSeq(m.buf[:n], []byte{0}) {
		name, ours := strings.CutPrefix(string(name), overlayPrefix)
		if !ours {
			continue
		}
		switch name {
		case "origin", "impure", "uuid":
			// These attributes record the origin of a copied-up file, and whether a directory has such files. They neither show
			// nor hide entries.
		case "opaque":
			value := make([]byte, 8)
			n, err := unix.Lgetxattr(path, overlayPrefix+name, value)
			if err != nil || string(value[:n]) != "y" || !dir {
				return markRefuse, nil
			}
			kind = markOpaque
		default:
			return markRefuse, nil
		}
	}
	return kind, nil
}

// readMarks decodes the output of [Mark], and returns an error for all other input.
func readMarks(r io.Reader) (*marks, error) {
	bad := fsat.Malformed("the record of a layer's attributes")
	data, err := io.ReadAll(io.LimitReader(r, MaxIndex+1))
	if err != nil {
		return nil, err
	}
	body, ok := fsat.Unseal(data, marksMagic)
	if !ok {
		return nil, bad
	}
	u := &fsat.Unpacker{B: body}
	m := &marks{byPath: map[string]mark{}}
	for {
		kind := u.Byte()
		if kind == 0 {
			break
		}
		path, inode := u.String(fsat.MaxPathLen), u.Uint()
		if u.Bad || kind > markRefuse || !fsat.ValidPath(path) {
			return nil, bad
		}
		m.byPath[path] = mark{kind: kind, inode: inode}
	}
	m.cutAt = u.String(fsat.MaxPathLen)
	if u.Bad || len(u.B) > 0 {
		return nil, bad
	}
	return m, nil
}

// covers reports whether Mark has read the attributes of path, so that a mark of it cannot be missing.
func (m *marks) covers(path string) bool {
	switch m.cutAt {
	case "":
		return true
	case ".":
		return false
	}
	return fsat.Compare(path, m.cutAt) < 0
}
