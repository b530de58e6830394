package image

import (
	"archive/tar"
	"crypto/sha256"
	"errors"
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// directory creates the directory p, or gives an existing one the owner and the attributes of hdr. A directory that replaces a
// whiteout becomes opaque.
func (u *unpacker) directory(p string, hdr *tar.Header) error {
	if p != "." {
		st, exists, err := u.tree.lstat(p)
		if err != nil {
			return err
		}
		hides := exists && isWhiteout(st)
		if exists && st.Mode&unix.S_IFMT != unix.S_IFDIR {
			if err := u.tree.remove(p, st); err != nil {
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
			if err := u.makeOpaque(p); err != nil {
				return err
			}
		}
	}
	u.dirs[p] = dirMeta{mode: uint32(hdr.Mode & 0o7777), modTime: hdr.ModTime}
	u.hashEntry("directory", p, hdr, "")
	f, err := u.tree.open(p, unix.O_DIRECTORY|unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Chown(hdr.Uid, hdr.Gid); err != nil {
		return err
	}
	return u.setXattrs(f, p, hdr)
}

// replace removes the file or directory at p, if one exists, so that a new entry can be created there that is not a directory.
// It returns the file descriptor of the parent directory and the base name of p.
func (u *unpacker) replace(p string) (fd int, base string, err error) {
	st, exists, err := u.tree.lstat(p)
	if err != nil {
		return 0, "", err
	}
	if exists {
		if err := u.tree.remove(p, st); err != nil {
			return 0, "", err
		}
	}
	return u.tree.parent(p)
}

// block is the size in bytes to which the sizes of files are rounded up, because file systems allocate space in such units.
const block = 4096

// createRegular creates the regular file p with the content of r.
func (u *unpacker) createRegular(p string, hdr *tar.Header, r io.Reader) error {
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
			return archiveError(err)
		}
		return err
	}
	u.result.Size += (n + block - 1) / block * block
	u.hashEntry("file", p, hdr, digestOf(sum))
	// The owner is set before the mode, because changing the owner clears the setuid and setgid bits.
	if err := f.Chown(hdr.Uid, hdr.Gid); err != nil {
		return err
	}
	if err := u.setXattrs(f, p, hdr); err != nil {
		return err
	}
	if err := unix.Fchmod(fd, uint32(hdr.Mode&0o7777)); err != nil {
		return os.NewSyscallError("fchmod", err)
	}
	return setTimes(dir, base, hdr.ModTime)
}

func (u *unpacker) symlink(p string, hdr *tar.Header) error {
	if hdr.Linkname == "" || len(hdr.Linkname) > maxPath || strings.ContainsRune(hdr.Linkname, 0) {
		return caisson.Errorf(caisson.Invalid, "the archive has the symlink %.200q with an invalid target", p)
	}
	fd, base, err := u.replace(p)
	if err != nil {
		return err
	}
	if err := unix.Symlinkat(hdr.Linkname, fd, base); err != nil {
		return os.NewSyscallError("symlinkat", err)
	}
	u.hashEntry("symlink", p, hdr, hdr.Linkname)
	if err := chown(fd, base, hdr.Uid, hdr.Gid); err != nil {
		return err
	}
	return setTimes(fd, base, hdr.ModTime)
}

// link creates p as a hard link to a file of the same layer.
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
	case err == nil && isWhiteout(st) && u.args.Frozen:
		return u.hideLower(p) // gVisor writes all whiteouts after the first one as hard links to it
	case err != nil || isWhiteout(st):
		return broken("is not in it")
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return broken("is a directory")
	}
	fd, base, err := u.replace(p)
	if err != nil {
		return err
	}
	u.hashEntry("link", p, &tar.Header{}, target)
	// Without AT_SYMLINK_FOLLOW, a hard link to a symlink is another name of the symlink itself.
	return os.NewSyscallError("linkat", unix.Linkat(int(from.Fd()), path.Base(target), fd, base, 0))
}

// createSpecial creates the special file p, a FIFO. kind is its file type, such as unix.S_IFIFO.
func (u *unpacker) createSpecial(p string, hdr *tar.Header, kind uint32) error {
	fd, base, err := u.replace(p)
	if err != nil {
		return err
	}
	if err := unix.Mknodat(fd, base, kind|0o600, 0); err != nil {
		return os.NewSyscallError("mknodat", err)
	}
	u.hashEntry("fifo", p, hdr, "")
	if err := chown(fd, base, hdr.Uid, hdr.Gid); err != nil {
		return err
	}
	// Fchmodat follows symlinks, but base is certain to be the special file that was created above, because no other process
	// changes the directory.
	if err := unix.Fchmodat(fd, base, uint32(hdr.Mode&0o7777), 0); err != nil {
		return os.NewSyscallError("fchmodat", err)
	}
	return setTimes(fd, base, hdr.ModTime)
}

// setXattrs sets the extended attributes user.* of the file p. security.* (with file capabilities), trusted.* and system.* are
// dropped, because the host's kernel interprets them. user.overlay.* is dropped, because the overlayfs that mounts the layer
// interprets it.
func (u *unpacker) setXattrs(f *os.File, p string, hdr *tar.Header) error {
	for key, value := range hdr.PAXRecords {
		name, ok := strings.CutPrefix(key, xattrPrefix)
		if !ok {
			continue
		}
		if u.args.Frozen && name == "trusted.overlay.opaque" && value == "y" && hdr.Typeflag == tar.TypeDir {
			if err := u.makeOpaque(p); err != nil {
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
			u.warn("left out an attribute of %.200q, which the file system cannot store", p)
		default:
			return os.NewSyscallError("fsetxattr", err)
		}
	}
	return nil
}
