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

// copyLayer copies one layer over the files in the tree and applies its whiteouts.
func (t *tree) copyLayer(dir string) error {
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
		if opaque(path.Join(dir, name), info) || !info.IsDir() {
			if err := t.root.RemoveAll(name); err != nil {
				return err
			}
		}
		var o owner
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			o = owner{guestID(st.Uid), guestID(st.Gid)}
		}
		if err := t.copyFile(layer, name, name, info, o); err != nil {
			return fmt.Errorf("copy %s: %w", name, err)
		}
		return nil
	})
}

// opaque reports whether the file name of an image layer is a directory that hides the contents of the same directory in lower
// layers.
func opaque(name string, info fs.FileInfo) bool {
	var b [2]byte
	n, err := unix.Lgetxattr(name, "user.overlay.opaque", b[:])
	return info.IsDir() && err == nil && string(b[:n]) == "y"
}

// copyFile copies name in layer to to, with the owner o. Whiteouts and special files are not copied.
func (t *tree) copyFile(layer *os.Root, name, to string, info fs.FileInfo, o owner) error {
	switch info.Mode().Type() {
	case 0:
		in, err := layer.Open(name)
		if err != nil {
			return err
		}
		defer in.Close()
		if err := create(t.root, to, in); err != nil {
			return err
		}
	case fs.ModeDir:
		if err := t.root.Mkdir(to, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	case fs.ModeSymlink:
		target, err := layer.Readlink(name)
		if err != nil {
			return err
		}
		if err := t.root.Symlink(target, to); err != nil {
			return err
		}
	default:
		return nil
	}
	return t.setMetadata(to, info.Mode(), info.ModTime(), o)
}

// guestID maps the host id of a file of a layer to the id in the sandbox. Ids outside the range of layers become 0: such files
// were created by the user that runs this process.
func guestID(id uint32) int {
	if id < caisson.LayerUIDBase || id > caisson.LayerUIDBase+0xffff {
		return 0
	}
	return int(id - caisson.LayerUIDBase)
}

// create creates the file name with the content of r. It fails if the file exists.
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

// setMetadata sets the owner, mode and time of a file.
func (t *tree) setMetadata(name string, mode fs.FileMode, mtime time.Time, o owner) error {
	t.setOwner(t.root, name, o)
	if mode&fs.ModeSymlink != 0 {
		return nil
	}
	bits := mode & (fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky)
	if err := t.root.Chmod(name, bits); err != nil {
		return err
	}
	return t.root.Chtimes(name, mtime, mtime)
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
			continue // it exists, was removed with its parent, or is below a mounted directory
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

// load applies an archive that save wrote.
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

// loadFile applies one entry of an archive.
func (t *tree) loadFile(tr *tar.Reader, h *tar.Header) error {
	name := clean(h.Name)
	if name == "." || strings.Contains(h.Name, "\x00") {
		return fmt.Errorf("bad name %q", h.Name)
	}
	old, err := t.root.Lstat(name)
	if err == nil && (h.Typeflag != tar.TypeDir || !old.IsDir()) {
		if err := t.root.RemoveAll(name); err != nil {
			return err
		}
		old = nil
	}
	switch h.Typeflag {
	case tar.TypeChar:
		return nil
	case tar.TypeReg:
		err = create(t.root, name, tr)
	case tar.TypeSymlink:
		err = t.root.Symlink(h.Linkname, name)
	case tar.TypeDir:
		err = nil
		if old == nil {
			err = t.root.Mkdir(name, 0o755)
		}
	default:
		err = fmt.Errorf("unexpected type %q of %s", h.Typeflag, name)
	}
	if err != nil {
		return err
	}
	return t.setMetadata(name, h.FileInfo().Mode(), h.ModTime, owner{h.Uid, h.Gid})
}
