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

// The directories in saved for originals. An undo restores those in objectsDir, and saves the replaced entries in undoneDir.
const (
	objectsDir = "objects" // originals of an apply
	undoneDir  = "undone"  // originals of an undo
	partObject = "part"    // temporary name of an object while it is written
)

// prepare checks that all paths are in the state that the plan expects and saves the originals. It changes nothing in the
// host's directory.
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

// makeOriginals creates an empty directory for originals.
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
		// The directory is from an attempt that was interrupted, so its files may be incomplete.
		err = errors.Join(err, os.NewSyscallError("unlink", unix.Unlinkat(fd, name, 0)))
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// A saver checks the current entries and copies their contents.
type saver struct {
	*applier
	objects *os.File
	planned map[string]*gate.Step // by path
}

// prepare checks one path and saves its content.
func (a saver) prepare(s gate.Step) error {
	if up := a.planned[path.Dir(s.Path)]; up != nil && s.Before.None() && up.Before.Type != gate.NodeDir {
		return nil // the parent is checked in its own step and will be created by the plan
	}
	p, err := a.at(s)
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
		ok, err = onlyPlanned(p, s, a.planned)
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

// save reports whether the entry at p is n. If it is, a copy of its content is in objects when save returns.
func (a saver) save(p place, n gate.Node) (bool, unix.Stat_t, error) {
	dir := int(a.objects.Fd())
	kept := place{dir, n.Hash}
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
	return true, st, place{dir, partObject}.moveTo(kept)
}

// onlyPlanned reports whether the plan removes all entries of the directory at p.
func onlyPlanned(p place, s gate.Step, planned map[string]*gate.Step) (bool, error) {
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

// makeStage creates the staging directory.
func (a *applier) makeStage() error {
	root := int(a.host.Fd())
	if err := unix.Mkdirat(root, a.name, 0o700); err != nil {
		return os.NewSyscallError("mkdir", err)
	}
	a.point("stage made")
	fd, err := openBeneath(root, a.name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	a.stage = os.NewFile(uintptr(fd), a.name)
	// New files must not inherit default access control lists of the host's directory.
	for _, acl := range []string{"system.posix_acl_default", "system.posix_acl_access"} {
		err := unix.Fremovexattr(fd, acl)
		if err != nil && !errors.Is(err, unix.ENODATA) && !errors.Is(err, unix.EOPNOTSUPP) {
			return os.NewSyscallError("removexattr", err)
		}
	}
	return nil
}

// modeOnly reports whether a step changes only the permissions of a file.
func modeOnly(s gate.Step) bool {
	return s.Before.Type == gate.NodeFile && s.After.Type == gate.NodeFile && s.Before.Hash == s.After.Hash
}

// movedAway reports whether the old entry at the path is moved away, as opposed to exchanged.
func movedAway(s gate.Step) bool {
	return !s.Before.None() && (s.After.None() || (s.Before.Type == gate.NodeDir) != (s.After.Type == gate.NodeDir))
}

// movedIn reports whether a new entry is moved to the path. If an old entry exists and movedAway is false, the two entries are
// exchanged.
func movedIn(s gate.Step) bool {
	return !s.After.None() && !modeOnly(s) && (s.After.Type != gate.NodeDir || s.Before.Type != gate.NodeDir)
}

func swapped(s gate.Step) bool { return movedIn(s) && !s.Before.None() && !movedAway(s) }

// prepareFresh creates the new entry of step i in the staging directory.
func (a *applier) prepareFresh(i int) error {
	if s := a.steps[i]; movedIn(s) {
		return a.make(a.newEntry(i), s.After, a.read)
	}
	return nil
}

// make creates n at p, in the staging directory. Directories get their final permissions after their entries have been created.
func (a *applier) make(p place, n gate.Node, read func(hash string) (io.ReadCloser, error)) error {
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

// original opens an object that the current apply or undo has saved.
func (a *applier) original(hash string) (io.ReadCloser, error) {
	return fsat.OpenObject(a.saved, a.originals, hash)
}

// savedNode sets the target of n if it is a symlink. read opens the object with the target.
func savedNode(ctx context.Context, n gate.Node, read func(hash string) (io.ReadCloser, error)) (gate.Node, error) {
	if n.Type != gate.NodeLink || len(n.Link) > 0 {
		return n, nil
	}
	in, err := read(n.Hash)
	if err != nil {
		return n, err
	}
	defer in.Close()
	var text limited
	sum, err := hashTo(context.WithoutCancel(ctx), &text, in)
	if err == nil && sum != n.Hash {
		err = caisson.Errorf(caisson.Internal, "what was saved of a symlink is damaged")
	}
	n.Link = text
	return n, err
}

// limited collects the target of a symlink, up to gate.MaxPlanPath bytes.
type limited []byte

func (l *limited) Write(b []byte) (int, error) {
	if len(*l)+len(b) > gate.MaxPlanPath {
		return 0, errors.New("too long for a symlink")
	}
	*l = append(*l, b...)
	return len(b), nil
}
