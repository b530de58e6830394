package apply

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/job/gate"
)

// Recover completes or rolls back an unfinished [Apply] or [Undo] with the same host and saved, and returns the outcome. It
// completes the operation if every path had changed already, and rolls back otherwise. It may be called at any time, and again
// after an error. If no operation is unfinished, it changes nothing. It must run as the user who owns host.
func Recover(ctx context.Context, host, saved *os.File) (Outcome, error) {
	return recoverWith(ctx, host, saved, nil)
}

// recoverWith is [Recover] with a hook for tests.
func recoverWith(ctx context.Context, host, saved *os.File, hook func(string)) (Outcome, error) {
	a, err := newApplier(ctx, host, saved, hook)
	if err != nil {
		return Outcome{}, err
	}
	defer a.close()
	return a.recover()
}

// recover completes or rolls back the unfinished operations of both journals, that of the apply and that of the undo, and
// returns the outcome of the last operation.
func (a *applier) recover() (Outcome, error) {
	done, err := a.resume(applyJournal)
	if err != nil || done.phase != phaseDone {
		return outcome(done, Applied, RolledBack), err
	}
	undone, err := a.resume(undoJournal)
	out := outcome(undone, Undone, Applied)
	if undone.phase == phaseNone {
		out = outcome(done, Applied, RolledBack)
	}
	return out, err
}

// outcome returns the outcome of the operation with the journal h. Its state is done after success, and back after a rollback.
func outcome(h history, done, back string) Outcome {
	switch h.phase {
	case phaseDone:
		return Outcome{State: done, LeftInPlace: h.leftInPlace}
	case phaseBack:
		return Outcome{State: back, LeftInPlace: h.leftInPlace}
	}
	return Outcome{}
}

// resume completes or rolls back the operation of the journal called name if it is unfinished, and returns the final content of
// the journal.
func (a *applier) resume(name string) (history, error) {
	h, err := readJournal(a.saved, name)
	if err != nil || h.finished() {
		return h, err
	}
	j, err := openJournal(a.saved, name, false)
	if err != nil {
		return h, withPath(err, "journal")
	}
	defer j.close()
	a.j, a.stageName, a.steps, a.phase, a.leftInPlace, a.originals = j, h.stage, h.steps, h.phase, nil, originalsDir(name)
	if err := a.openStage(); err != nil {
		return h, withPath(err, a.stageName)
	}
	a.point("resumed")
	if h.phase == phaseCommit {
		err, h.phase = a.finish(), phaseDone
	} else {
		err, h.phase = a.rollBack(), phaseBack
	}
	for _, p := range a.leftInPlace {
		if !slices.Contains(h.leftInPlace, p) {
			h.leftInPlace, _ = addPath(h.leftInPlace, p)
		}
	}
	return h, err
}

// openStage opens the staging directory that an earlier process created. If it does not exist, openStage creates it again if
// paths may have changed (phaseSwitch), because the rollback of them needs it, and leaves a.stage nil in other phases.
func (a *applier) openStage() error {
	fd, err := openBeneath(int(a.host.Fd()), a.stageName, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	switch {
	case err == nil:
		a.stage = os.NewFile(uintptr(fd), a.stageName)
		return nil
	case errors.Is(err, unix.ENOENT) && a.phase == phaseSwitch:
		// Another process has removed the staging directory, so the originals will be restored from the copies in saved.
		a.stageRecreated = true
		return a.makeStage()
	case vanishedParent(err):
		return nil
	}
	return err
}

// finish removes the staging directory and records phaseDone, after all paths have changed.
func (a *applier) finish() error {
	if err := a.removeStage(); err != nil {
		return err
	}
	a.point("cleared")
	return a.j.enter(phaseDone, a.leftInPlace)
}

// rollBack rolls back all changes.
func (a *applier) rollBack() error {
	if a.stage == nil { // the staging directory may have been created, but was not opened
		if err := a.openStage(); err != nil {
			return withPath(err, a.stageName)
		}
	}
	if a.phase == phaseSwitch {
		if err := (restorer{a}).restoreAll(); err != nil {
			return err
		}
	}
	noted := 0
	if a.phase != phaseRestored {
		if err := a.j.enter(phaseRestored, a.leftInPlace); err != nil {
			return err
		}
		a.phase, noted = phaseRestored, len(a.leftInPlace)
		a.point("restored")
	}
	if err := a.removeStage(); err != nil {
		return err
	}
	a.point("cleared")
	return a.j.enter(phaseBack, a.leftInPlace[noted:])
}

// removeStage removes the staging directory and the entries that the operation created in it.
func (a *applier) removeStage() error {
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
		if err := a.discard(dirEntry{int(a.stage.Fd()), name}); err != nil {
			return withPath(err, a.stageName)
		}
		a.point("discarded %s", name)
	}
	err = unix.Unlinkat(int(a.host.Fd()), a.stageName, unix.AT_REMOVEDIR)
	if errors.Is(err, unix.ENOTEMPTY) {
		a.recordLeftInPlace(a.stageName) // another process has created a file in the staging directory, so it is not removed
		err = nil
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return os.NewSyscallError("rmdir", err)
	}
	a.stage.Close()
	a.stage = nil
	return syncDir(a.host)
}

// discard removes the entry p of the staging directory. If p is a directory in which another process has created files, discard
// moves it to the path of its step instead.
func (a *applier) discard(p dirEntry) error {
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
	a.recordLeftInPlace(a.steps[i].Path)
	to, err := a.hostEntry(a.steps[i])
	if err != nil {
		return nil // the path of the step cannot be reached, so the entry stays in the staging directory
	}
	defer to.close()
	if err := p.moveTo(to); err != nil {
		return unlessChanged(err)
	}
	mode := a.steps[i].After.Mode
	if a.steps[i].Before.Type == gate.NodeDir {
		mode = a.steps[i].Before.Mode
	}
	_, err = to.chmod(mode, gate.NodeDir)
	return err
}
