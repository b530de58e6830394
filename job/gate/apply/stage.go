package apply

import (
	"context"
	"errors"
	"io"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/gate"
	"github.com/caisson-dev/caisson/job/gate/fsat"
)

// The directories in saved for originals. The name of an original is its SHA-256. An undo restores the originals in objectsDir,
// and saves the entries that it replaces in undoneDir.
const (
	objectsDir = "objects" // contents that an apply has replaced
	undoneDir  = "undone"  // contents that an undo has replaced
	partObject = "part"    // temporary name of an original while it is written
)

// prepare checks that all paths are in the states that the plan expects, and saves copies of the originals. It changes nothing
// in the host's directory.
func (a *applier) prepare() (err error) {
	a.moved = gate.Moved{}
	objects, err := a.makeOriginals()
	if err != nil {
		return withPath(err, a.originals)
	}
	defer objects.Close()
	defer func() { err = errors.Join(err, withPath(a.disk.wait(), a.originals)) }()
	planned := make(map[string]*gate.Step, len(a.steps))
	keep := saver{a, objects, planned}
	for i := range a.steps {
		planned[a.steps[i].Path] = &a.steps[i]
	}
	for i, s := range a.steps {
		if err := a.ctx.Err(); err != nil {
			return err
		}
		if err := keep.prepare(s); err != nil {
			return withPath(err, s.Path)
		}
		a.point("saved %d", i)
	}
	if len(a.moved.Paths) > 0 {
		return a.moved.Conflict()
	}
	if err := a.disk.wait(); err != nil {
		return withPath(err, a.originals)
	}
	return withPath(errors.Join(syncDir(objects), syncDir(a.saved)), a.originals)
}

// makeOriginals creates the directory a.originals in saved, or empties it if it exists.
func (a *applier) makeOriginals() (*os.File, error) {
	dir := int(a.saved.Fd())
	if err := unix.Mkdirat(dir, a.originals, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, os.NewSyscallError("mkdir", err)
	}
	fd, err := openBeneath(dir, a.originals, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), a.originals)
	names, err := f.Readdirnames(-1)
	for _, name := range names {
		// The directory is left from an operation that was interrupted, so its files may be incomplete.
		err = errors.Join(err, os.NewSyscallError("unlink", unix.Unlinkat(fd, name, 0)))
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// A saver checks the current entries at the paths of a plan, and saves copies of their contents.
type saver struct {
	*applier
	objects *os.File              // the directory for originals, the copies of contents
	planned map[string]*gate.Step // the steps of the plan by path
}

// prepare checks that the path of s is in the state that s expects, and saves its content.
func (a saver) prepare(s gate.Step) error {
	if up := a.planned[path.Dir(s.Path)]; up != nil && s.Before.None() && up.Before.Type != gate.NodeDir {
		return nil // the plan creates the parent directory, whose path is checked in a step of its own
	}
	p, err := a.hostEntry(s)
	if vanishedParent(err) {
		a.recordMoved(s.Path)
		return nil
	}
	if err != nil {
		return err
	}
	defer p.close()
	ok, st, err := a.save(p, s.Before)
	if err != nil {
		return err
	}
	if ok && s.Before.Type == gate.NodeDir && s.After.Type != gate.NodeDir {
		ok, err = removesAllEntries(p, s, a.planned)
		if err != nil {
			return err
		}
	}
	if !ok {
		a.recordMoved(s.Path)
		return nil
	}
	if !s.Before.None() && int(st.Uid) != os.Geteuid() {
		return caisson.Errorf(caisson.Denied, "%s belongs to another user than the directory; nothing was applied", quotedPath(s.Path))
	}
	return nil
}

// save reports whether the entry at p is in the state n. If it is, save copies its content to the directory of originals.
func (a saver) save(p dirEntry, n gate.Node) (bool, unix.Stat_t, error) {
	dir := int(a.objects.Fd())
	kept := dirEntry{dir, n.Hash}
	if n.Type != gate.NodeFile && n.Type != gate.NodeLink {
		return p.matches(a.ctx, n, false, nil)
	}
	if _, err := kept.stat(); err == nil {
		return p.matches(a.ctx, n, false, nil)
	}
	fd, err := openBeneath(dir, partObject, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return false, unix.Stat_t{}, err
	}
	f := os.NewFile(uintptr(fd), partObject)
	ok, st, err := p.matches(a.ctx, n, false, f)
	if err != nil || !ok {
		f.Close()
		return false, st, errors.Join(err, os.NewSyscallError("unlink", unix.Unlinkat(dir, partObject, 0)))
	}
	a.disk.sync(f)
	return true, st, dirEntry{dir, partObject}.moveTo(kept)
}

// removesAllEntries reports whether the plan removes all entries of the directory at p, which is the path of s.
func removesAllEntries(p dirEntry, s gate.Step, planned map[string]*gate.Step) (bool, error) {
	f, err := p.open(unix.O_DIRECTORY)
	if vanishedParent(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	for {
		names, err := f.Readdirnames(1000)
		for _, name := range names {
			if c := planned[s.Path+"/"+name]; c == nil || !c.After.None() {
				return false, nil
			}
		}
		if errors.Is(err, io.EOF) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
	}
}

// makeStage creates and opens the staging directory.
func (a *applier) makeStage() error {
	root := int(a.host.Fd())
	if err := unix.Mkdirat(root, a.stageName, 0o700); err != nil {
		return os.NewSyscallError("mkdir", err)
	}
	a.point("stage made")
	fd, err := openBeneath(root, a.stageName, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	a.stage = os.NewFile(uintptr(fd), a.stageName)
	// New files must not inherit default access control lists of the host's directory.
	for _, acl := range []string{"system.posix_acl_default", "system.posix_acl_access"} {
		err := unix.Fremovexattr(fd, acl)
		if err != nil && !errors.Is(err, unix.ENODATA) && !errors.Is(err, unix.EOPNOTSUPP) {
			return os.NewSyscallError("removexattr", err)
		}
	}
	return nil
}

// modeOnly reports whether s changes only the permissions of a file.
func modeOnly(s gate.Step) bool {
	return s.Before.Type == gate.NodeFile && s.After.Type == gate.NodeFile && s.Before.Hash == s.After.Hash
}

// movedAway reports whether s moves the old entry at its path to the staging directory: it is removed, or changes from or to a
// directory. Other old entries are exchanged or keep their place.
func movedAway(s gate.Step) bool {
	return !s.Before.None() && (s.After.None() || (s.Before.Type == gate.NodeDir) != (s.After.Type == gate.NodeDir))
}

// movedIn reports whether s moves a new entry to its path. If an old entry exists there and movedAway is false, the two entries
// are exchanged; see swapped.
func movedIn(s gate.Step) bool {
	return !s.After.None() && !modeOnly(s) && (s.After.Type != gate.NodeDir || s.Before.Type != gate.NodeDir)
}

// swapped reports whether s exchanges the old entry at its path with the new one.
func swapped(s gate.Step) bool { return movedIn(s) && !s.Before.None() && !movedAway(s) }

// stageNewEntry creates the new entry of step i, if it has one, in the staging directory.
func (a *applier) stageNewEntry(i int) error {
	if s := a.steps[i]; movedIn(s) {
		return a.create(a.newEntry(i), s.After, a.read)
	}
	return nil
}

// create creates an entry with the state n at p, in the staging directory. read opens the content of a file by its SHA-256.
// Directories get their final permissions later, after their entries were created.
func (a *applier) create(p dirEntry, n gate.Node, read func(hash string) (io.ReadCloser, error)) error {
	switch n.Type {
	case gate.NodeDir:
		return os.NewSyscallError("mkdir", unix.Mkdirat(p.dir, p.name, 0o700))
	case gate.NodeLink:
		return os.NewSyscallError("symlink", unix.Symlinkat(string(n.Link), p.dir, p.name))
	}
	in, err := read(n.Hash)
	if err != nil {
		return caisson.Wrap(err, caisson.Internal, "what was reviewed is not there any more; look at the changes again")
	}
	defer in.Close()
	fd, err := openBeneath(p.dir, p.name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), p.name)
	a.point("made %s", p.name)
	sum, err := hashTo(a.ctx, f, in)
	if err == nil && sum != n.Hash {
		err = caisson.Errorf(caisson.Internal, "what was reviewed is not what was kept; nothing was applied, look at the changes again")
	}
	if err == nil {
		err = os.NewSyscallError("chmod", unix.Fchmod(fd, n.Mode))
	}
	if err != nil {
		f.Close()
		return err
	}
	a.disk.sync(f)
	return nil
}

// openOriginal opens an original that the current operation has saved, by its SHA-256.
func (a *applier) openOriginal(hash string) (io.ReadCloser, error) {
	return fsat.OpenObject(a.saved, a.originals, hash)
}

// savedNode returns n, with its Link set if n is a symlink without one. read opens the original that contains the target.
func savedNode(ctx context.Context, n gate.Node, read func(hash string) (io.ReadCloser, error)) (gate.Node, error) {
	if n.Type != gate.NodeLink || len(n.Link) > 0 {
		return n, nil
	}
	in, err := read(n.Hash)
	if err != nil {
		return n, err
	}
	defer in.Close()
	var text linkBuffer
	sum, err := hashTo(context.WithoutCancel(ctx), &text, in)
	if err == nil && sum != n.Hash {
		err = caisson.Errorf(caisson.Internal, "what was saved of a symlink is damaged")
	}
	n.Link = text
	return n, err
}

// linkBuffer is a writer that collects the target of a symlink, up to gate.MaxPlanPath bytes.
type linkBuffer []byte

// Write appends b to the target of a symlink. It returns an error if the target would be longer than gate.MaxPlanPath bytes.
func (l *linkBuffer) Write(b []byte) (int, error) {
	if len(*l)+len(b) > gate.MaxPlanPath {
		return 0, errors.New("too long for a symlink")
	}
	*l = append(*l, b...)
	return len(b), nil
}
