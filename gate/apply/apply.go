// Package apply applies a plan to a host directory, all of it or nothing, undoes it, and recovers after a crash.
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
	"github.com/caisson-dev/caisson/gate"
)

// What has become of an apply.
const (
	None       = ""            // nothing was begun
	Applied    = "applied"     // all of the plan is there
	RolledBack = "rolled-back" // everything is as it was
	Undone     = "undone"      // it was applied, and taken back later
)

// An Outcome is what has become of an apply.
type Outcome struct {
	State string `json:"state"`
	// Kept are paths, at most 100, where somebody else has put something while the apply or its end was under way. It was left
	// as it is; what had been there before is with what is saved.
	Kept []string `json:"kept,omitempty"`
}

// Bounds of lists of paths.
const (
	maxPaths     = 100
	maxKeptBytes = 8 << 10
)

// add appends name to a bounded list; false if there is no room.
func addPath(list []string, name string) ([]string, bool) {
	size := len(name)
	for _, p := range list {
		size += len(p)
	}
	if len(list) >= maxPaths || size > maxKeptBytes {
		return list, false
	}
	return append(list, name), true
}

// quoted shows a path in a message.
func quoted(name string) string { return strconv.Quote(name) }

// Run makes host what plan says: all of it or nothing. It must run as the user who owns host. Contents come from read, by the
// SHA-256 of what is to be written, and nothing else is ever written. Each path is found beneath host without following
// symlinks and without leaving its mount.
//
// What plan expects to be there is checked twice, before anything is touched and when it is taken away; if it is something else
// the error is a Conflict with a [*gate.Moved]. Originals are copied to saved, a directory that belongs to the same user and to this
// apply alone, and so is a journal. New files are written to a directory beside the others, ".caisson-" and a random name, and
// are on disk before the first path changes. What fails is taken back before Apply returns. After a crash [Recover], or
// the next Apply or Undo with the same saved, ends what was begun. Who reads meanwhile may see some paths changed and others not.
//
// New files have the permissions of the plan and neither extended attributes nor access control lists. Other errors: Invalid for
// a plan that makes no sense, Denied where the user may not write or a file belongs to somebody else, Exhausted if a disk is
// full. Two of them in one directory at a time are a Conflict.
func Run(ctx context.Context, host, saved *os.File, plan *gate.Plan, read func(hash string) (io.ReadCloser, error)) (Outcome, error) {
	return apply(ctx, host, saved, plan, read, nil)
}

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

// An applier does or ends one apply or undo.
type applier struct {
	ctx   context.Context
	host  *os.File // the directory, locked
	saved *os.File
	read  func(hash string) (io.ReadCloser, error)
	hook  func(point string) // of tests; may be nil

	disk  syncer
	steps []gate.Step // sorted, so that parents come first
	// originals is the directory in saved for what the steps replace.
	originals string

	j      journal
	phase  phase
	name   string   // of the staging directory
	stage  *os.File // the staging directory; nil if there is none
	remade bool     // whether somebody had removed the staging directory
	moved  gate.Moved
	kept   []string
}

func newApplier(ctx context.Context, host, saved *os.File, hook func(string)) (*applier, error) {
	// A descriptor of its own: locks belong to descriptors, and the caller's may have been opened in any way.
	fd, err := unix.Openat(int(host.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, blame(os.NewSyscallError("open", err), ".")
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
	// Where locks do not work the checks of every single path remain.
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		a.close()
		return nil, caisson.Errorf(caisson.Conflict, "something is being applied to this directory; try again when that has ended")
	}
	return a, nil
}

// originalsOf is the directory for what is replaced by what the journal called name says.
func originalsOf(name string) string {
	if name == undoJournal {
		return undoneDir
	}
	return objectsDir
}

func (a *applier) close() {
	a.disk.wait() // whoever needs to know has asked before
	if a.stage != nil {
		a.stage.Close()
		a.stage = nil
	}
	// A child that is just being started may hold the descriptor, and with it the lock, a little longer.
	unix.Flock(int(a.host.Fd()), unix.LOCK_UN)
	a.host.Close()
}

func (a *applier) point(format string, args ...any) {
	if a.hook != nil {
		a.hook(fmt.Sprintf(format, args...))
	}
}

func (a *applier) at(s gate.Step) (place, error) { return at(int(a.host.Fd()), s.Path) }

// fresh and aside are the places of step i in the staging directory: of what comes, and of what goes.
func (a *applier) fresh(i int) place { return place{int(a.stage.Fd()), "n" + strconv.Itoa(i)} }
func (a *applier) aside(i int) place { return place{int(a.stage.Fd()), "o" + strconv.Itoa(i)} }

// keep remembers that something of somebody else's was left at a path.
func (a *applier) keep(name string) { a.kept, _ = addPath(a.kept, name) }

// move remembers that a path of the host is not as expected.
func (a *applier) move(name string) {
	var ok bool
	if a.moved.Paths, ok = addPath(a.moved.Paths, name); !ok {
		a.moved.More = true
	}
}

// run does what a.steps say and writes the journal called name.
func (a *applier) run(name, done, back string) (Outcome, error) {
	a.originals = originalsOf(name)
	if err := a.prepare(); err != nil {
		return Outcome{State: back}, err
	}
	j, err := openJournal(a.saved, name, true)
	if err != nil {
		return Outcome{State: back}, blame(err, "journal")
	}
	defer j.close()
	a.j, a.name, a.kept = j, gate.StagePrefix+rand.Text(), nil
	a.point("journal made")
	if err := j.begin(a.name, a.steps); err != nil {
		return Outcome{State: back}, blame(err, "journal")
	}
	a.phase = phasePlan
	a.point("journal begun")
	if err := a.forward(); err != nil {
		if errors.Is(err, errUncertain) {
			return Outcome{}, caisson.Wrap(err, caisson.Internal, "the journal of the sync cannot be written; recover when the disk works again")
		}
		a.ctx = context.WithoutCancel(a.ctx)
		if e := a.back(); e != nil {
			return Outcome{}, caisson.Wrap(errors.Join(err, e), caisson.Internal, "applying failed, and so did taking it back; that is tried again the next time")
		}
		return Outcome{State: back, Kept: a.kept}, err
	}
	if err := a.finish(); err != nil {
		return Outcome{State: done, Kept: a.kept}, caisson.Wrap(err, caisson.Internal, "everything was applied, but not tidied up; that is tried again the next time")
	}
	return Outcome{State: done, Kept: a.kept}, nil
}

// forward goes from a written plan to the commit.
func (a *applier) forward() error {
	if err := a.makeStage(); err != nil {
		return blame(err, a.name)
	}
	for i := range a.steps {
		if err := a.ctx.Err(); err != nil {
			return err
		}
		if err := a.prepareFresh(i); err != nil {
			return blame(err, a.steps[i].Path)
		}
		a.point("staged %d", i)
	}
	if err := errors.Join(a.disk.wait(), syncDir(a.stage), syncDir(a.host)); err != nil {
		return blame(err, a.name)
	}
	if err := a.j.enter(phaseSwitch, nil); err != nil {
		return blame(err, "journal")
	}
	a.phase = phaseSwitch
	a.point("switch")
	if err := (switcher{a}).all(); err != nil {
		return err
	}
	if err := a.syncDirs(); err != nil {
		return err
	}
	a.point("switched")
	if err := a.j.enter(phaseCommit, nil); err != nil {
		return blame(err, "journal")
	}
	a.point("commit")
	return nil
}
