package tree

import (
	"archive/tar"
	"cmp"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/errno"
)

// ownerBits are the permissions that the owner needs to fill a directory.
const ownerBits = 0o700

// Options limit Unpack. The zero Options are safe for untrusted archives, except that size and number of entries are not limited.
type Options struct {
	// Name, a single element, replaces the first element of every name in the archive, which must then contain only one tree.
	Name string
	// MaxBytes and MaxEntries limit the size of the contents, in bytes, and the number of entries. Unpack returns Exhausted if
	// a limit is exceeded. 0 means no limit.
	MaxBytes   int64
	MaxEntries int
	// KeepLinks creates all symlinks. If it is false, symlinks that lead out of their tree are left out.
	KeepLinks bool
	// FollowLinks allows existing symlinks to directories in place of directories of the archive, as long as they lead to
	// directories below the root. If it is false, such a symlink is a Conflict.
	FollowLinks bool
	// Skipped, if not nil, is called for every symlink that was left out.
	Skipped func(name, target string)
}

// Unpack creates the contents of the archive r below root. Existing files are replaced, existing directories are kept.
// Regardless of the contents of r, nothing outside of root is changed and, without FollowLinks, nothing that a symlink
// in root leads to. Set-id bits of modes are removed, modes are subject to the umask, and the caller becomes the owner.
// After an error, unpacked files remain.
//
// Unpack accepts any tar archive of files, directories and symlinks with clean relative names; a leading "./" is
// allowed. It returns Invalid for others.
func Unpack(r io.Reader, root *os.Root, o Options) error {
	if o.Name != "" && (!fs.ValidPath(o.Name) || path.Base(o.Name) != o.Name || o.Name == ".") {
		return caisson.Invalidf("name", "%.80q is not the name of a file", o.Name)
	}
	u := unpacker{Options: o, at: &dirWalk{root: root, followLinks: o.FollowLinks}, buf: make([]byte, chunkSize), modes: map[string]fs.FileMode{}}
	defer u.at.close()
	return errno.Wrap(u.unpack(r))
}

// unpack creates all entries of the archive r.
func (u *unpacker) unpack(r io.Reader) error {
	in := tar.NewReader(r)
	for {
		h, err := nextEntry(in)
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		if err := u.entry(h, in); err != nil {
			return err
		}
	}
	if err := readPadding(r); err != nil {
		return err
	}
	return u.setModes()
}

// unpacker is the state of one Unpack.
type unpacker struct {
	Options
	at      *dirWalk // walks to the directory of the current entry
	top     string   // first element of the first entry's name; used only if Options.Name is set
	entries int      // number of entries so far
	bytes   int64    // total size of the contents of the entries so far
	buf     []byte   // buffer for copying contents
	// modes contains the final modes of the directories that their owner may not write to, by name. They are set after the
	// contents are unpacked.
	modes map[string]fs.FileMode
}

// setModes sets the final modes of directories that had more permissions while they were filled. A directory is handled after
// the directories in it.
func (u *unpacker) setModes() error {
	for _, dir := range slices.SortedFunc(maps.Keys(u.modes), func(a, b string) int { return byElement(b, a) }) {
		err := u.at.changeTo(path.Dir(dir), nil)
		if err == nil {
			err = u.setMode(u.at.dir(), path.Base(dir), u.modes[dir])
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// byElement compares paths so that a directory is directly followed by its contents.
func byElement(a, b string) int {
	for i := range min(len(a), len(b)) {
		switch {
		case a[i] == b[i]:
		case a[i] == '/':
			return -1
		case b[i] == '/':
			return 1
		default:
			return cmp.Compare(a[i], b[i])
		}
	}
	return cmp.Compare(len(a), len(b))
}

// setMode removes the permissions of the owner that mode does not have from the directory name, an entry of in.
func (u *unpacker) setMode(in *os.Root, name string, mode fs.FileMode) error {
	info, err := in.Lstat(name)
	if err != nil {
		return err
	}
	return in.Chmod(name, info.Mode().Perm()&^(ownerBits&^mode))
}

// entry creates one entry of the archive.
func (u *unpacker) entry(h *tar.Header, content io.Reader) error {
	h, err := sanitize(h)
	if err != nil {
		return err
	}
	name := strings.TrimSuffix(h.Name, "/")
	if name, err = u.rename(name); err != nil {
		return err
	}
	u.entries++
	// The sum cannot overflow: the last sum was at most MaxBytes or, without a limit, the number of bytes that were read.
	u.bytes += h.Size
	if u.MaxEntries > 0 && u.entries > u.MaxEntries {
		return caisson.Errorf(caisson.Exhausted, "the archive has more than %d entries", u.MaxEntries)
	}
	if u.MaxBytes > 0 && (h.Size > u.MaxBytes || u.bytes > u.MaxBytes) {
		return caisson.Errorf(caisson.Exhausted, "the archive has more than %s of files", caisson.Size(u.MaxBytes))
	}
	if err := u.at.changeTo(path.Dir(name), u.mkdirImplicit); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return u.dir(name, fs.FileMode(h.Mode))
	case tar.TypeSymlink:
		return u.symlink(name, h.Linkname)
	default:
		return u.file(name, h, content)
	}
}

// rename returns the name of an entry with its first element replaced by Options.Name.
func (u *unpacker) rename(name string) (string, error) {
	if u.Name == "" {
		return name, nil
	}
	top, rest, _ := strings.Cut(name, "/")
	if u.top == "" {
		u.top = top
	}
	if top != u.top {
		return "", caisson.Errorf(caisson.Invalid, "the archive has %.80q and %.80q at the top level; one tree was expected", u.top, top)
	}
	return checkName(path.Join(u.Name, rest))
}

// mkdirImplicit creates a directory that has no entry in the archive, or whose entry comes after its contents.
func (u *unpacker) mkdirImplicit(name string) error { return u.dir(name, 0o755) }

// dir creates the directory name in the current directory, or checks that it exists.
func (u *unpacker) dir(name string, mode fs.FileMode) error {
	err := u.at.dir().Mkdir(path.Base(name), mode|ownerBits)
	switch {
	case errors.Is(err, fs.ErrExist):
		return u.at.check(name)
	case err == nil && mode&ownerBits != ownerBits:
		u.modes[name] = mode
	}
	return err
}

// clear removes the entry at name in the current directory. It returns Conflict if it is a directory.
func (u *unpacker) clear(name string) error {
	info, err := u.at.dir().Lstat(path.Base(name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.IsDir():
		return caisson.Errorf(caisson.Conflict, "%s exists and is a directory", name)
	}
	return u.at.dir().Remove(path.Base(name))
}

// symlink creates the symlink name, unless it leads out of its tree and Options.KeepLinks is false.
func (u *unpacker) symlink(name, target string) error {
	if !u.KeepLinks && !staysInside(name, target) {
		if u.Skipped != nil {
			u.Skipped(name, target)
		}
		return nil
	}
	if err := u.clear(name); err != nil {
		return err
	}
	return u.at.dir().Symlink(target, path.Base(name))
}

// staysInside reports whether a symlink at name with this target leads to a path in its own tree, whose root is the first
// element of name.
//
// ".." is allowed only at the beginning of target. There the directories that it leads out of are real ones, so the text of
// target determines where the symlink leads. After a name in target, which may be another symlink, the text would not determine
// it.
func staysInside(name, target string) bool {
	depth := strings.Count(name, "/") // number of directories between the symlink and the root of the archive
	down := false
	for part := range strings.SplitSeq(target, "/") {
		switch part {
		case "":
			if !down {
				return false // The target is an absolute path.
			}
		case ".":
		case "..":
			if down {
				return false
			}
			depth--
		default:
			down = true
		}
		if depth < 1 {
			return false
		}
	}
	return true
}

// file creates the file name with the content, or replaces the one that exists.
func (u *unpacker) file(name string, h *tar.Header, content io.Reader) error {
	if err := u.clear(name); err != nil {
		return err
	}
	f, err := u.at.dir().OpenFile(path.Base(name), os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, fs.FileMode(h.Mode))
	if err != nil {
		return err
	}
	if _, err := io.CopyBuffer(struct{ io.Writer }{f}, struct{ io.Reader }{content}, u.buf); err != nil {
		f.Close()
		return malformed(err)
	}
	if err := f.Close(); err != nil {
		return err
	}
	return u.at.dir().Chtimes(path.Base(name), h.ModTime, h.ModTime)
}
