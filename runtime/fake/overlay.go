package fake

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// An overlay is a mounted directory: a directory of the tree with a copy of the merged layers. Changes to the copy are written to
// the upper layer in the form that the kernel's overlayfs uses: before each output of a process, at the end of a process, before
// the sandbox is frozen or captured, when it ends, and every flushInterval. A writable host directory is an upper layer without a
// lower one; a read-only one is a lower layer without an upper one.
type overlay struct {
	tree   *tree           // the tree in which the directory is mounted
	target string          // mount point: clean path in the sandbox, without leading slash
	upper  *os.Root        // the upper layer; nil if the directory is read-only
	work   *os.Root        // the overlay's work directory, which stays empty; nil without a lower layer
	owner  int             // host uid and gid of the guest's root, or -1 if this process may not change the owners of files
	lower  map[string]bool // paths of the files in the lower layers, relative to target

	mu      sync.Mutex
	written map[string]entry // files as the last flush has left them, by path relative to target; guarded by mu
}

// overlays are the mounted directories of a tree.
type overlays []*overlay

// mount adds the mounted directory that m describes to l, and copies its layers to t.
func (l *overlays) mount(t *tree, m *caisson.RuntimeMount, uidBase uint32) (err error) {
	o := &overlay{tree: t, target: relativePath(m.Target), owner: -1, lower: map[string]bool{}}
	if os.Geteuid() == 0 {
		o.owner = int(uidBase)
	}
	*l = append(*l, o) // before the first error, so that it is closed in any case
	if err := t.root.MkdirAll(o.target, 0o755); err != nil {
		return err
	}
	if m.Overlay == nil {
		if err := o.copyLayer(m.Source); err != nil || !m.Writable {
			return err
		}
		if o.upper, err = openRoot(m.Source); err != nil {
			return err
		}
		o.written, err = o.entries()
		return err
	}
	if o.upper, err = openRoot(m.Overlay.Upper); err != nil {
		return err
	}
	if o.work, err = openRoot(m.Overlay.Work); err != nil {
		return err
	}
	if err := o.copyLower(m); err != nil {
		return err
	}
	if m.Overlay.Mask != nil {
		if err := o.copyLayer(m.Overlay.Mask); err != nil {
			return err
		}
	}
	now, err := o.entries()
	if err != nil {
		return err
	}
	for name := range now {
		o.lower[name] = true
	}
	if err := o.copyLayer(m.Overlay.Upper); err != nil {
		return err
	}
	o.written, err = o.entries()
	return err
}

// openRoot opens the directory that dir refers to as a root.
func openRoot(dir *os.File) (*os.Root, error) { return os.OpenRoot(fdPath(dir)) }

// fdPath returns a path of the file that f refers to. The path is valid in this process until f is closed.
func fdPath(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) }

// copyLower copies the host directory to the mounted directory. Files of the host directory's owner get the guest's root as
// owner, all others the user nobody.
func (o *overlay) copyLower(m *caisson.RuntimeMount) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(m.Source.Fd()), &st); err != nil {
		return err
	}
	if st.Uid == 0 && os.Geteuid() == 0 && !m.Overlay.Root {
		return caisson.Invalidf("workspace", "the directory for %s belongs to root, so only root can have it as a workspace; use a copy that is your own", m.Target)
	}
	return o.copy(m.Source, func(file *syscall.Stat_t) owner {
		if file.Uid == st.Uid {
			return owner{}
		}
		return owner{nobody, nobody}
	})
}

// nobody is the uid and gid that a guest sees for files with unmapped owners.
const nobody = 65534

// copyLayer copies a layer in the format of the kernel's overlayfs over the mounted directory. Owners in the range of host ids
// that begins with o.owner become the corresponding ids in the sandbox, all others 0.
func (o *overlay) copyLayer(layer *os.File) error { return o.copy(layer, guestOwner(o.owner)) }

// copy copies a layer over the mounted directory. ownerOf returns the owner of a file in the sandbox.
func (o *overlay) copy(layer *os.File, ownerOf func(*syscall.Stat_t) owner) error {
	return o.tree.copyLayer(fdPath(layer), o.target, "trusted.overlay.opaque", ownerOf)
}

// entries returns the files in the mounted directory, by their path relative to it.
func (o *overlay) entries() (map[string]entry, error) {
	o.tree.mu.Lock()
	defer o.tree.mu.Unlock()
	sub, err := o.tree.root.OpenRoot(o.target)
	if err != nil {
		return nil, err
	}
	defer sub.Close()
	return o.tree.entriesIn(sub, func(string) bool { return false })
}

// flush writes the changes since the last flush to the upper layer. Changes made during the call are left to the next flush.
func (o *overlay) flush() error {
	if o.upper == nil {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	now, err := o.entries()
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range slices.Backward(sortedPaths(o.written)) {
		if _, there := now[name]; !there {
			errs = append(errs, o.upper.RemoveAll(name))
			delete(o.written, name)
		}
	}
	for _, name := range sortedPaths(now) {
		if e := now[name]; o.written[name] != e {
			if err := o.copyUp(name, e); !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
				o.written[name] = e
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(o.lower)) {
		// A whiteout is written only if the parent directory still exists.
		_, there := now[name]
		if e, ok := now[path.Dir(name)]; !there && (path.Dir(name) == "." || ok && e.mode.IsDir()) {
			errs = append(errs, o.writeWhiteout(name))
		}
	}
	return errors.Join(errs...)
}

// writeWhiteout writes a whiteout for name, a character device 0:0, to the upper layer.
func (o *overlay) writeWhiteout(name string) error {
	if _, err := o.upper.Lstat(name); err == nil {
		return nil // name is a whiteout already: flush has deleted all other entries of removed files from the upper layer.
	}
	if err := o.copyUpParents(name); err != nil {
		return err
	}
	dir, err := o.upper.Open(path.Dir(name))
	if err != nil {
		return err
	}
	defer dir.Close()
	return unix.Mknodat(int(dir.Fd()), path.Base(name), unix.S_IFCHR, 0)
}

// copyUp copies the current state of name to the upper layer.
func (o *overlay) copyUp(name string, e entry) error {
	if err := o.copyUpParents(name); err != nil {
		return err
	}
	from := path.Join(o.target, name)
	info, err := o.tree.root.Lstat(from)
	if err != nil {
		return err
	}
	old, err := o.upper.Lstat(name)
	if err == nil && (!info.IsDir() || !old.IsDir()) {
		if err := o.upper.RemoveAll(name); err != nil {
			return err
		}
	}
	if copied, err := copyEntry(o.tree.root, from, o.upper, name, info.Mode()); err != nil || !copied {
		return err
	}
	if o.owner >= 0 {
		if err := o.upper.Lchown(name, o.owner+e.owner.uid, o.owner+e.owner.gid); err != nil {
			return err
		}
	}
	return setModeAndTime(o.upper, name, info.Mode(), info.ModTime())
}

// copyUpParents copies the missing parent directories of name to the upper layer.
func (o *overlay) copyUpParents(name string) error {
	parent := path.Dir(name)
	if parent == "." {
		return nil
	}
	if info, err := o.upper.Lstat(parent); err == nil && info.IsDir() {
		return nil
	}
	o.tree.mu.Lock()
	e := entry{owner: o.tree.owners[inodeOf(o.tree.root, path.Join(o.target, parent))]}
	o.tree.mu.Unlock()
	return o.copyUp(parent, e)
}

// close flushes the remaining changes and closes the layers.
func (o *overlay) close() {
	if o.written != nil {
		_ = o.flush() // tests detect an error by changes that are missing in the upper layer
	}
	for _, r := range []*os.Root{o.upper, o.work} {
		if r != nil {
			r.Close()
		}
	}
}

// contains reports whether name is the mount point of a mounted directory, or below one.
func (l overlays) contains(name string) bool {
	return slices.ContainsFunc(l, func(o *overlay) bool { return name == o.target || strings.HasPrefix(name, o.target+"/") })
}

// flush writes pending changes to all upper layers.
func (l overlays) flush() error {
	var errs []error
	for _, o := range l {
		errs = append(errs, o.flush())
	}
	return errors.Join(errs...)
}

// flushInterval is the interval between two flushes while a sandbox is running.
const flushInterval = 20 * time.Millisecond

// flushPeriodically starts a goroutine that flushes the mounted directories at each flushInterval until the sandbox stops.
func (s *sandbox) flushPeriodically() {
	if len(s.tree.overlays) == 0 {
		return
	}
	s.goroutines.Go(func() {
		tick := time.NewTicker(flushInterval)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				_ = s.tree.overlays.flush() // an error is ignored, because the next tick retries
			case <-s.done:
				return
			}
		}
	})
}
