package guestd

import (
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// A filesystem is a directory that is used as "/": symlinks in it, including absolute symlinks, are resolved as for programs
// whose root it is. In a sandbox it is the root directory; for a runtime without processes it is a directory of the host.
//
// The kernel resolves paths (RESOLVE_IN_ROOT) in one system call, so that concurrent changes cannot cause an escape.
type filesystem struct {
	root *os.File // the directory that is used as "/"
}

const maxLinks = 40 // maximum number of symlinks that are followed for one path, as in the kernel

// openFilesystem returns the filesystem whose "/" is the directory root.
func openFilesystem(root *os.Root) (*filesystem, error) {
	f, err := root.OpenFile(".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	return &filesystem{root: f}, nil
}

func (s *filesystem) close() error { return s.root.Close() }

// open opens the absolute path name, following symlinks unless flags prevent that.
func (s *filesystem) open(name string, flags int, mode uint32) (*os.File, error) {
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC | unix.O_NOCTTY), Mode: uint64(mode), Resolve: unix.RESOLVE_IN_ROOT}
	if flags&unix.O_PATH != 0 {
		how.Flags &^= unix.O_NOCTTY
	}
	for {
		fd, err := unix.Openat2(int(s.root.Fd()), name, &how)
		if err == nil {
			return os.NewFile(uintptr(fd), name), nil
		}
		// Retry after EAGAIN: because of a concurrent rename, the kernel could not verify that ".." stays below the root.
		if err != unix.EINTR && err != unix.EAGAIN {
			return nil, &fs.PathError{Op: "open", Path: name, Err: err}
		}
	}
}

// A dirEntry is an open directory with the name of an entry in it, which need not exist; the name "." means the directory itself.
type dirEntry struct {
	dir  *os.File // the directory, opened with O_PATH
	name string   // name of the entry in the directory
	path string   // path of the entry, for error messages
}

// close closes the directory of the entry.
func (p dirEntry) close() { p.dir.Close() }

// fd returns the file descriptor of the directory of the entry.
func (p dirEntry) fd() int { return int(p.dir.Fd()) }

// wrapError returns err with the operation op and the path of the entry added; nil if err is nil.
func (p dirEntry) wrapError(op string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: p.path, Err: err}
}

// locate opens the parent directory of the path name and returns name's entry in it. It does not access the entry.
func (s *filesystem) locate(name string) (dirEntry, error) {
	name = path.Clean("/" + name)
	base := path.Base(name)
	if base == "/" {
		base = "."
	}
	dir, err := s.open(path.Dir(name), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return dirEntry{}, err
	}
	return dirEntry{dir: dir, name: base, path: name}, nil
}

// stat returns information about the entry. It does not follow a symlink.
func (p dirEntry) stat() (*entry, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(p.fd(), p.name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil, p.wrapError("stat", err)
	}
	target := ""
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		target, _ = p.readlink() // the target is "" for links of /proc that cannot be read
	}
	return newEntry("", &st, target), nil
}

// readlink returns the target of the entry, which must be a symlink.
func (p dirEntry) readlink() (string, error) {
	buf := make([]byte, maxPath)
	n, err := unix.Readlinkat(p.fd(), p.name, buf)
	if err != nil {
		return "", p.wrapError("readlink", err)
	}
	return string(buf[:n]), nil
}

// locateTarget returns the entry to which the path name leads after symlinks are followed. The entry need not exist: it is the
// one that open(2) with O_CREAT would create. Missing parents of name are created, but not those of the target of a symlink.
func (s *filesystem) locateTarget(name string) (dirEntry, error) {
	name = path.Clean("/" + name)
	if err := s.mkdirAll(path.Dir(name)); err != nil {
		return dirEntry{}, err
	}
	for range maxLinks {
		dir, base := path.Dir(name), path.Base(name)
		if i := strings.LastIndexByte(name, '/'); i > 0 { // dir is not cleaned: the kernel must resolve ".." after a symlink
			dir, base = name[:i], name[i+1:]
		}
		if base == "" || base == "." || base == ".." || base == "/" {
			return dirEntry{}, &fs.PathError{Op: "open", Path: name, Err: unix.EISDIR}
		}
		d, err := s.open(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			return dirEntry{}, err
		}
		p := dirEntry{dir: d, name: base, path: name}
		link, err := p.readlink()
		if err != nil { // EINVAL means that the entry is not a symlink, and ENOENT that it does not exist
			if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
				return p, nil
			}
			p.close()
			return dirEntry{}, err
		}
		p.close()
		if !strings.HasPrefix(link, "/") {
			link = dir + "/" + link
		}
		name = link
	}
	return dirEntry{}, &fs.PathError{Op: "open", Path: name, Err: unix.ELOOP}
}

// mkdirAll creates the directory at the path name and its missing parents.
func (s *filesystem) mkdirAll(name string) error {
	d, err := s.open(name, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err == nil {
		return d.Close()
	}
	if !errors.Is(err, fs.ErrNotExist) || name == "/" {
		return err
	}
	if err := s.mkdirAll(path.Dir(name)); err != nil {
		return err
	}
	p, err := s.locate(name)
	if err != nil {
		return err
	}
	defer p.close()
	if err := unix.Mkdirat(p.fd(), p.name, 0o755); err != nil && err != unix.EEXIST {
		return p.wrapError("mkdir", err)
	}
	// Check that name is a directory now: after EEXIST it may be a dangling symlink or a file.
	d, err = s.open(name, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	return d.Close()
}

// subtree returns the directory at the path name as an os.Root, which does not follow symlinks that lead out of the directory.
func (s *filesystem) subtree(name string) (*os.Root, error) {
	d, err := s.open(name, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return os.OpenRoot(procPath(d))
}

// procPath returns a path of the open file f in /proc, for system calls that accept only paths.
func procPath(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) }

// A pendingFile is a temporary file that replaces the entry dirEntry, in the same directory, when it is complete.
type pendingFile struct {
	*os.File
	dirEntry
	temp string // name of the temporary file in the directory
	mode uint32 // permissions of the complete file, which commit sets
}

// createPending creates a temporary file that will replace the file name. mode 0 means the mode of the old file, or 0644 if there
// is none. The temporary file gets the owner of the old file if the permissions of this process allow that.
func (s *filesystem) createPending(name string, mode uint32) (*pendingFile, error) {
	p, err := s.locateTarget(name)
	if err != nil {
		return nil, err
	}
	d, err := p.createPending(mode)
	if err != nil {
		p.close()
	}
	return d, err
}

// createPending creates a temporary file that will replace the entry p, which must be a regular file if it exists. mode 0 means
// the mode of p, or 0644 if it does not exist.
func (p dirEntry) createPending(mode uint32) (*pendingFile, error) {
	var old unix.Stat_t
	err := unix.Fstatat(p.fd(), p.name, &old, unix.AT_SYMLINK_NOFOLLOW)
	exists := err == nil
	switch {
	case exists && old.Mode&unix.S_IFMT == unix.S_IFDIR:
		return nil, p.wrapError("open", unix.EISDIR)
	case exists && old.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, caisson.Errorf(caisson.Conflict, "%s is not a regular file", p.path)
	case !exists && err != unix.ENOENT:
		return nil, p.wrapError("stat", err)
	case mode == 0 && exists:
		mode = old.Mode & 0o7777
	case mode == 0:
		mode = 0o644
	}
	d := &pendingFile{dirEntry: p, mode: mode & 0o7777, temp: ".caisson-" + rand.Text()}
	fd, err := unix.Openat(p.fd(), d.temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, p.wrapError("open", err)
	}
	d.File = os.NewFile(uintptr(fd), p.path)
	if !exists {
		return d, nil
	}
	switch err := unix.Fchown(fd, int(old.Uid), int(old.Gid)); err {
	case nil:
	case unix.EPERM:
		// Without permission for chown, the user of this process becomes the owner, as with editors. Set-id bits of the old file
		// are then removed, because they were set for the old owner.
		if d.mode == old.Mode&0o7777 {
			d.mode &^= unix.S_ISUID | unix.S_ISGID
		}
	default:
		removePending(d)
		return nil, p.wrapError("chown", err)
	}
	return d, nil
}

// discard closes and removes the temporary file, and closes its directory.
func (d *pendingFile) discard() {
	removePending(d)
	d.dirEntry.close()
}

// removePending closes and removes the temporary file.
func removePending(d *pendingFile) {
	d.File.Close()
	unix.Unlinkat(d.fd(), d.temp, 0)
}

// commit sets the mode of the temporary file, syncs it and renames it to its final name. After an error, it removes the file.
func (d *pendingFile) commit() (*entry, error) {
	defer d.dirEntry.close()
	// The mode is set after the file was written, because chown and, without privileges, write clear set-id bits.
	err := d.dirEntry.wrapError("chmod", unix.Fchmod(int(d.Fd()), d.mode))
	if err == nil {
		err = d.Sync()
	}
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOTSUP) {
		err = nil // not a failure: the file system does not support sync
	}
	if err = errors.Join(err, d.File.Close()); err == nil {
		err = d.dirEntry.wrapError("rename", unix.Renameat(d.fd(), d.temp, d.fd(), d.dirEntry.name))
	}
	if err != nil {
		unix.Unlinkat(d.fd(), d.temp, 0)
		return nil, err
	}
	return d.stat()
}

// move renames the file or directory at the path from to the path to. Returns EEXIST or ENOTEMPTY if to exists.
func (s *filesystem) move(from, to string) error {
	src, err := s.locate(from)
	if err != nil {
		return err
	}
	defer src.close()
	dst, err := s.locate(to)
	if err != nil {
		return err
	}
	defer dst.close()
	err = unix.Renameat2(src.fd(), src.name, dst.fd(), dst.name, unix.RENAME_NOREPLACE)
	if err == unix.EINVAL || err == unix.ENOSYS { // the file system does not support RENAME_NOREPLACE
		var st unix.Stat_t
		if unix.Fstatat(dst.fd(), dst.name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
			return dst.wrapError("rename", unix.EEXIST)
		}
		err = unix.Renameat(src.fd(), src.name, dst.fd(), dst.name)
	}
	switch err {
	case unix.EXDEV:
		return caisson.Errorf(caisson.Conflict, "%s and %s are on different file systems; copy and remove instead", from, to)
	case unix.EEXIST, unix.ENOTEMPTY:
		return dst.wrapError("rename", err)
	}
	return src.wrapError("rename", err)
}

// remove removes a file or an empty directory; if all is set, also a directory that is not empty.
func (s *filesystem) remove(name string, all bool) error {
	p, err := s.locate(name)
	if err != nil {
		return err
	}
	defer p.close()
	if p.name == "." {
		return caisson.Errorf(caisson.Denied, "the root directory cannot be removed")
	}
	err = unix.Unlinkat(p.fd(), p.name, 0)
	if err != unix.EISDIR && err != unix.EPERM {
		return p.wrapError("remove", err)
	}
	unlinkErr := err
	err = unix.Unlinkat(p.fd(), p.name, unix.AT_REMOVEDIR)
	switch {
	case err == unix.ENOTDIR:
		return p.wrapError("remove", unlinkErr)
	case !all || (err != unix.ENOTEMPTY && err != unix.EEXIST):
		return p.wrapError("remove", err)
	}
	root, err := os.OpenRoot(procPath(p.dir))
	if err != nil {
		return err
	}
	defer root.Close()
	return root.RemoveAll(p.name)
}

// list calls each for every entry of the directory at the path name.
func (s *filesystem) list(name string, each func(*entry) error) error {
	d, err := s.open(name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer d.Close()
	for {
		names, err := d.Readdirnames(maxBatch)
		for _, n := range names {
			e, err := dirEntry{dir: d, name: n, path: path.Join(name, n)}.stat()
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return err
			}
			e.Name = []byte(n)
			if err := each(e); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
