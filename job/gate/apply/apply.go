// Package apply applies a plan to a host directory atomically, undoes it, and recovers after a crash.
package apply

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/gate"
)

// The values of [Outcome.State], which tell how an apply or an undo ended.
const (
	None       = ""            // nothing was applied or started
	Applied    = "applied"     // the whole plan has been applied
	RolledBack = "rolled-back" // all changes have been rolled back
	Undone     = "undone"      // the plan was applied and later undone
)

// An Outcome is the result of an apply or an undo.
type Outcome struct {
	State string `json:"state"` // how the operation ended: None, Applied, RolledBack or Undone
	// LeftInPlace contains the paths, at most 100, that other processes changed during the apply or its rollback. Their new
	// content was left in place; the original content is among the saved originals.
	LeftInPlace []string `json:"kept,omitempty"`
}

// Limits of the lists of paths in an Outcome and in a gate.Moved.
const (
	maxPaths     = 100     // maximum number of paths in one list
	maxPathBytes = 8 << 10 // maximum total length of the paths in one list, in bytes
)

// addPath appends the path name to list unless that would exceed maxPaths or maxPathBytes, in which case it returns false.
func addPath(list []string, name string) ([]string, bool) {
	size := len(name)
	for _, p := range list {
		size += len(p)
	}
	if len(list) >= maxPaths || size > maxPathBytes {
		return list, false
	}
	return append(list, name), true
}

// quotedPath returns a path as it is shown in messages.
func quotedPath(name string) string { return strconv.Quote(name) }

// Apply applies plan to host, completely or not at all. It must run as the user who owns host. read opens the new contents by
// their SHA-256, which is verified. Each path is resolved beneath host without following symlinks and without leaving
// its mount.
//
// The states that plan expects are checked twice: before anything is changed, and when each path is changed. If a path is in
// another state, the error is a Conflict with a [*gate.Moved]. Apply copies the originals and writes a journal to saved, a
// directory that belongs to the same user and is used for this apply only. New files are written to a staging directory in
// host, named ".caisson-" and a random string, and are on disk before the first path changes. If Apply fails, it rolls back
// before it returns. After a crash, [Recover], or the next Apply or Undo with the same saved, completes or rolls back the apply.
// A concurrent reader may see some paths changed and others unchanged.
//
// New files have the permissions of the plan and neither extended attributes nor access control lists. Other errors: Invalid
// for an invalid plan, Denied if the user may not write or a file belongs to another user, Exhausted if a disk is full, and
// Conflict if another apply is running in the same directory.
func Apply(ctx context.Context, host, saved *os.File, plan *gate.Plan, read func(hash string) (io.ReadCloser, error)) (Outcome, error) {
	return apply(ctx, host, saved, plan, read, nil)
}

// apply is [Apply] with a hook for tests.
func apply(ctx context.Context, host, saved *os.File, plan *gate.Plan, read func(hash string) (io.ReadCloser, error), hook func(string)) (Outcome, error) {
	if err := plan.Validate(); err != nil {
		return Outcome{}, err
	}
	a, err := newApplier(ctx, host, saved, hook)
	if err != nil {
		return Outcome{}, err
	}
	defer a.close()
	was, err := a.recover()
	if err != nil {
		return was, err
	}
	if was.State == Applied || was.State == Undone {
		return was, caisson.Errorf(caisson.Conflict, "this was applied already")
	}
	a.read, a.steps = read, plan.Sorted()
	return a.run(applyJournal, Applied, RolledBack)
}

// An applier performs or recovers one apply or undo. It records its steps and its progress in a file, the journal, from which
// an interrupted operation is completed or rolled back.
type applier struct {
	ctx   context.Context
	host  *os.File                                 // the host's directory, locked with flock
	saved *os.File                                 // the directory for the originals and the journals of one apply and its undo
	read  func(hash string) (io.ReadCloser, error) // opens the new content of a file by its SHA-256
	hook  func(point string)                       // a function of a test that is called at named points of the operation, or nil

	disk      syncer      // syncs new files to disk
	steps     []gate.Step // the steps of the operation, sorted so that directories come before their entries
	originals string      // name of the directory in saved for the originals that the steps replace

	j              journal    // journal of the current operation, an apply or an undo
	phase          phase      // the phase that was recorded last in the journal
	stageName      string     // name of the staging directory
	stage          *os.File   // the staging directory; nil if there is none
	stageRecreated bool       // the staging directory was missing and has been created again
	moved          gate.Moved // the paths that were found in another state than expected
	leftInPlace    []string   // paths that other processes changed, and whose new content was left in place
}

// newApplier returns an applier that holds the lock of host. The caller must close it.
func newApplier(ctx context.Context, host, saved *os.File, hook func(string)) (*applier, error) {
	// A lock belongs to an open file description. The caller's may be shared, or opened with O_PATH, which permits no lock, so
	// the directory is opened again.
	fd, err := unix.Openat(int(host.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, withPath(os.NewSyscallError("open", err), ".")
	}
	a := &applier{ctx: ctx, host: os.NewFile(uintptr(fd), "host"), saved: saved, hook: hook}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		a.close()
		return nil, os.NewSyscallError("stat", err)
	}
	if int(st.Uid) != os.Geteuid() {
		a.close()
		return nil, caisson.Errorf(caisson.Denied, "the directory belongs to another user; only its owner can apply changes to it")
	}
	// If the file system does not support locks, only the checks of each path protect against concurrent changes.
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		a.close()
		return nil, caisson.Errorf(caisson.Conflict, "something is being applied to this directory; try again when that has ended")
	}
	return a, nil
}

// originalsDir returns the name of the directory, beside the journals, for copies of the contents that an operation replaces.
// name is the name of the journal of the operation: applyJournal or undoJournal.
func originalsDir(name string) string {
	if name == undoJournal {
		return undoneDir
	}
	return objectsDir
}

// close releases the lock and closes the directories.
func (a *applier) close() {
	a.disk.wait() // the error is ignored, because operations that depend on the files have called wait already
	if a.stage != nil {
		a.stage.Close()
		a.stage = nil
	}
	// A child process that is being started may still hold the file descriptor, and with it the lock, so the lock is released
	// explicitly.
	unix.Flock(int(a.host.Fd()), unix.LOCK_UN)
	a.host.Close()
}

// point calls the hook of a test with the name of the point in the operation that was reached.
func (a *applier) point(format string, args ...any) {
	if a.hook != nil {
		a.hook(fmt.Sprintf(format, args...))
	}
}

// hostEntry returns the entry of the host's directory at the path of s. The caller must close it.
func (a *applier) hostEntry(s gate.Step) (dirEntry, error) { return entryAt(int(a.host.Fd()), s.Path) }

// newEntry returns the entry of the staging directory in which the new entry of step i is prepared.
func (a *applier) newEntry(i int) dirEntry { return dirEntry{int(a.stage.Fd()), "n" + strconv.Itoa(i)} }

// oldEntry returns the entry of the staging directory to which the old entry of step i is moved.
func (a *applier) oldEntry(i int) dirEntry { return dirEntry{int(a.stage.Fd()), "o" + strconv.Itoa(i)} }

// recordLeftInPlace records that a change of another process at the path name was left in place.
func (a *applier) recordLeftInPlace(name string) { a.leftInPlace, _ = addPath(a.leftInPlace, name) }

// recordMoved records that the path name of the host is not in the expected state.
func (a *applier) recordMoved(name string) {
	var ok bool
	if a.moved.Paths, ok = addPath(a.moved.Paths, name); !ok {
		a.moved.More = true
	}
}

// run performs a.steps and records them in the journal called name. done is the state of the outcome after success, and back
// that after a failure, if no change is left.
func (a *applier) run(name, done, back string) (Outcome, error) {
	a.originals = originalsDir(name)
	if err := a.prepare(); err != nil {
		return Outcome{State: back}, err
	}
	j, err := openJournal(a.saved, name, true)
	if err != nil {
		return Outcome{State: back}, withPath(err, "journal")
	}
	defer j.close()
	a.j, a.stageName, a.leftInPlace = j, gate.StagePrefix+rand.Text(), nil
	a.point("journal made")
	if err := j.begin(a.stageName, a.steps); err != nil {
		return Outcome{State: back}, withPath(err, "journal")
	}
	a.phase = phasePlan
	a.point("journal begun")
	if err := a.forward(); err != nil {
		if errors.Is(err, errUncertain) {
			return Outcome{}, caisson.Wrap(err, caisson.Internal, "the journal of the sync cannot be written; recover when the disk works again")
		}
		a.ctx = context.WithoutCancel(a.ctx)
		if e := a.rollBack(); e != nil {
			return Outcome{}, caisson.Wrap(errors.Join(err, e), caisson.Internal, "applying failed, and so did taking it back; that is tried again the next time")
		}
		return Outcome{State: back, LeftInPlace: a.leftInPlace}, err
	}
	if err := a.finish(); err != nil {
		return Outcome{State: done, LeftInPlace: a.leftInPlace}, caisson.Wrap(err, caisson.Internal, "everything was applied, but not tidied up; that is tried again the next time")
	}
	return Outcome{State: done, LeftInPlace: a.leftInPlace}, nil
}

// forward creates the staging directory with the new entries, changes the paths of the plan, and records phaseCommit. It does
// not roll back after an error.
func (a *applier) forward() error {
	if err := a.makeStage(); err != nil {
		return withPath(err, a.stageName)
	}
	for i := range a.steps {
		if err := a.ctx.Err(); err != nil {
			return err
		}
		if err := a.stageNewEntry(i); err != nil {
			return withPath(err, a.steps[i].Path)
		}
		a.point("staged %d", i)
	}
	if err := errors.Join(a.disk.wait(), syncDir(a.stage), syncDir(a.host)); err != nil {
		return withPath(err, a.stageName)
	}
	if err := a.j.enter(phaseSwitch, nil); err != nil {
		return withPath(err, "journal")
	}
	a.phase = phaseSwitch
	a.point("switch")
	if err := (pathChanger{a}).changeAll(); err != nil {
		return err
	}
	if err := a.syncDirs(); err != nil {
		return err
	}
	a.point("switched")
	if err := a.j.enter(phaseCommit, nil); err != nil {
		return withPath(err, "journal")
	}
	a.point("commit")
	return nil
}
