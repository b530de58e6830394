package image

import (
	"archive/tar"
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// archiveResult is the result of an archiving job.
type archiveResult struct {
	Warnings []string // descriptions of entries that were left out
}

// archiver writes the contents of a directory as a tar archive, sorted by name. Every file is owned by 0:0 in the archive;
// sockets and devices are left out.
type archiver struct {
	root   *os.Root         // the directory to archive
	tw     *tar.Writer      // writes the archive
	links  map[inode]string // path of the first entry of each file with several hard links; later entries are links to it
	result archiveResult    // the result so far
}

// inode identifies a file of the host by device number and inode number.
type inode struct{ dev, ino uint64 }

// archive writes everything below root to w. Mount points of other file systems are written as empty directories.
func archive(root *os.Root, w io.Writer) (*archiveResult, error) {
	buf := bufio.NewWriterSize(w, 256<<10)
	a := &archiver{root: root, tw: tar.NewWriter(buf), links: map[inode]string{}}
	if err := a.walk("."); err != nil {
		return nil, wrapReadError(err)
	}
	if err := a.tw.Close(); err != nil {
		return nil, err
	}
	return &a.result, buf.Flush()
}

// wrapReadError converts a permission error of reading a file to a Denied error, and returns other errors unchanged.
func wrapReadError(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		if e, ok := errors.AsType[*fs.PathError](err); ok {
			return caisson.Wrap(err, caisson.Denied, "the owner of the directory cannot read %.200q in it", e.Path)
		}
	}
	return err
}

// walk writes the entry for the path p and everything below it.
func (a *archiver) walk(p string) error {
	fi, err := a.root.Lstat(p)
	if err != nil {
		return err
	}
	if err := a.entry(p, fi); err != nil || !fi.IsDir() {
		return err
	}
	entries, err := fs.ReadDir(a.root.FS(), p)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := a.walk(path.Join(p, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// entry writes the entry for the path p, whose metadata is fi, but no entries below it.
func (a *archiver) entry(p string, fi fs.FileInfo) error {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("no status of %q", p)
	}
	hdr := &tar.Header{Name: p, Mode: int64(st.Mode & 0o7777), ModTime: fi.ModTime(), Format: tar.FormatPAX}
	switch fi.Mode().Type() {
	case 0:
		hdr.Typeflag, hdr.Size = tar.TypeReg, fi.Size()
	case fs.ModeDir:
		hdr.Typeflag, hdr.Name = tar.TypeDir, p+"/"
	case fs.ModeSymlink:
		target, err := a.root.Readlink(p)
		if err != nil {
			return err
		}
		hdr.Typeflag, hdr.Linkname = tar.TypeSymlink, target
	case fs.ModeNamedPipe:
		hdr.Typeflag = tar.TypeFifo
	default:
		if len(a.result.Warnings) < maxWarnings {
			a.result.Warnings = append(a.result.Warnings, fmt.Sprintf("left out the socket or device %.200q", p))
		}
		return nil
	}
	if strings.HasPrefix(path.Base(p), whiteoutPrefix) {
		return caisson.Errorf(caisson.Invalid, "%.200q has a name that is reserved in images (%s); rename it", p, whiteoutPrefix)
	}
	if hdr.Typeflag != tar.TypeDir && st.Nlink > 1 {
		id := inode{uint64(st.Dev), st.Ino}
		if first, ok := a.links[id]; ok {
			return a.tw.WriteHeader(&tar.Header{Typeflag: tar.TypeLink, Name: p, Linkname: first, Format: tar.FormatPAX})
		}
		a.links[id] = p
	}
	if hdr.Typeflag == tar.TypeReg {
		return a.regular(p, hdr)
	}
	return a.tw.WriteHeader(hdr)
}

// regular writes the entry and the content of the file at the path p.
func (a *archiver) regular(p string, hdr *tar.Header) error {
	// O_NONBLOCK prevents open from waiting if the file was replaced by a FIFO after Lstat.
	f, err := a.root.OpenFile(p, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := a.tw.WriteHeader(hdr); err != nil {
		return err
	}
	n, err := io.Copy(a.tw, io.LimitReader(f, hdr.Size))
	if err == nil && n != hdr.Size {
		err = caisson.Errorf(caisson.Conflict, "%.200q became shorter while it was read; try again when nothing writes to it", p)
	}
	return err
}
