package fake

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// A tree is the file system of one sandbox: a host directory with a copy of the layers and of mounted directories. The paths of
// mounted files, and of directories mounted read-only, lead to the files of the host instead. The owners of files are stored in
// memory, so that a tree works in a process of any user of the host.
//
// Absolute symlinks are not followed. Writes that programs make directly to the host directory count against the disk limit
// only at the next write through the tree.
type tree struct {
	dir      string           // absolute path of the directory on the host
	root     *os.Root         // the directory dir
	mounts   []mount          // mounted files and directories mounted read-only, the longest target first
	overlays overlays         // the mounted directories, which are copied to the tree
	lower    map[string]entry // the files of the layers, by path, as copied
	limit    int64            // maximum size of files that differ from lower, in bytes; 0 means no limit

	mu       sync.Mutex
	owners   map[inode]owner // files that are not in the map are owned by 0:0; guarded by mu
	headroom int64           // bytes that may be written before the used space is counted again; guarded by mu
}

// A mount is a host directory or file that is accessed on the host, even if the tree has a copy of it.
type mount struct {
	target   string   // clean path in the sandbox, without leading slash
	root     *os.Root // the mounted directory, or the parent directory of the mounted file
	file     string   // name in root if a single file is mounted, else ""
	writable bool     // the sandbox may write to the directory or file
}

// An inode identifies a file for as long as it exists. The birth time distinguishes files that reuse an inode number.
type inode struct {
	dev, ino uint64
	sec      int64  // birth time in seconds since 1970
	nsec     uint32 // nanoseconds of the birth time
}

// An owner is a user and a group in the sandbox.
type owner struct{ uid, gid int }

// An entry is the recorded metadata of a file, which is compared to detect changes.
type entry struct {
	inode inode
	mode  fs.FileMode
	size  int64 // size in bytes; 0 for directories
	mtime int64 // modification time in nanoseconds since 1970; 0 for directories
	owner owner
}

// procName is the directory of the simulated /proc. It is not archived and does not count against the disk limit.
const procName = "proc"

// newTree creates dir and fills it according to spec. On error, all descriptors are closed.
func newTree(dir string, spec *caisson.RuntimeSpec) (*tree, error) {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	t := &tree{dir: dir, root: root, limit: int64(spec.Resources.Disk), owners: map[inode]owner{}}
	if err := t.fill(spec); err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

// fill copies the layers of spec to t and adds the mounts.
func (t *tree) fill(spec *caisson.RuntimeSpec) (err error) {
	for _, layer := range slices.Backward(spec.Rootfs.Layers) {
		if err := t.copyLayer(layer, ".", "user.overlay.opaque", guestOwner(caisson.LayerUIDBase)); err != nil {
			return err
		}
	}
	if t.lower, err = t.entries(); err != nil {
		return err
	}
	if err := t.makeProc(spec.Hostname); err != nil {
		return err
	}
	for _, b := range spec.Rootfs.Binds {
		if err := t.mount(b.Source, b.Target, false); err != nil {
			return err
		}
	}
	for _, m := range spec.Mounts {
		source := fdPath(m.Source)
		info, err := os.Stat(source)
		if err != nil {
			return err
		}
		if m.Overlay != nil || info.IsDir() {
			if err := t.overlays.mount(t, &m, spec.UIDBase); err != nil {
				return err
			}
		}
		if m.Overlay == nil && (!info.IsDir() || !m.Writable) {
			if err := t.mount(source, m.Target, m.Writable); err != nil {
				return err
			}
		}
	}
	slices.SortStableFunc(t.mounts, func(a, b mount) int { return len(b.target) - len(a.target) })
	return nil
}

// makeProc creates the files of /proc.
func (t *tree) makeProc(hostname string) error {
	dir := path.Join(procName, "sys/kernel")
	if err := t.root.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return t.root.WriteFile(path.Join(dir, "hostname"), []byte(hostname+"\n"), 0o444)
}

// close closes the descriptors; it does not remove files.
func (t *tree) close() {
	for _, o := range t.overlays {
		o.close()
	}
	t.root.Close()
	for _, m := range t.mounts {
		m.root.Close()
	}
}

// mount adds a mount of a host directory or file.
func (t *tree) mount(source, target string, writable bool) error {
	m := mount{target: relativePath(target), writable: writable}
	info, err := os.Stat(source)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		source, m.file = path.Dir(source), path.Base(source)
	}
	if m.root, err = os.OpenRoot(source); err != nil {
		return err
	}
	t.mounts = append(t.mounts, m)
	return nil
}

// relativePath converts the absolute guest path name to a clean path relative to the root directory, which itself is ".".
func relativePath(name string) string {
	if p := strings.TrimPrefix(path.Clean("/"+name), "/"); p != "" {
		return p
	}
	return "."
}

// resolve returns the root that contains the file at the absolute guest path name: the root of a mount, or that of the tree. rel
// is the path of the file in the root, and writable is whether the file may be written.
func (t *tree) resolve(name string) (root *os.Root, rel string, writable bool) {
	p := relativePath(name)
	for _, m := range t.mounts {
		switch rest, below := strings.CutPrefix(p, m.target+"/"); {
		case p == m.target && m.file != "":
			return m.root, m.file, m.writable
		case p == m.target:
			return m.root, ".", m.writable
		case below:
			return m.root, rest, m.writable
		}
	}
	return t.root, p, true
}

// stat returns the status of the file at the absolute guest path name, and follows relative symlinks.
func (t *tree) stat(name string) (fs.FileInfo, error) {
	root, rel, _ := t.resolve(name)
	return root.Stat(rel)
}

// readFile returns the content of the file at the absolute guest path name.
func (t *tree) readFile(name string) ([]byte, error) {
	root, rel, _ := t.resolve(name)
	return root.ReadFile(rel)
}

// writeFile appends b to a file or replaces its content. If the file does not exist, it is created with the owner o. Like
// write(2), it writes as much as the disk limit allows, and then returns ENOSPC.
func (t *tree) writeFile(name string, b []byte, appending bool, perm fs.FileMode, o owner) (n int, err error) {
	root, rel, writable := t.resolve(name)
	if !writable {
		return 0, syscall.EROFS
	}
	_, err = root.Lstat(rel)
	made := errors.Is(err, fs.ErrNotExist)
	flags := os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	if appending {
		flags = os.O_WRONLY | os.O_CREATE | os.O_APPEND
	}
	f, err := root.OpenFile(rel, flags, perm)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if made {
		t.setOwner(root, rel, o)
	}
	if root != t.root {
		return f.Write(b)
	}
	allowed, err := t.reserveDisk(int64(len(b)))
	if err != nil {
		return 0, err
	}
	if n, err = f.Write(b[:allowed]); err == nil && n < len(b) {
		err = syscall.ENOSPC
	}
	return n, err
}

// reserveDisk reserves up to n bytes of the disk limit and returns how many it has reserved.
func (t *tree) reserveDisk(n int64) (int64, error) {
	if t.limit == 0 {
		return n, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if n > t.headroom {
		used, err := t.usedBytesLocked()
		if err != nil {
			return 0, err
		}
		t.headroom = max(0, t.limit-used)
	}
	n = min(n, t.headroom)
	t.headroom -= n
	return n, nil
}

// usedBytesLocked returns the size in bytes of all files that differ from the layers. The caller must hold t.mu.
func (t *tree) usedBytesLocked() (used int64, err error) {
	now, err := t.entriesLocked()
	for name, e := range now {
		if e.mode.IsRegular() && t.lower[name] != e {
			used += e.size
		}
	}
	return used, err
}

// entries returns the files in the tree by relative path, without the root directory, /proc and mounted directories.
func (t *tree) entries() (map[string]entry, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.entriesLocked()
}

// entriesLocked returns the files in the tree by relative path, without the root directory, /proc and mounted directories. The
// caller must hold t.mu.
func (t *tree) entriesLocked() (map[string]entry, error) {
	return t.entriesIn(t.root, func(name string) bool {
		return name == procName || t.overlays.contains(name)
	})
}

// entriesIn returns the files in root by relative path, except for directories for which skip returns true. The caller must
// hold t.mu.
func (t *tree) entriesIn(root *os.Root, skip func(name string) bool) (map[string]entry, error) {
	out := map[string]entry{}
	err := fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // the file was removed during the walk
		}
		if err != nil || name == "." {
			return err
		}
		if d.IsDir() && skip(name) {
			return fs.SkipDir
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		id := inodeOf(root, name)
		e := entry{inode: id, mode: info.Mode(), owner: t.owners[id]}
		if !d.IsDir() { // a change of the entries of a directory must not count as a change of the directory
			e.size, e.mtime = info.Size(), info.ModTime().UnixNano()
		}
		out[name] = e
		return nil
	})
	return out, err
}

// sortedPaths returns the paths in entries, sorted, so that parents precede their children.
func sortedPaths(entries map[string]entry) []string { return slices.Sorted(maps.Keys(entries)) }

// lstat returns the status of a file without following symlinks.
func (t *tree) lstat(name string) (File, error) {
	root, rel, _ := t.resolve(name)
	info, err := root.Lstat(rel)
	if err != nil {
		return File{}, err
	}
	f := File{Mode: info.Mode(), Size: info.Size()}
	if f.Mode&fs.ModeSymlink != 0 {
		if f.Target, err = root.Readlink(rel); err != nil {
			return File{}, err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	o := t.owners[inodeOf(root, rel)]
	f.UID, f.GID = o.uid, o.gid
	return f, nil
}

// setOwner records the owner of a file.
func (t *tree) setOwner(root *os.Root, rel string, o owner) {
	id := inodeOf(root, rel)
	t.mu.Lock()
	defer t.mu.Unlock()
	if o == (owner{}) {
		delete(t.owners, id)
		return
	}
	t.owners[id] = o
}

// inodeOf returns the inode of a file without following symlinks, or the zero value if the file does not exist.
func inodeOf(root *os.Root, rel string) inode {
	dir, err := root.Open(path.Dir(rel))
	if err != nil {
		return inode{}
	}
	defer dir.Close()
	var st unix.Statx_t
	flags := unix.AT_SYMLINK_NOFOLLOW | unix.AT_STATX_DONT_SYNC
	if err := unix.Statx(int(dir.Fd()), path.Base(rel), flags, unix.STATX_INO|unix.STATX_BTIME, &st); err != nil {
		return inode{}
	}
	return inode{
		dev: unix.Mkdev(st.Dev_major, st.Dev_minor), ino: st.Ino, sec: st.Btime.Sec, nsec: st.Btime.Nsec,
	}
}
