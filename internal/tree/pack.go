package tree

import (
	"archive/tar"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/errno"
)

// Pack writes the file, directory or symlink at name in root to w, as the tree called as (empty means the last element of name).
//
// Symlinks are archived, not followed, including name itself. Special files and kernel file systems (proc, sysfs, …) at
// or below name are left out. Files may change concurrently: a file that shrinks is padded with zeros, and a file that
// is removed is left out. Pack returns NotFound if name does not exist, and Conflict if it is a special file.
func Pack(root *os.Root, name, as string, w io.Writer) error {
	return PackVisible(root, name, as, func(string) bool { return false }, w)
}

// PackVisible is like [Pack], but leaves out hidden entries. hides is called with each path below name, relative to it, whose
// parent directories are not hidden; the contents of a hidden directory are left out.
func PackVisible(root *os.Root, name, as string, hides func(path string) bool, w io.Writer) error {
	if as == "" {
		as = path.Base(name)
	}
	as, err := checkName(as)
	if err != nil {
		return err
	}
	info, err := root.Lstat(name)
	if err != nil {
		return errno.Wrap(err)
	}
	if !packable(info.Mode()) {
		return caisson.Errorf(caisson.Conflict, "%s is neither a file, a directory nor a symlink", name)
	}
	p := packer{root: root, top: len(as) + 1, hides: hides, tw: tar.NewWriter(w), buf: make([]byte, chunkSize)}
	if err := p.pack(path.Clean(name), as, 0, info); err != nil {
		return errno.Wrap(err)
	}
	return p.tw.Close()
}

// errLarger ends the measurement of a tree in [LargerThan] when the tree is larger than the limit.
var errLarger = errors.New("the tree is larger")

// LargerThan reports whether the archive that [PackVisible] would write is larger than most bytes. It does not read the contents
// of files, so a copy that is too large can be refused before any data is copied.
func LargerThan(root *os.Root, name string, hides func(path string) bool, most int64) (bool, error) {
	info, err := root.Lstat(name)
	if err != nil {
		return false, errno.Wrap(err)
	}
	p := packer{root: root, top: len("x") + 1, hides: hides, left: most}
	err = p.pack(path.Clean(name), "x", 0, info)
	if errors.Is(err, errLarger) {
		return true, nil
	}
	return false, errno.Wrap(err)
}

// packer is the state of one Pack, or of one LargerThan.
type packer struct {
	root  *os.Root               // the directory below which all names are
	top   int                    // length of the prefix that is removed from a path before it is passed to hides
	hides func(path string) bool // reports whether a path is hidden
	tw    *tar.Writer            // nil if the tree is only measured
	buf   []byte                 // buffer for copying contents
	left  int64                  // if the tree is only measured: the limit minus the bytes counted so far
}

// header writes the header of an entry, or counts the bytes that the entry has in the archive.
func (p *packer) header(h *tar.Header) error {
	if p.tw != nil {
		return p.tw.WriteHeader(h)
	}
	const block = 512
	if p.left -= block + (h.Size+block-1)/block*block; p.left < 0 {
		return errLarger
	}
	return nil
}

// packable reports whether a file with the mode m can be archived: a regular file, a directory or a symlink.
func packable(m fs.FileMode) bool { return m.IsRegular() || m.IsDir() || m.Type() == fs.ModeSymlink }

// pack writes the entry at name and everything below it. dev is the device number of the parent directory; 0 means unknown.
func (p *packer) pack(name, as string, dev uint64, info fs.FileInfo) error {
	var err error
	switch mode := info.Mode(); {
	case len(as) > maxPath:
		return caisson.Errorf(caisson.Invalid, "%.80s… is too deep to be copied", as)
	case mode.IsRegular() && p.tw == nil:
		err = p.header(&tar.Header{Size: info.Size()})
	case mode.IsRegular():
		err = p.file(name, as)
	case mode.IsDir():
		err = p.dir(name, as, dev)
	case mode.Type() == fs.ModeSymlink:
		var target string
		if target, err = p.root.Readlink(name); err == nil {
			err = p.header(&tar.Header{
				Typeflag: tar.TypeSymlink, Name: as, Linkname: target, Mode: permBits, ModTime: modTime(info.ModTime()),
			})
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil // The entry was removed after its directory was read.
	}
	return err
}

// dir writes the directory at name and everything below it.
func (p *packer) dir(name, as string, dev uint64) error {
	f, err := p.root.OpenFile(name, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	info, entries, err := readDir(f, dev)
	f.Close()
	if err != nil {
		return err
	}
	err = p.header(&tar.Header{
		Typeflag: tar.TypeDir, Name: as + "/", Mode: int64(info.Mode().Perm()), ModTime: modTime(info.ModTime()),
	})
	if err != nil {
		return err
	}
	here := device(info)
	for _, e := range entries {
		child := path.Join(name, e)
		if p.hides((as + "/" + e)[p.top:]) {
			continue
		}
		info, err := p.root.Lstat(child)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := p.pack(child, as+"/"+e, here, info); err != nil {
			return err
		}
	}
	return nil
}

// readDir returns the metadata of the directory f and the sorted names in it, or no names if f is the root of a kernel file
// system. dev is the device number of the parent directory.
func readDir(f *os.File, dev uint64) (fs.FileInfo, []string, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	if device(info) != dev && kernelFS(f) {
		return info, nil, nil
	}
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, nil, err
	}
	slices.Sort(names)
	return info, names, nil
}

// file writes the regular file at name.
func (p *packer) file(name, as string) error {
	// With O_NONBLOCK, opening a FIFO that has replaced the file does not wait for its other end.
	f, err := p.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return nil // The file was replaced by one of another type after its directory was read.
	}
	size := info.Size()
	err = p.tw.WriteHeader(&tar.Header{
		Typeflag: tar.TypeReg, Name: as, Size: size, Mode: int64(info.Mode().Perm()), ModTime: modTime(info.ModTime()),
	})
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{p.tw}, io.LimitReader(io.MultiReader(f, zeros{}), size), p.buf)
	return err
}

// zeros is an endless stream of zeros.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// device returns the device number of a file's file system, or 0 if it is not known.
func device(info fs.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(st.Dev)
	}
	return 0
}

// kernelFS reports whether f is on a file system of the kernel, such as proc or sysfs, whose files do not contain stored data.
func kernelFS(f *os.File) bool {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return false
	}
	switch int64(st.Type) {
	case unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC,
		unix.DEVPTS_SUPER_MAGIC, unix.SECURITYFS_MAGIC, unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC, unix.BPF_FS_MAGIC:
		return true
	}
	return false
}
