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
	marksMagic    = "caisson marks 1\n" // the beginning of the output of Mark
	overlayPrefix = "trusted.overlay."  // of the names of overlay attributes
	maxXattrList  = 64 << 10            // XATTR_LIST_MAX
)

// The kinds of marks. The kind describes the overlay's extended attributes of a path.
const (
	markOpaque = 1 // an opaque directory: it hides the entries of the lower layers
	markRefuse = 2 // attributes that an overlay with the mount options of workspaces does not have; the entry is denied
)

// A mark describes the overlay attributes of one path.
type mark struct {
	kind  byte
	inode uint64 // of the path when it was marked
}

// marks are the marks of an upper layer, as [Mark] has written them.
type marks struct {
	byPath map[string]mark // only the paths that have a mark
	// cutAt is the first path, in the order of a walk, for which a mark may be missing because there are too many entries.
	// Marks of all later paths may be missing as well. "" means that no marks are missing, and "." that all may be missing.
	cutAt string
}

// Mark writes to out, for [Freeze], which directories of the upper layer of an overlay are opaque and which entries have overlay
// attributes that are refused, see markRefuse. The kernel shows these attributes only to root of the initial user namespace, so
// Mark cannot be a job. It lists names and their attributes, and reads nothing else. Returns Denied if the layer's root is opaque
// or has refused attributes.
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

// requireTrustedXattrs returns an error if this process cannot see trusted attributes. The kernel would then omit them without
// an error.
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

type marker struct {
	ctx   context.Context
	root  int    // file descriptor of the upper directory
	left  int    // entries that may still be listed
	cutAt string // see marks.cutAt
	buf   []byte
	out   fsat.Packer
}

func (m *marker) walk(dir string) error {
	if err := m.ctx.Err(); err != nil {
		return err
	}
	fd, err := fsat.OpenDir(m.root, dir)
	if err != nil {
		if dir != "" && fsat.Inaccessible(err) {
			return nil // Freeze cannot read the directory either
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
	kinds := make([]bool, len(names)) // whether each name is a directory
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

// markEntry records the attributes of name in the directory fd, and reports whether it is a directory.
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

// attributes returns the kind of mark of path, 0 for none. dir reports whether path is a directory. Symlinks are not followed.
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
			// These record the origin of a copy, and whether a directory has such copies. They neither show nor hide entries.
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

// readMarks decodes the output of Mark and rejects all other input.
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

// covers reports whether Mark has read the attributes of path.
func (m *marks) covers(path string) bool {
	switch m.cutAt {
	case "":
		return true
	case ".":
		return false
	}
	return fsat.Compare(path, m.cutAt) < 0
}
