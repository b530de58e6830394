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

func (u *unpacker) directory(p string, hdr *tar.Header) error {
	if p != "." {
		st, exists, err := u.tree.lstat(p)
		if err != nil {
			return err
		}
		hides := exists && isWhiteout(st)
		if exists && st.Mode&unix.S_IFMT != unix.S_IFDIR {
			if err := u.tree.clear(p, st); err != nil {
				return err
			}
			exists = false
		}
		fd, base, err := u.tree.parent(p)
		if err != nil {
			return err
		}
		if !exists {
			if err := unix.Mkdirat(fd, base, 0o700); err != nil {
				return os.NewSyscallError("mkdirat", err)
			}
			u.result.Size += block
		}
		if hides {
			if err := u.opaque(p); err != nil {
				return err
			}
		}
	}
	u.dirs[p] = dirMeta{mode: uint32(hdr.Mode & 0o7777), modTime: hdr.ModTime}
	u.note("directory", p, hdr, "")
	f, err := u.tree.open(p, unix.O_DIRECTORY|unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Chown(hdr.Uid, hdr.Gid); err != nil {
		return err
	}
	return u.xattrs(f, p, hdr)
}

// replace makes room for an entry that is not a directory, and returns where it goes.
func (u *unpacker) replace(p string) (fd int, base string, err error) {
	st, exists, err := u.tree.lstat(p)
	if err != nil {
		return 0, "", err
	}
	if exists {
		if err := u.tree.clear(p, st); err != nil {
			return 0, "", err
		}
	}
	u.result.Size += block
	return u.tree.parent(p)
}

// block is what a file takes on disk besides its content, roughly.
const block = 4096

func (u *unpacker) regular(p string, hdr *tar.Header, r io.Reader) error {
	if hdr.Size > u.args.MaxOut-u.result.Size {
		return caisson.Errorf(caisson.Exhausted, "the archive unpacks to more than allowed (%v)", caisson.Size(u.args.MaxOut))
	}
	dir, base, err := u.replace(p)
	if err != nil {
		return err
	}
	fd, err := unix.Openat(dir, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return os.NewSyscallError("openat", err)
	}
	f := os.NewFile(uintptr(fd), base)
	defer f.Close()
	to, sum := io.Writer(f), sha256.New()
	if u.args.Content {
		to = io.MultiWriter(f, sum)
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{to}, r, u.buf)
	if err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return damaged(err)
		}
		return err
	}
	u.result.Size += (n + block - 1) / block * block
	u.note("file", p, hdr, digestOf(sum))
	// In this order: a change of owner clears the setuid bits.
	if err := f.Chown(hdr.Uid, hdr.Gid); err != nil {
		return err
	}
	if err := u.xattrs(f, p, hdr); err != nil {
		return err
	}
	if err := unix.Fchmod(fd, uint32(hdr.Mode&0o7777)); err != nil {
		return os.NewSyscallError("fchmod", err)
	}
	return setTimes(dir, base, hdr.ModTime)
}

func (u *unpacker) symlink(p string, hdr *tar.Header) error {
	if hdr.Linkname == "" || len(hdr.Linkname) > maxPath || strings.ContainsRune(hdr.Linkname, 0) {
		return caisson.Errorf(caisson.Invalid, "the archive has the symlink %.200q to an impossible target", p)
	}
	fd, base, err := u.replace(p)
	if err != nil {
		return err
	}
	if err := unix.Symlinkat(hdr.Linkname, fd, base); err != nil {
		return os.NewSyscallError("symlinkat", err)
	}
	u.note("symlink", p, hdr, hdr.Linkname)
	if err := chown(fd, base, hdr.Uid, hdr.Gid); err != nil {
		return err
	}
	return setTimes(fd, base, hdr.ModTime)
}

// link makes a hard link to a file of this layer.
func (u *unpacker) link(p string, hdr *tar.Header) error {
	target, err := cleanPath(hdr.Linkname)
	if err != nil {
		return err
	}
	if target == p {
		return nil
	}
	broken := func(why string) error {
		return caisson.Errorf(caisson.Invalid, "the archive has the hard link %.200q to %.200q, which %s", p, target, why)
	}
	if strings.HasPrefix(p+"/", target+"/") || strings.HasPrefix(target, p+"/") {
		return broken("is above or below it")
	}
	from, err := u.tree.open(path.Dir(target), unix.O_DIRECTORY|unix.O_RDONLY)
	if err != nil {
		return broken("is not in it")
	}
	defer from.Close()
	var st unix.Stat_t
	err = unix.Fstatat(int(from.Fd()), path.Base(target), &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case err != nil || isWhiteout(st):
		return broken("is not in it")
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return broken("is a directory")
	}
	fd, base, err := u.replace(p)
	if err != nil {
		return err
	}
	u.note("link", p, &tar.Header{}, target)
	// Without AT_SYMLINK_FOLLOW a link to a symlink is one more name of the symlink.
	return os.NewSyscallError("linkat", unix.Linkat(int(from.Fd()), path.Base(target), fd, base, 0))
}

func (u *unpacker) special(p string, hdr *tar.Header, kind uint32) error {
	fd, base, err := u.replace(p)
	if err != nil {
		return err
	}
	if err := unix.Mknodat(fd, base, kind|0o600, 0); err != nil {
		return os.NewSyscallError("mknodat", err)
	}
	u.note("fifo", p, hdr, "")
	if err := chown(fd, base, hdr.Uid, hdr.Gid); err != nil {
		return err
	}
	// It is not a symlink, it was made here just now, and no one else is around.
	if err := unix.Fchmodat(fd, base, uint32(hdr.Mode&0o7777), 0); err != nil {
		return os.NewSyscallError("fchmodat", err)
	}
	return setTimes(fd, base, hdr.ModTime)
}

// xattrs sets the user.* attributes. security.*, trusted.*, system.* are dropped, file capabilities with them: they are
// statements to the host's kernel. So is user.overlay.*, which the overlay that mounts the layer obeys.
func (u *unpacker) xattrs(f *os.File, p string, hdr *tar.Header) error {
	for key, value := range hdr.PAXRecords {
		name, ok := strings.CutPrefix(key, xattrPrefix)
		if !ok {
			continue
		}
		if u.args.Frozen && name == "trusted.overlay.opaque" && value == "y" && hdr.Typeflag == tar.TypeDir {
			if err := u.opaque(p); err != nil {
				return err
			}
			continue
		}
		if !strings.HasPrefix(name, "user.") || strings.HasPrefix(name, "user.overlay.") {
			continue
		}
		err := unix.Fsetxattr(int(f.Fd()), name, []byte(value), 0)
		switch {
		case err == nil:
		case errors.Is(err, unix.ENOTSUP), errors.Is(err, unix.ENOSPC), errors.Is(err, unix.E2BIG), errors.Is(err, unix.ERANGE):
			u.warn("left out an attribute of %.200q, which the file system cannot hold", p)
		default:
			return os.NewSyscallError("fsetxattr", err)
		}
	}
	return nil
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
