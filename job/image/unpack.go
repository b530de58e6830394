package image

import (
	"archive/tar"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

const (
	whiteoutPrefix = ".wh."          // a file .wh.NAME hides NAME of the layers below
	opaqueName     = ".wh..wh..opq"  // a file that hides everything that the layers below have in its directory
	aufsPrefix     = ".wh..wh."      // begins names of aufs's own files
	xattrPrefix    = "SCHILY.xattr." // begins keys of PAX records with extended attributes
	maxWarnings    = 20              // warnings of one image; further ones are dropped
)

// unpackArgs are the arguments of an unpacking job.
type unpackArgs struct {
	// MaxIn and MaxOut limit the compressed and the unpacked size in bytes; MaxEntries limits the number of entries.
	MaxIn, MaxOut, MaxEntries int64
	// Frozen means that gVisor wrote the archive from the changes to a root file system. Character devices 0:0 are whiteouts,
	// trusted.overlay.opaque marks opaque directories, and names that begin with .wh. have no special meaning.
	Frozen bool
	// OwnedByRoot makes the guest's 0:0 the owner of every file.
	OwnedByRoot bool
	// Content requests unpackResult.Content.
	Content bool
	// VerifyOnly computes the digests of the archive without creating files.
	VerifyOnly bool
}

// unpackResult is the result of an unpacking job.
type unpackResult struct {
	In       string   // digest of the archive as received
	DiffID   string   // digest of the uncompressed archive
	Content  string   // digest of the files without their times; "" unless unpackArgs.Content is set
	InSize   int64    // bytes of the archive as received
	Size     int64    // bytes of the files, rounded up to blocks
	Entries  int64    // files, directories and links
	Warnings []string // entries that were left out, at most maxWarnings
}

// unpacker turns an archive into a layer.
type unpacker struct {
	args    unpackArgs
	tree    *tree
	dirs    map[string]dirMeta // applied at the end, because creating files in a directory changes its times
	content hash.Hash          // see hashEntry
	buf     []byte             // for copying
	result  unpackResult
}

// dirMeta is the mode and the modification time of a directory.
type dirMeta struct {
	mode    uint32
	modTime time.Time
}

// unpack reads an archive from r and creates the layer that it describes in dir. Returns Invalid if the archive is malformed,
// and Exhausted if it exceeds a limit or the disk is full.
func unpack(dir *os.File, r io.Reader, args unpackArgs, progress func(int64)) (*unpackResult, error) {
	s, err := openStream(r, args.MaxIn, args.MaxOut, progress)
	if err != nil {
		return nil, err
	}
	defer s.close()
	u := &unpacker{args: args, dirs: map[string]dirMeta{}, content: sha256.New(), buf: make([]byte, 256<<10)}
	if !args.VerifyOnly {
		u.tree = newTree(dir)
		defer u.tree.closeParent()
		if err := u.unpackAll(tar.NewReader(s)); err != nil {
			return nil, diskError(err)
		}
	}
	if err := s.finish(); err != nil {
		return nil, err
	}
	u.result.In, u.result.InSize = s.in.digest(), s.in.n
	u.result.DiffID = s.out.digest()
	if args.Content {
		u.result.Content = digestOf(u.content)
	}
	return &u.result, nil
}

// diskError converts errors about disk space and file system limits to a caisson.Error, and returns others unchanged.
func diskError(err error) error {
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return caisson.Wrap(err, caisson.Exhausted, "no space is left for images; run caisson image prune")
	case errors.Is(err, unix.EFBIG):
		return caisson.Wrap(err, caisson.Exhausted, "the archive has a file that is larger than allowed")
	case errors.Is(err, unix.EMLINK), errors.Is(err, unix.ENAMETOOLONG), errors.Is(err, unix.EILSEQ):
		return caisson.Wrap(err, caisson.Invalid, "the archive has a file that the file system of the data directory cannot store")
	}
	return err
}

// unpackAll creates all entries of an archive.
func (u *unpacker) unpackAll(tr *tar.Reader) error {
	for {
		hdr, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return u.finishDirs()
		}
		if err != nil {
			return archiveError(err)
		}
		if u.result.Entries++; u.result.Entries > u.args.MaxEntries {
			return caisson.Errorf(caisson.Exhausted, "the archive has more than %d entries", u.args.MaxEntries)
		}
		if err := u.entry(hdr, tr); err != nil {
			return fmt.Errorf("%.200q: %w", hdr.Name, err)
		}
	}
}

// entry creates the file of one entry, or applies the entry if it is a whiteout or an opaque marker.
func (u *unpacker) entry(hdr *tar.Header, r io.Reader) error {
	p, err := cleanPath(hdr.Name)
	if err != nil {
		return err
	}
	if hdr.Uid < 0 || hdr.Uid >= caisson.UIDRange || hdr.Gid < 0 || hdr.Gid >= caisson.UIDRange {
		return caisson.Errorf(caisson.Invalid, "%.200q belongs to %d:%d; only ids up to %d are supported", p, hdr.Uid, hdr.Gid, caisson.UIDRange-1)
	}
	if u.args.OwnedByRoot {
		hdr.Uid, hdr.Gid = 0, 0
	}
	if base := path.Base(p); !u.args.Frozen && strings.HasPrefix(base, whiteoutPrefix) {
		return u.applyMarker(path.Dir(p), base)
	}
	if p == "." && hdr.Typeflag != tar.TypeDir {
		return caisson.Errorf(caisson.Invalid, "the archive has an entry %.80q that is not a directory in place of its root", hdr.Name)
	}
	switch hdr.Typeflag {
	case tar.TypeDir:
		return u.directory(p, hdr)
	case tar.TypeReg, tar.TypeGNUSparse, tar.TypeCont:
		return u.regular(p, hdr, r)
	case tar.TypeSymlink:
		return u.symlink(p, hdr)
	case tar.TypeLink:
		return u.link(p, hdr)
	case tar.TypeFifo:
		return u.special(p, hdr, unix.S_IFIFO)
	case tar.TypeChar:
		if u.args.Frozen && hdr.Devmajor == 0 && hdr.Devminor == 0 {
			return u.whiteout(p)
		}
		u.warn("left out the device %.200q", p)
	case tar.TypeBlock:
		u.warn("left out the device %.200q", p)
	case tar.TypeXGlobalHeader:
	default:
		u.warn("left out %.200q, of the unknown type %q", p, hdr.Typeflag)
	}
	return nil
}

func (u *unpacker) warn(format string, args ...any) {
	if len(u.result.Warnings) < maxWarnings {
		u.result.Warnings = append(u.result.Warnings, fmt.Sprintf(format, args...))
	}
}

// applyMarker applies a file whose name is a whiteout or an opaque marker for the layers below (OCI image layer specification).
func (u *unpacker) applyMarker(dir, base string) error {
	if base == opaqueName {
		return u.opaque(dir)
	}
	name := strings.TrimPrefix(base, whiteoutPrefix)
	switch {
	case strings.HasPrefix(base, aufsPrefix):
		return nil // metadata of aufs, which is not needed
	case name == "" || name == "." || name == "..":
		return caisson.Errorf(caisson.Invalid, "the archive has a whiteout of nothing in %.200q", dir)
	}
	return u.whiteout(path.Join(dir, name))
}

// whiteout hides p of the layers below. An entry of this layer at p is kept, whether it precedes or follows the whiteout.
func (u *unpacker) whiteout(p string) error {
	st, exists, err := u.tree.lstat(p)
	if err != nil {
		return err
	}
	if exists {
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			return u.opaque(p)
		}
		return nil
	}
	fd, base, err := u.tree.parent(p)
	if err != nil {
		return err
	}
	u.hashEntry("whiteout", p, &tar.Header{}, "")
	if err := unix.Mknodat(fd, base, unix.S_IFCHR, 0); err != nil {
		return os.NewSyscallError("mknodat", err)
	}
	return chown(fd, base, 0, 0)
}

// opaque makes dir opaque, so that it hides the entries that the layers below have in it.
func (u *unpacker) opaque(dir string) error {
	if dir == "." {
		// overlayfs cannot mark the root as opaque, and ignoring the marker would show files that it hides.
		return caisson.Errorf(caisson.Invalid, "the archive hides everything below it, which is not supported; squash the image")
	}
	if _, ok, err := u.tree.lstat(dir); err != nil {
		return err
	} else if !ok {
		if err := u.directory(dir, &tar.Header{Mode: 0o755}); err != nil {
			return err
		}
	}
	f, err := u.tree.open(dir, unix.O_DIRECTORY|unix.O_RDONLY)
	if err != nil {
		return caisson.Wrap(err, caisson.Invalid, "the archive marks %.200q as opaque, which is not a directory", dir)
	}
	defer f.Close()
	u.hashEntry("opaque", dir, &tar.Header{}, "")
	return os.NewSyscallError("fsetxattr", unix.Fsetxattr(int(f.Fd()), opaqueAttr, []byte("y"), 0))
}

// hashEntry adds an entry to the digest of the content.
func (u *unpacker) hashEntry(kind, p string, hdr *tar.Header, rest string) {
	hashParts(u.content, kind, p, rest, fmt.Sprintf("%o %d %d %d", hdr.Mode&0o7777, hdr.Uid, hdr.Gid, hdr.Size))
}

// finishDirs sets the modes and times of all entries that are still directories at the end.
func (u *unpacker) finishDirs() error {
	for p, meta := range u.dirs {
		f, err := u.tree.open(p, unix.O_DIRECTORY|unix.O_RDONLY)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
			continue // replaced by a later entry
		}
		if err != nil {
			return err
		}
		err = errors.Join(
			os.NewSyscallError("fchmod", unix.Fchmod(int(f.Fd()), meta.mode)),
			setTimes(int(f.Fd()), ".", meta.modTime))
		f.Close()
		if err != nil {
			return err
		}
	}
	return nil
}
