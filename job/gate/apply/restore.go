package apply

import (
	"errors"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/job/gate"
)

// A restorer rolls back the paths of a plan.
type restorer struct{ *applier }

// all rolls back all changes. It is based on the current state of the paths, and not on the progress that the last process
// recorded. Entries that other processes have created at a path stay in place.
func (a restorer) all() error {
	isDir := func(s gate.Step) bool { return s.Before.Type == gate.NodeDir || s.After.Type == gate.NodeDir }
	for _, part := range []struct {
		name string
		up   bool
		of   func(gate.Step) bool
		do   func(i int, p place) (bool, error)
		// counts means that a result of false, or a parent directory that does not exist, shows that another process has
		// changed the path.
		counts bool
	}{
		{"reopened", false, isDir, a.reopen, false},
		{"unplaced", true, func(s gate.Step) bool { return movedIn(s) || modeOnly(s) }, a.revertPlaceNew, true},
		{"untaken", false, movedAway, a.revertMoveAway, true},
		{"reclosed", true, isDir, a.reclose, false},
	} {
		err := a.each(part.up, part.of, func(i int) error {
			ok, err := a.change(i, part.do)
			if err == nil && !ok && part.counts {
				a.keepUnlessNothing(i)
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

// keepUnlessNothing records that the path of step i could not be rolled back, unless the path did not exist before and does not
// exist now.
func (a restorer) keepUnlessNothing(i int) {
	s := a.steps[i]
	if p, err := a.at(s); err == nil {
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

// reopen makes a directory that the apply created or changed writable again.
func (a restorer) reopen(i int, p place) (bool, error) {
	n, _, err := p.node()
	if err != nil || n.Type != gate.NodeDir || n.Mode&ownerAll == ownerAll {
		return true, err
	}
	if s := a.steps[i]; s.Before.Type == gate.NodeDir && n.Mode == s.Before.Mode || s.After.Type == gate.NodeDir && n.Mode == s.After.Mode {
		ok, err := p.chmod(n.Mode|ownerAll, gate.NodeDir)
		if errors.Is(err, unix.EACCES) {
			err = nil // a directory that its owner cannot read was never opened, and no plan creates one
		}
		return ok, err
	}
	return true, nil
}

// reclose restores the permissions of directories.
func (a restorer) reclose(i int, p place) (bool, error) {
	n, _, err := p.node()
	if err != nil || n.Type != gate.NodeDir {
		return true, err
	}
	s := a.steps[i]
	want, ours := s.Before.Mode, []uint32{s.Before.Mode | ownerAll}
	if s.Before.Type != gate.NodeDir {
		want = s.After.Mode // the new directory stays, because it contains files of another process
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

// revertPlaceNew reverts what switcher.placeNew has done for step i. It returns false if another process has changed the path.
func (a restorer) revertPlaceNew(i int, p place) (bool, error) {
	s := a.steps[i]
	// Permissions of directories are ignored because they are temporary; see reopen.
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
		return true, nil // not placed
	}
	if !now {
		n, _, err := p.node()
		return err == nil && n.None(), err
	}
	if s.After.Type == gate.NodeDir {
		if ok, err := p.empty(); err != nil || !ok {
			return false, err
		}
	}
	if err := p.moveTo(a.newEntry(i)); err != nil {
		return false, unlessVanished(err)
	}
	a.point("moved back %d", i)
	ok, _, err := a.newEntry(i).matches(a.ctx, s.After, true, nil)
	if err == nil && ok && s.After.Type == gate.NodeDir {
		ok, err = a.newEntry(i).empty()
	}
	if err == nil && !ok {
		err = a.newEntry(i).moveTo(p)
	}
	return ok, err
}

// revertExchange reverts an exchange. was and now report whether the path is in the state before the step and in the planned
// state.
func (a restorer) revertExchange(i int, p place, was, now bool) (bool, error) {
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
			return true, nil // not exchanged; the entry at the path is not from this apply
		}
	}
	n, _, err := p.node()
	switch {
	case err != nil:
		return false, err
	case n.None():
		err = old.moveTo(p)
	case now:
		err = p.swapWith(old, place{old.dir, "s" + strconv.Itoa(i)})
	default:
		return was, nil
	}
	return err == nil, unlessVanished(err)
}

// revertMoveAway moves back the entry that switcher.moveAway has moved away for step i.
func (a restorer) revertMoveAway(i int, p place) (bool, error) {
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
	return err == nil, unlessVanished(err)
}

// remake creates the original entry again in the staging directory, from the saved copy.
func (a restorer) remake(p place, n gate.Node) error {
	n, err := savedNode(a.ctx, n, a.original)
	if err != nil {
		return err
	}
	n.Mode &= 0o777
	if err := a.make(p, n, a.original); err != nil {
		return err
	}
	return a.disk.wait()
}
