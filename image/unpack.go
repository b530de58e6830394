package image

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/binary"
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
	whiteoutPrefix = ".wh."
	opaqueName     = ".wh..wh..opq"
	metaPrefix     = ".wh..wh."
	xattrPrefix    = "SCHILY.xattr."
	maxWarnings    = 20
)

// unpackArgs is what the engine asks of an unpacking job.
type unpackArgs struct {
	// MaxIn and MaxOut bound the bytes that come in and that they unpack to; MaxEntries the files.
	MaxIn, MaxOut, MaxEntries int64
	// Frozen: the archive is gVisor's of a root file system's changes. Devices 0:0 are whiteouts, trusted.overlay.opaque
	// marks directories, and names that begin with .wh. are just names.
	Frozen bool
	// OwnedByRoot gives every file to guest 0:0.
	OwnedByRoot bool
	// Content asks for the digest of the content.
	Content bool
	// VerifyOnly reads the archive for its digests and makes no files.
	VerifyOnly bool
}

// unpacked is what an unpacking job found.
type unpacked struct {
	In       string   // digest of the archive as it came
	DiffID   string   // digest of the archive without compression
	Content  string   // digest of the files, all but their times; if asked for
	InSize   int64    // bytes
	Size     int64    // bytes of the files, in blocks
	Entries  int64    // files, directories and links
	Warnings []string // what was left out, at most maxWarnings
}

// unpacker turns an archive into a layer.
type unpacker struct {
	args    unpackArgs
	tree    *tree
	dirs    map[string]dirMeta // to be applied at the end, because entries inside change them
	content hash.Hash
	buf     []byte
	result  unpacked
}

type dirMeta struct {
	mode    uint32
	modTime time.Time
}

// unpack reads an archive from r and makes the layer it describes in dir. Errors about the archive are Invalid, about its
// size Exhausted.
func unpack(dir *os.File, r io.Reader, args unpackArgs, progress func(int64)) (*unpacked, error) {
	s, err := openStream(r, args.MaxIn, args.MaxOut, progress)
	if err != nil {
		return nil, err
	}
	defer s.close()
	u := &unpacker{args: args, dirs: map[string]dirMeta{}, content: sha256.New(), buf: make([]byte, 256<<10)}
	if !args.VerifyOnly {
		u.tree = newTree(dir)
		defer u.tree.forget()
		if err := u.all(tar.NewReader(s)); err != nil {
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

// diskError gives errors about space a kind and a message that say so.
func diskError(err error) error {
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return caisson.Wrap(err, caisson.Exhausted, "no space is left for images; run caisson image prune")
	case errors.Is(err, unix.EFBIG):
		return caisson.Wrap(err, caisson.Exhausted, "the archive has a file that is larger than allowed")
	case errors.Is(err, unix.EMLINK), errors.Is(err, unix.ENAMETOOLONG), errors.Is(err, unix.EILSEQ):
		return caisson.Wrap(err, caisson.Invalid, "the archive has a file that the file system of the data directory cannot hold")
	}
	return err
}

func (u *unpacker) all(tr *tar.Reader) error {
	for {
		hdr, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return u.finishDirs()
		}
		if err != nil {
			return damaged(err)
		}
		if u.result.Entries++; u.result.Entries > u.args.MaxEntries {
			return caisson.Errorf(caisson.Exhausted, "the archive has more than %d entries", u.args.MaxEntries)
		}
		if err := u.entry(hdr, tr); err != nil {
			return fmt.Errorf("%.200q: %w", hdr.Name, err)
		}
	}
}

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
		return u.marker(path.Dir(p), base)
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

// marker is a file whose name is an instruction about the layers below.
func (u *unpacker) marker(dir, base string) error {
	if base == opaqueName {
		return u.opaque(dir)
	}
	name := strings.TrimPrefix(base, whiteoutPrefix)
	switch {
	case strings.HasPrefix(base, metaPrefix):
		return nil // remains of aufs, which no one has a use for
	case name == "" || name == "." || name == "..":
		return caisson.Errorf(caisson.Invalid, "the archive has a whiteout of nothing in %.200q", dir)
	}
	return u.whiteout(path.Join(dir, name))
}

// whiteout hides p of the layers below. What this layer itself has at p stays, wherever in the archive it comes.
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
	u.note("whiteout", p, &tar.Header{}, "")
	if err := unix.Mknodat(fd, base, unix.S_IFCHR, 0); err != nil {
		return os.NewSyscallError("mknodat", err)
	}
	return chown(fd, base, 0, 0)
}

func (u *unpacker) opaque(dir string) error {
	if dir == "." {
		// An overlay has no mark for this, and to ignore it would show what is meant to be gone.
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
	u.note("opaque", dir, &tar.Header{}, "")
	return os.NewSyscallError("fsetxattr", unix.Fsetxattr(int(f.Fd()), opaqueAttr, []byte("y"), 0))
}

// note adds an entry to the digest of the content. Every part is preceded by its length, so that no two contents look alike.
func (u *unpacker) note(kind, p string, hdr *tar.Header, rest string) {
	var n [8]byte
	for _, s := range []string{kind, p, rest, fmt.Sprintf("%o %d %d %d", hdr.Mode&0o7777, hdr.Uid, hdr.Gid, hdr.Size)} {
		binary.BigEndian.PutUint64(n[:], uint64(len(s)))
		u.content.Write(n[:])
		io.WriteString(u.content, s)
	}
}

// finishDirs sets modes and times of directories, of what is still one at the end.
func (u *unpacker) finishDirs() error {
	for p, meta := range u.dirs {
		f, err := u.tree.open(p, unix.O_DIRECTORY|unix.O_RDONLY)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
			continue // replaced later
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
