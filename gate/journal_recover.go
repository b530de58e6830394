package gate

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Recover ends what an [Apply] or [Undo] with the same host and saved has left unfinished, and says what has become of it: back, or
// forward if every path had changed already. It may be called at any time, and again if it fails; with nothing to be done it
// only reads. It must run as the user who owns host.
func Recover(ctx context.Context, host, saved *os.File) (Outcome, error) {
	return recoverWith(ctx, host, saved, nil)
}

func recoverWith(ctx context.Context, host, saved *os.File, hook func(string)) (Outcome, error) {
	a, err := newApplier(ctx, host, saved, hook)
	if err != nil {
		return Outcome{}, err
	}
	defer a.close()
	return a.recover()
}

// recover ends what is unfinished.
func (a *applier) recover() (Outcome, error) {
	done, err := a.resume(applyJournal)
	if err != nil || done.phase != phaseDone {
		return outcome(done, OutcomeApplied, OutcomeRolledBack), err
	}
	undone, err := a.resume(undoJournal)
	out := outcome(undone, OutcomeUndone, OutcomeApplied)
	if undone.phase == phaseNone {
		out = outcome(done, OutcomeApplied, OutcomeRolledBack)
	}
	return out, err
}

func outcome(h history, done, back string) Outcome {
	switch h.phase {
	case phaseDone:
		return Outcome{State: done, Kept: h.kept}
	case phaseBack:
		return Outcome{State: back, Kept: h.kept}
	}
	return Outcome{}
}

// resume ends what the journal called name says, and returns how it ended.
func (a *applier) resume(name string) (history, error) {
	h, err := readJournal(a.saved, name)
	if err != nil || h.finished() {
		return h, err
	}
	j, err := openJournal(a.saved, name, false)
	if err != nil {
		return h, blame(err, "journal")
	}
	defer j.close()
	a.j, a.name, a.steps, a.phase, a.kept, a.originals = j, h.stage, h.steps, h.phase, nil, originalsOf(name)
	if err := a.openStage(); err != nil {
		return h, blame(err, a.name)
	}
	a.point("resumed")
	if h.phase == phaseCommit {
		err, h.phase = a.finish(), phaseDone
	} else {
		err, h.phase = a.back(), phaseBack
	}
	for _, p := range a.kept {
		if !slices.Contains(h.kept, p) {
			h.kept, _ = addPath(h.kept, p)
		}
	}
	return h, err
}

// openStage opens the staging directory that an earlier process has made.
func (a *applier) openStage() error {
	fd, err := openBeneath(int(a.host.Fd()), a.name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	switch {
	case err == nil:
		a.stage = os.NewFile(uintptr(fd), a.name)
		return nil
	case errors.Is(err, unix.ENOENT) && a.phase == phaseSwitch:
		// Somebody has tidied up too early. Originals are saved, and come from there.
		a.remade = true
		return a.makeStage()
	case lost(err):
		return nil
	}
	return err
}

// finish goes from the commit to the end.
func (a *applier) finish() error {
	if err := a.clear(); err != nil {
		return err
	}
	a.point("cleared")
	return a.j.enter(phaseDone, a.kept)
}

// back puts everything back.
func (a *applier) back() error {
	if a.stage == nil { // it may have been made, but not opened
		if err := a.openStage(); err != nil {
			return blame(err, a.name)
		}
	}
	if a.phase == phaseSwitch {
		if err := a.restore(); err != nil {
			return err
		}
	}
	noted := 0
	if a.phase != phaseRestored {
		if err := a.j.enter(phaseRestored, a.kept); err != nil {
			return err
		}
		a.phase, noted = phaseRestored, len(a.kept)
		a.point("restored")
	}
	if err := a.clear(); err != nil {
		return err
	}
	a.point("cleared")
	return a.j.enter(phaseBack, a.kept[noted:])
}

// restore takes back what has been changed, whatever that is: it goes by what is where, and not by what the last process may
// have done. What somebody else has put at a path stays.
func (a *applier) restore() error {
	isDir := func(s Step) bool { return s.Before.Type == nodeDir || s.After.Type == nodeDir }
	for _, part := range []struct {
		name string
		up   bool
		of   func(Step) bool
		do   func(i int, p place) (bool, error)
		// counts says that false, or no way to the path, means that somebody else has something there.
		counts bool
	}{
		{"reopened", false, isDir, a.reopen, false},
		{"unplaced", true, func(s Step) bool { return s.placed() || s.modeOnly() }, a.unput, true},
		{"untaken", false, Step.taken, a.untake, true},
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

// keepUnlessNothing remembers that the path of step i could not be put back, unless there was and is nothing.
func (a *applier) keepUnlessNothing(i int) {
	s := a.steps[i]
	if p, err := a.at(s); err == nil {
		defer p.close()
		if n, _, err := p.look(); err == nil && n.none() && s.Before.none() {
			return
		}
	} else if s.Before.none() {
		return
	}
	if !slices.Contains(a.kept, s.Path) {
		a.keep(s.Path)
	}
}

// reopen makes a directory of ours writable again.
func (a *applier) reopen(i int, p place) (bool, error) {
	n, _, err := p.look()
	if err != nil || n.Type != nodeDir || n.Mode&ownerAll == ownerAll {
		return true, err
	}
	if s := a.steps[i]; s.Before.Type == nodeDir && n.Mode == s.Before.Mode || s.After.Type == nodeDir && n.Mode == s.After.Mode {
		ok, err := p.chmod(n.Mode|ownerAll, nodeDir)
		if errors.Is(err, unix.EACCES) {
			err = nil // one that its owner cannot read was never opened, and no plan makes one
		}
		return ok, err
	}
	return true, nil
}

// reclose gives directories the permissions they had.
func (a *applier) reclose(i int, p place) (bool, error) {
	n, _, err := p.look()
	if err != nil || n.Type != nodeDir {
		return true, err
	}
	s := a.steps[i]
	want, ours := s.Before.Mode, []uint32{s.Before.Mode | ownerAll}
	if s.Before.Type != nodeDir {
		want = s.After.Mode // it stays, with something of somebody else's
	}
	if s.Before.Type != nodeDir || a.remade {
		ours = append(ours, ownerAll)
	}
	if s.After.Type == nodeDir {
		ours = append(ours, s.After.Mode, s.After.Mode|ownerAll)
	}
	if slices.Contains(ours, n.Mode) {
		return p.chmod(want, nodeDir)
	}
	return true, nil
}

// unput takes back what put has done.
func (a *applier) unput(i int, p place) (bool, error) {
	s := a.steps[i]
	// The permissions of directories are not what they will be; see reopen.
	was, _, err := p.matches(a.ctx, s.Before, true, nil)
	if err != nil {
		return false, err
	}
	now, _, err := p.matches(a.ctx, s.After, true, nil)
	switch {
	case err != nil:
		return false, err
	case s.modeOnly() && now:
		return p.chmod(s.Before.Mode, nodeFile)
	case s.modeOnly():
		return was, nil
	case s.swapped():
		return a.unswap(i, p, was, now)
	}
	if _, err := a.fresh(i).stat(); err == nil || was {
		return true, nil // not placed
	}
	if !now {
		n, _, err := p.look()
		return err == nil && n.none(), err
	}
	if s.After.Type == nodeDir {
		if ok, err := p.empty(); err != nil || !ok {
			return false, err
		}
	}
	if err := p.moveTo(a.fresh(i)); err != nil {
		return false, unlessLost(err)
	}
	a.point("moved back %d", i)
	ok, _, err := a.fresh(i).matches(a.ctx, s.After, true, nil)
	if err == nil && ok && s.After.Type == nodeDir {
		ok, err = a.fresh(i).empty()
	}
	if err == nil && !ok {
		err = a.fresh(i).moveTo(p)
	}
	return ok, err
}

// unswap takes an exchange back; was and now say whether the path is as before or as planned.
func (a *applier) unswap(i int, p place, was, now bool) (bool, error) {
	s, old := a.steps[i], a.aside(i)
	if _, err := old.stat(); err != nil {
		old = a.fresh(i)
		_, serr := old.stat()
		unused, _, err := old.matches(a.ctx, s.After, false, nil)
		switch {
		case err != nil:
			return false, err
		case serr != nil && a.remade && !was:
			if err := a.remake(old, s.Before); err != nil {
				return false, err
			}
		case serr != nil || unused:
			return true, nil // not exchanged; whatever is there, it is not ours
		}
	}
	n, _, err := p.look()
	switch {
	case err != nil:
		return false, err
	case n.none():
		err = old.moveTo(p)
	case now:
		err = p.swapWith(old, place{old.dir, "s" + strconv.Itoa(i)})
	default:
		return was, nil
	}
	return err == nil, unlessLost(err)
}

// untake puts back what take has moved away.
func (a *applier) untake(i int, p place) (bool, error) {
	s, old := a.steps[i], a.aside(i)
	if _, err := old.stat(); errors.Is(err, unix.ENOENT) {
		was, _, err := p.matches(a.ctx, s.Before, true, nil)
		if err != nil || was || !a.remade {
			return true, err
		}
		if err := a.remake(old, s.Before); err != nil {
			return false, err
		}
	}
	err := old.moveTo(p)
	return err == nil, unlessLost(err)
}

// remake makes again in the staging directory what had been there, from what is saved.
func (a *applier) remake(p place, n Node) error {
	n, err := a.savedNode(n, a.original)
	if err != nil {
		return err
	}
	n.Mode &= 0o777
	if err := a.make(p, n, a.original); err != nil {
		return err
	}
	return a.disk.wait()
}

// clear removes the staging directory and what is in it, all of which is ours.
func (a *applier) clear() error {
	if a.stage == nil {
		return nil
	}
	if _, err := a.stage.Seek(0, io.SeekStart); err != nil {
		return err
	}
	names, err := a.stage.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := a.discard(place{int(a.stage.Fd()), name}); err != nil {
			return blame(err, a.name)
		}
		a.point("discarded %s", name)
	}
	err = unix.Unlinkat(int(a.host.Fd()), a.name, unix.AT_REMOVEDIR)
	if errors.Is(err, unix.ENOTEMPTY) {
		a.keep(a.name) // somebody has put something there
		err = nil
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return os.NewSyscallError("rmdir", err)
	}
	a.stage.Close()
	a.stage = nil
	return syncDir(a.host)
}

// discard removes an entry of the staging directory. A directory in which somebody has put something goes back to its path.
func (a *applier) discard(p place) error {
	err := unix.Unlinkat(p.dir, p.name, 0)
	if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) {
		err = unix.Unlinkat(p.dir, p.name, unix.AT_REMOVEDIR)
	}
	if !errors.Is(err, unix.ENOTEMPTY) {
		return os.NewSyscallError("unlink", err)
	}
	i, err := strconv.Atoi(strings.TrimLeft(p.name, "nos"))
	if err != nil || i < 0 || i >= len(a.steps) {
		return nil
	}
	a.keep(a.steps[i].Path)
	to, err := a.at(a.steps[i])
	if err != nil {
		return nil // it stays where it is
	}
	defer to.close()
	if err := p.moveTo(to); err != nil {
		return unlessLost(err)
	}
	mode := a.steps[i].After.Mode
	if a.steps[i].Before.Type == nodeDir {
		mode = a.steps[i].Before.Mode
	}
	_, err = to.chmod(mode, nodeDir)
	return err
}
