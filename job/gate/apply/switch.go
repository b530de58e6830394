package apply

import (
	"errors"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/job/gate"
	"github.com/caisson-dev/caisson/job/gate/fsat"
)

// ownerAll are the permissions that the owner of a directory needs to change its entries.
const ownerAll = 0o700

// A switcher changes the paths of a plan after all new files have been written to the staging directory.
type switcher struct{ *applier }

// all changes the paths of the plan. No file contents are written in this phase, and each change is one system call whose
// result is checked afterwards. It stops with a Conflict at the first path that is not in the expected state.
func (a switcher) all() error {
	for _, part := range []struct {
		name string
		up   bool                               // from the leaves to the root
		of   func(s gate.Step) bool             // selects the steps
		do   func(i int, p place) (bool, error) // returns false if the path is not in the expected state
	}{
		{"opened", false, needsOpening, a.makeWritable},
		{"taken", true, movedAway, a.moveAway},
		{"placed", false, func(s gate.Step) bool { return movedIn(s) || modeOnly(s) }, a.placeNew},
		{"closed", true, func(s gate.Step) bool { return s.After.Type == gate.NodeDir }, a.closeDir},
	} {
		err := a.each(part.up, part.of, func(i int) error {
			if err := a.ctx.Err(); err != nil {
				return err
			}
			ok, err := a.change(i, part.do)
			if err == nil && !ok {
				a.recordMoved(a.steps[i].Path)
				return a.moved.Conflict()
			}
			a.point("%s %d", part.name, i)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// each calls do for the steps that of selects, from the root down or, if up is set, from the leaves up.
func (a *applier) each(up bool, of func(gate.Step) bool, do func(i int) error) error {
	for n := range a.steps {
		i := n
		if up {
			i = len(a.steps) - 1 - n
		}
		if !of(a.steps[i]) {
			continue
		}
		if err := do(i); err != nil {
			return withPath(err, a.steps[i].Path)
		}
	}
	return nil
}

// change calls do with the place of step i. It returns false if a parent directory does not exist any more.
func (a *applier) change(i int, do func(i int, p place) (bool, error)) (bool, error) {
	p, err := a.at(a.steps[i])
	if err != nil {
		if vanishedParent(err) {
			err = nil
		}
		return false, err
	}
	defer p.close()
	a.point("at %d", i)
	return do(i, p)
}

// needsOpening reports whether the path is a directory that must be made writable temporarily, while it or its entries are
// changed.
func needsOpening(s gate.Step) bool {
	return s.Before.Type == gate.NodeDir && s.Before.Mode&ownerAll != ownerAll
}

// makeWritable gives the owner of a directory all permissions for it. It returns false if the path is not in the expected state.
func (a switcher) makeWritable(i int, p place) (bool, error) {
	s := a.steps[i]
	ok, _, err := p.matches(a.ctx, s.Before, false, nil)
	if err != nil || !ok {
		return false, err
	}
	return p.chmod(s.Before.Mode|ownerAll, gate.NodeDir)
}

// moveAway moves away an entry that is removed, or that changes from or to a directory.
func (a switcher) moveAway(i int, p place) (bool, error) {
	s := a.steps[i]
	if err := p.moveTo(a.oldEntry(i)); err != nil {
		return false, unlessVanished(err)
	}
	a.point("moved %d", i)
	// The entry that was moved is checked again, because it may have changed since the first check. If it differs, the rollback
	// moves it back.
	ok, _, err := a.oldEntry(i).matches(a.ctx, s.Before, true, nil)
	if err == nil && ok && s.Before.Type == gate.NodeDir {
		ok, err = a.oldEntry(i).empty()
	}
	return ok, err
}

// placeNew moves a new entry to its path, or exchanges it with the old entry, or sets the permissions of a file.
func (a switcher) placeNew(i int, p place) (bool, error) {
	s := a.steps[i]
	if swapped(s) {
		return a.exchange(i, p)
	}
	if movedIn(s) {
		err := a.newEntry(i).moveTo(p)
		return err == nil, unlessVanished(err)
	}
	ok, _, err := p.matches(a.ctx, s.Before, false, nil)
	if err != nil || !ok {
		return false, err
	}
	if ok, err = p.chmod(s.After.Mode, gate.NodeFile); err != nil || !ok {
		return false, err
	}
	ok, _, err = p.matches(a.ctx, s.After, false, nil)
	return ok, err
}

// exchange exchanges the new entry with the old one, and then checks the old one, because an editor may have saved the file
// just before the exchange.
func (a switcher) exchange(i int, p place) (bool, error) {
	s, q := a.steps[i], a.newEntry(i)
	ok, _, err := p.matches(a.ctx, s.Before, false, nil)
	if err != nil || !ok {
		return false, err
	}
	a.point("checked %d", i)
	if err := p.swapWith(q, a.oldEntry(i)); err != nil {
		return false, unlessVanished(err)
	}
	a.point("swapped %d", i)
	ok, _, err = q.matches(a.ctx, s.Before, false, nil)
	return ok, err
}

// closeDir sets the final permissions of a directory.
func (a switcher) closeDir(i int, p place) (bool, error) {
	return p.chmod(a.steps[i].After.Mode, gate.NodeDir)
}

// unlessVanished returns nil if err only means that a path is not in the expected state, otherwise err.
func unlessVanished(err error) error {
	if fsat.IsOneOf(err, unix.ENOENT, unix.ENOTDIR, unix.EEXIST) {
		return nil
	}
	return err
}

// empty reports whether the directory at p is empty.
func (p place) empty() (bool, error) {
	f, err := p.open(unix.O_DIRECTORY)
	if err != nil {
		return false, err
	}
	defer f.Close()
	names, _ := f.Readdirnames(1)
	return len(names) == 0, nil
}

// syncDirs syncs the parent directories of the plan's paths to disk.
func (a *applier) syncDirs() error {
	done := map[string]bool{}
	for _, s := range a.steps {
		dir := path.Dir(s.Path)
		if done[dir] {
			continue
		}
		done[dir] = true
		fd, err := openBeneath(int(a.host.Fd()), dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if vanishedParent(err) {
			continue // removed, by the plan or by another process
		}
		if errors.Is(err, unix.EACCES) { // a directory that its owner may not list
			err = os.NewSyscallError("syncfs", unix.Syncfs(int(a.host.Fd())))
		} else if err == nil {
			f := os.NewFile(uintptr(fd), dir)
			err = syncDir(f)
			f.Close()
		}
		if err != nil {
			return withPath(err, dir)
		}
	}
	return withPath(syncDir(a.stage), a.name)
}
