package fake

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// copyLayer copies the layer in the host directory dir over the files below to and applies its whiteouts. A directory with the
// attribute opaqueAttr of the value "y" hides the contents of the same directory in lower layers. ownerOf returns the owner of a
// file in the sandbox.
func (t *tree) copyLayer(dir, to, opaqueAttr string, ownerOf func(*syscall.Stat_t) owner) error {
	layer, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer layer.Close()
	return fs.WalkDir(layer.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		at := path.Join(to, name)
		old, err := t.root.Lstat(at)
		if err == nil && (!old.IsDir() || !info.IsDir() || isOpaque(path.Join(dir, name), opaqueAttr)) {
			if err := t.root.RemoveAll(at); err != nil {
				return err
			}
		}
		if err := t.copyFile(layer, name, at, info, ownerOf(info.Sys().(*syscall.Stat_t))); err != nil {
			return fmt.Errorf("copy %s: %w", name, err)
		}
		return nil
	})
}

// isOpaque reports whether a file of the host has the attribute attr with the value "y".
func isOpaque(name, attr string) bool {
	var b [2]byte
	n, err := unix.Lgetxattr(name, attr, b[:])
	return err == nil && string(b[:n]) == "y"
}

// copyFile copies the file at name in layer to the path to in the tree, with the owner o. Whiteouts and special files are not
// copied.
func (t *tree) copyFile(layer *os.Root, name, to string, info fs.FileInfo, o owner) error {
	if copied, err := copyEntry(layer, name, t.root, to, info.Mode()); err != nil || !copied {
		return err
	}
	return t.setMetadata(to, info.Mode(), info.ModTime(), o)
}

// copyEntry copies a file with its content, a directory without its entries, or a symlink from name in one root to target in
// another. An existing directory is kept. copied is false for files of other types, which are not copied.
func copyEntry(from *os.Root, name string, to *os.Root, target string, mode fs.FileMode) (copied bool, err error) {
	switch mode.Type() {
	case 0:
		in, err := from.Open(name)
		if err != nil {
			return false, err
		}
		defer in.Close()
		return true, create(to, target, in)
	case fs.ModeDir:
		return true, makeDir(to, target)
	case fs.ModeSymlink:
		link, err := from.Readlink(name)
		if err != nil {
			return false, err
		}
		return true, to.Symlink(link, target)
	}
	return false, nil
}

// guestOwner returns a function that maps the owner of a file on the host to the owner in a sandbox, whose root has the uid and
// gid base on the host. Ids outside the range from base on become 0: such files were created by the user that runs this process.
// If base is negative, all ids become 0.
func guestOwner(base int) func(*syscall.Stat_t) owner {
	id := func(host uint32) int {
		if n := int(host) - base; base >= 0 && n >= 0 && n < caisson.UIDRange {
			return n
		}
		return 0
	}
	return func(st *syscall.Stat_t) owner { return owner{id(st.Uid), id(st.Gid)} }
}

// create creates the file name in root with the content of r. It fails if the file exists.
func create(root *os.Root, name string, r io.Reader) error {
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.Copy(f, r); err != nil {
		return err
	}
	return f.Close()
}

// makeDir creates the directory name in root unless it exists.
func makeDir(root *os.Root, name string) error {
	if err := root.Mkdir(name, 0o755); !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// setMetadata sets the owner, mode and time of a file.
func (t *tree) setMetadata(name string, mode fs.FileMode, mtime time.Time, o owner) error {
	t.setOwner(t.root, name, o)
	return setModeAndTime(t.root, name, mode, mtime)
}

// setModeAndTime sets the mode and time of a file, unless it is a symlink.
func setModeAndTime(root *os.Root, name string, mode fs.FileMode, mtime time.Time) error {
	if mode&fs.ModeSymlink != 0 {
		return nil
	}
	bits := mode & (fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky)
	if err := root.Chmod(name, bits); err != nil {
		return err
	}
	return root.Chtimes(name, mtime, mtime)
}

// save writes the files that differ from the layers as a tar archive. A removed file becomes a character device 0:0, as in
// overlayfs.
func (t *tree) save(w io.Writer) error {
	now, err := t.entries()
	if err != nil {
		return err
	}
	tw := tar.NewWriter(w)
	for _, name := range sortedPaths(t.lower) {
		_, there := now[name]
		_, parent := now[path.Dir(name)]
		if there || !parent && path.Dir(name) != "." || t.overlays.contains(name) {
			continue // no whiteout: the file exists, was removed with its parent, or is below a mounted directory
		}
		if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeChar, Name: name, Format: tar.FormatPAX}); err != nil {
			return err
		}
	}
	for _, name := range sortedPaths(now) {
		if e := now[name]; t.lower[name] != e {
			if err := t.saveFile(tw, name, e); err != nil {
				return fmt.Errorf("save %s: %w", name, err)
			}
		}
	}
	return tw.Close()
}

// saveFile writes one file to an archive. Files of other types than regular files, directories and symlinks are left out.
func (t *tree) saveFile(tw *tar.Writer, name string, e entry) error {
	info, err := t.root.Lstat(name)
	if err != nil {
		return err
	}
	target := ""
	switch info.Mode().Type() {
	case 0, fs.ModeDir:
	case fs.ModeSymlink:
		if target, err = t.root.Readlink(name); err != nil {
			return err
		}
	default:
		return nil
	}
	h, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return err
	}
	h.Name, h.Format = name, tar.FormatPAX
	h.Uid, h.Gid, h.Uname, h.Gname = e.owner.uid, e.owner.gid, "", ""
	h.AccessTime, h.ChangeTime = time.Time{}, time.Time{}
	if err := tw.WriteHeader(h); err != nil || h.Typeflag != tar.TypeReg {
		return err
	}
	f, err := t.root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(tw, f)
	return err
}

// load applies to the tree an archive that save has written.
func (t *tree) load(r io.Reader) error {
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = t.loadFile(tr, h)
		}
		if err != nil {
			return fmt.Errorf("read saved files: %w", err)
		}
	}
}

// loadFile applies the entry h of an archive, whose content tr returns, to the tree.
func (t *tree) loadFile(tr *tar.Reader, h *tar.Header) error {
	name := relativePath(h.Name)
	if name == "." || strings.Contains(h.Name, "\x00") {
		return fmt.Errorf("bad name %q", h.Name)
	}
	old, err := t.root.Lstat(name)
	if err == nil && (h.Typeflag != tar.TypeDir || !old.IsDir()) {
		if err := t.root.RemoveAll(name); err != nil {
			return err
		}
	}
	switch h.Typeflag {
	case tar.TypeChar:
		return nil
	case tar.TypeReg:
		err = create(t.root, name, tr)
	case tar.TypeSymlink:
		err = t.root.Symlink(h.Linkname, name)
	case tar.TypeDir:
		err = makeDir(t.root, name)
	default:
		err = fmt.Errorf("unexpected type %q of %s", h.Typeflag, name)
	}
	if err != nil {
		return err
	}
	return t.setMetadata(name, h.FileInfo().Mode(), h.ModTime, owner{h.Uid, h.Gid})
}
