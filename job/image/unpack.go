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
	whiteoutPrefix = ".wh."          // a file with the name .wh.NAME hides the entry NAME of the layers below
	opaqueName     = ".wh..wh..opq"  // a file with this name hides everything that the layers below have in its directory
	aufsPrefix     = ".wh..wh."      // beginning of the names of aufs's own files
	xattrPrefix    = "SCHILY.xattr." // beginning of the keys of PAX records with extended attributes
	maxWarnings    = 20              // maximum number of warnings of one layer; further ones are dropped
)

// unpackArgs are the arguments of an unpacking job.
type unpackArgs struct {
	// MaxIn and MaxOut limit the compressed and the unpacked size in bytes; MaxEntries limits the number of entries.
	MaxIn, MaxOut, MaxEntries int64
	// Frozen means that gVisor wrote the archive from the changes to a root file system. Character devices 0:0 are whiteouts,
	// trusted.overlay.opaque marks opaque directories, and names that begin with .wh. have no special meaning.
	Frozen bool
	// OwnedByRoot means that every file gets the owner 0:0 of the guest.
	OwnedByRoot bool
	// Content means that unpackResult.Content is computed.
	Content bool
	// VerifyOnly means that only the digests of the archive are computed and no files are created.
	VerifyOnly bool
}

// unpackResult is the result of an unpacking job.
type unpackResult struct {
	In       string   // digest of the archive as received
	DiffID   string   // digest of the uncompressed archive
	Content  string   // digest of the files without their times; "" unless unpackArgs.Content is set
	InSize   int64    // size in bytes of the archive as received
	Size     int64    // size in bytes of the files, each rounded up to blocks
	Entries  int64    // number of entries of the archive
	Warnings []string // descriptions of entries that were left out, at most maxWarnings
}

// unpacker creates a layer from an archive.
type unpacker struct {
	args unpackArgs // limits and options
	tree *tree      // creates the files of the layer
	// dirs contains the modes and times of directories, by path. They are set at the end, because creating files in a directory
	// changes its times.
	dirs    map[string]dirMeta
	content hash.Hash    // SHA-256 of the entries so far, see hashEntry
	buf     []byte       // buffer for copying contents
	result  unpackResult // the result so far
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

// diskError converts errors about disk space and the limits of file systems to a caisson.Error, and returns other errors
// unchanged.
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

// unpackAll creates the files of all entries of an archive.
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

// entry creates the file that one entry of the archive describes, or applies the entry if it is a whiteout or an opaque marker.
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
		return u.createRegular(p, hdr, r)
	case tar.TypeSymlink:
		return u.symlink(p, hdr)
	case tar.TypeLink:
		return u.link(p, hdr)
	case tar.TypeFifo:
		return u.createSpecial(p, hdr, unix.S_IFIFO)
	case tar.TypeChar:
		if u.args.Frozen && hdr.Devmajor == 0 && hdr.Devminor == 0 {
			return u.hideLower(p)
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

// warn adds a warning to the result.
func (u *unpacker) warn(format string, args ...any) {
	if len(u.result.Warnings) < maxWarnings {
		u.result.Warnings = append(u.result.Warnings, fmt.Sprintf(format, args...))
	}
}

// applyMarker applies an entry of the directory dir whose name, base, makes it a whiteout or an opaque marker for the layers
// below (OCI image layer specification).
func (u *unpacker) applyMarker(dir, base string) error {
	if base == opaqueName {
		return u.makeOpaque(dir)
	}
	name := strings.TrimPrefix(base, whiteoutPrefix)
	switch {
	case strings.HasPrefix(base, aufsPrefix):
		return nil // the file contains metadata of aufs, which are not needed
	case name == "" || name == "." || name == "..":
		return caisson.Errorf(caisson.Invalid, "the archive has a whiteout of nothing in %.200q", dir)
	}
	return u.hideLower(path.Join(dir, name))
}

// hideLower creates a whiteout that hides the entry p of the layers below. An entry of this layer at p is not hidden, whether
// it precedes or follows the whiteout in the archive.
func (u *unpacker) hideLower(p string) error {
	st, exists, err := u.tree.lstat(p)
	if err != nil {
		return err
	}
	if exists {
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			return u.makeOpaque(p)
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

// makeOpaque marks the directory dir as opaque, so that it hides the entries that the layers below have in it. It creates dir
// if it does not exist.
func (u *unpacker) makeOpaque(dir string) error {
	if dir == "." {
		// overlayfs cannot mark the root as opaque, and ignoring the marker would show files that the image hides.
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

// hashEntry adds an entry of the archive to the digest unpackResult.Content.
func (u *unpacker) hashEntry(kind, p string, hdr *tar.Header, rest string) {
	hashParts(u.content, kind, p, rest, fmt.Sprintf("%o %d %d %d", hdr.Mode&0o7777, hdr.Uid, hdr.Gid, hdr.Size))
}

// finishDirs sets the modes and times in u.dirs of the paths that are still directories at the end of the archive.
func (u *unpacker) finishDirs() error {
	for p, meta := range u.dirs {
		f, err := u.tree.open(p, unix.O_DIRECTORY|unix.O_RDONLY)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
			continue // the directory was replaced by a later entry
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
