package apply

import (
	"errors"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/job/gate"
)

// A restorer rolls back the changes that a pathChanger has made to the paths of a plan. Its methods for one step return false
// if another process has changed the path so that the step could not be rolled back.
type restorer struct{ *applier }

// restoreAll rolls back the changes of all steps. It decides by the current state of each path, and not by recorded progress.
// Entries that other processes have created at a path are left there.
func (a restorer) restoreAll() error {
	isDir := func(s gate.Step) bool { return s.Before.Type == gate.NodeDir || s.After.Type == gate.NodeDir }
	for _, part := range []struct {
		name string
		up   bool
		of   func(gate.Step) bool
		do   func(i int, p dirEntry) (bool, error)
		// reportsChange means that a path is recorded as left in place if do returns false or a parent directory does not exist.
		reportsChange bool
	}{
		{"reopened", false, isDir, a.makeWritableAgain, false},
		{"unplaced", true, func(s gate.Step) bool { return movedIn(s) || modeOnly(s) }, a.revertPlaceNew, true},
		{"untaken", false, movedAway, a.revertMoveAway, true},
		{"reclosed", true, isDir, a.restoreMode, false},
	} {
		err := a.eachStep(part.up, part.of, func(i int) error {
			ok, err := a.doAtPath(i, part.do)
			if err == nil && !ok && part.reportsChange {
				a.recordNotRestored(i)
			}
			a.point("%s %d", part.name, i)
			return err
		})
		if err != nil {
			return err
		}
	}
	return a.syncDirs()
}

// recordNotRestored records the path of step i as left in place because it could not be rolled back. It does nothing if the
// path did not exist before the step and does not exist now.
func (a restorer) recordNotRestored(i int) {
	s := a.steps[i]
	if p, err := a.hostEntry(s); err == nil {
		defer p.close()
		if n, _, err := p.node(); err == nil && n.None() && s.Before.None() {
			return
		}
	} else if s.Before.None() {
		return
	}
	if !slices.Contains(a.leftInPlace, s.Path) {
		a.recordLeftInPlace(s.Path)
	}
}

// makeWritableAgain makes the directory at the path of step i writable for its owner, if its permissions are those before the
// step or the planned ones. It returns false if the directory cannot be opened: it was removed, replaced or is unreadable.
func (a restorer) makeWritableAgain(i int, p dirEntry) (bool, error) {
	n, _, err := p.node()
	if err != nil || n.Type != gate.NodeDir || n.Mode&ownerAll == ownerAll {
		return true, err
	}
	if s := a.steps[i]; s.Before.Type == gate.NodeDir && n.Mode == s.Before.Mode || s.After.Type == gate.NodeDir && n.Mode == s.After.Mode {
		ok, err := p.chmod(n.Mode|ownerAll, gate.NodeDir)
		if errors.Is(err, unix.EACCES) {
			err = nil // the owner cannot read the directory, so the step has neither changed nor created it
		}
		return ok, err
	}
	return true, nil
}

// restoreMode restores the permissions of the directory at the path of step i, if the apply or undo, or its rollback, has set
// the current ones. It returns false if another process has removed or replaced the directory meanwhile.
func (a restorer) restoreMode(i int, p dirEntry) (bool, error) {
	n, _, err := p.node()
	if err != nil || n.Type != gate.NodeDir {
		return true, err
	}
	s := a.steps[i]
	want, ours := s.Before.Mode, []uint32{s.Before.Mode | ownerAll}
	if s.Before.Type != gate.NodeDir {
		want = s.After.Mode // a new directory is still there because it contains files of another process
	}
	if s.Before.Type != gate.NodeDir || a.stageRecreated {
		ours = append(ours, ownerAll)
	}
	if s.After.Type == gate.NodeDir {
		ours = append(ours, s.After.Mode, s.After.Mode|ownerAll)
	}
	if slices.Contains(ours, n.Mode) {
		return p.chmod(want, gate.NodeDir)
	}
	return true, nil
}

// revertPlaceNew reverts what pathChanger.placeNew has done for step i: it moves the new entry back to the staging directory,
// exchanges it with the old entry, or restores the file's permissions. It returns false if another process has changed the path.
func (a restorer) revertPlaceNew(i int, p dirEntry) (bool, error) {
	s := a.steps[i]
	// Permissions of directories are ignored, because makeWritableAgain has changed them temporarily.
	was, _, err := p.matches(a.ctx, s.Before, true, nil)
	if err != nil {
		return false, err
	}
	now, _, err := p.matches(a.ctx, s.After, true, nil)
	switch {
	case err != nil:
		return false, err
	case modeOnly(s) && now:
		return p.chmod(s.Before.Mode, gate.NodeFile)
	case modeOnly(s):
		return was, nil
	case swapped(s):
		return a.revertExchange(i, p, was, now)
	}
	if _, err := a.newEntry(i).stat(); err == nil || was {
		return true, nil // the new entry was not moved to the path
	}
	if !now {
		n, _, err := p.node()
		return err == nil && n.None(), err
	}
	if s.After.Type == gate.NodeDir {
		if ok, err := p.isEmptyDir(); err != nil || !ok {
			return false, err
		}
	}
	if err := p.moveTo(a.newEntry(i)); err != nil {
		return false, unlessChanged(err)
	}
	a.point("moved back %d", i)
	ok, _, err := a.newEntry(i).matches(a.ctx, s.After, true, nil)
	if err == nil && ok && s.After.Type == gate.NodeDir {
		ok, err = a.newEntry(i).isEmptyDir()
	}
	if err == nil && !ok {
		err = a.newEntry(i).moveTo(p)
	}
	return ok, err
}

// revertExchange reverts the exchange of the old and the new entry of step i. was means that the path is in the state before the
// step, now that it is in the planned state. It returns false if it cannot, because another process has changed the path.
func (a restorer) revertExchange(i int, p dirEntry, was, now bool) (bool, error) {
	s, old := a.steps[i], a.oldEntry(i)
	if _, err := old.stat(); err != nil {
		old = a.newEntry(i)
		_, serr := old.stat()
		unused, _, err := old.matches(a.ctx, s.After, false, nil)
		switch {
		case err != nil:
			return false, err
		case serr != nil && a.stageRecreated && !was:
			if err := a.remake(old, s.Before); err != nil {
				return false, err
			}
		case serr != nil || unused:
			return true, nil // the entries were not exchanged, so the entry at the path is not from this operation
		}
	}
	n, _, err := p.node()
	switch {
	case err != nil:
		return false, err
	case n.None():
		err = old.moveTo(p)
	case now:
		err = p.swapWith(old, dirEntry{old.dir, "s" + strconv.Itoa(i)})
	default:
		return was, nil
	}
	return err == nil, unlessChanged(err)
}

// revertMoveAway moves the old entry of step i, which moveAway has put into the staging directory, back to its path.
func (a restorer) revertMoveAway(i int, p dirEntry) (bool, error) {
	s, old := a.steps[i], a.oldEntry(i)
	if _, err := old.stat(); errors.Is(err, unix.ENOENT) {
		was, _, err := p.matches(a.ctx, s.Before, true, nil)
		if err != nil || was || !a.stageRecreated {
			return true, err
		}
		if err := a.remake(old, s.Before); err != nil {
			return false, err
		}
	}
	err := old.moveTo(p)
	return err == nil, unlessChanged(err)
}

// remake creates the original entry n at p, in the staging directory, from the copy in saved.
func (a restorer) remake(p dirEntry, n gate.Node) error {
	n, err := savedNode(a.ctx, n, a.openOriginal)
	if err != nil {
		return err
	}
	n.Mode &= 0o777
	if err := a.create(p, n, a.openOriginal); err != nil {
		return err
	}
	return a.disk.wait()
}
