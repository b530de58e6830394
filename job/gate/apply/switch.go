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

// A pathChanger changes the paths of a plan, after all new entries were created in the staging directory.
type pathChanger struct{ *applier }

// changeAll changes the paths of the plan. It writes no file contents: each change is one system call, such as a rename, whose
// result is checked afterwards. It stops with a Conflict at the first path that is not in the expected state.
func (a pathChanger) changeAll() error {
	for _, part := range []struct {
		name string
		up   bool                                  // handle the steps from the leaves to the root, not from the root to the leaves
		of   func(s gate.Step) bool                // selects the steps
		do   func(i int, p dirEntry) (bool, error) // returns false if the path is not in the expected state
	}{
		{"opened", false, needsMakeWritable, a.makeWritable},
		{"taken", true, movedAway, a.moveAway},
		{"placed", false, func(s gate.Step) bool { return movedIn(s) || modeOnly(s) }, a.placeNew},
		{"closed", true, func(s gate.Step) bool { return s.After.Type == gate.NodeDir }, a.setFinalMode},
	} {
		err := a.eachStep(part.up, part.of, func(i int) error {
			if err := a.ctx.Err(); err != nil {
				return err
			}
			ok, err := a.doAtPath(i, part.do)
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

// eachStep calls do with the index of each step for which of returns true, from the root down or, if up is set, from the leaves
// up.
func (a *applier) eachStep(up bool, of func(gate.Step) bool, do func(i int) error) error {
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

// doAtPath calls do with the host's entry at the path of step i, and returns its result. It returns false if a parent directory
// of the path does not exist any more.
func (a *applier) doAtPath(i int, do func(i int, p dirEntry) (bool, error)) (bool, error) {
	p, err := a.hostEntry(a.steps[i])
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

// needsMakeWritable reports whether the path of s is a directory that must be made writable for its owner while it or its
// entries are changed.
func needsMakeWritable(s gate.Step) bool {
	return s.Before.Type == gate.NodeDir && s.Before.Mode&ownerAll != ownerAll
}

// makeWritable gives the owner of the directory at the path of step i all permissions for it. It returns false if the path is
// not in the expected state.
func (a pathChanger) makeWritable(i int, p dirEntry) (bool, error) {
	s := a.steps[i]
	ok, _, err := p.matches(a.ctx, s.Before, false, nil)
	if err != nil || !ok {
		return false, err
	}
	return p.chmod(s.Before.Mode|ownerAll, gate.NodeDir)
}

// moveAway moves the old entry of step i to the staging directory, because it is removed or changes from or to a directory. It
// returns false if the path was not in the expected state.
func (a pathChanger) moveAway(i int, p dirEntry) (bool, error) {
	s := a.steps[i]
	if err := p.moveTo(a.oldEntry(i)); err != nil {
		return false, unlessChanged(err)
	}
	a.point("moved %d", i)
	// The entry is checked again after it was moved, because it may have changed since the first check. If it has changed, the
	// rollback moves it back.
	ok, _, err := a.oldEntry(i).matches(a.ctx, s.Before, true, nil)
	if err == nil && ok && s.Before.Type == gate.NodeDir {
		ok, err = a.oldEntry(i).isEmptyDir()
	}
	return ok, err
}

// placeNew moves the new entry of step i to its path, or exchanges it with the old entry, or sets the permissions of the file.
// It returns false if the path was not in the expected state.
func (a pathChanger) placeNew(i int, p dirEntry) (bool, error) {
	s := a.steps[i]
	if swapped(s) {
		return a.exchange(i, p)
	}
	if movedIn(s) {
		err := a.newEntry(i).moveTo(p)
		return err == nil, unlessChanged(err)
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

// exchange exchanges the new entry of step i with the old one, and then checks the old one again, because an editor may have
// saved the file just before the exchange. It returns false if the old entry is not in the expected state.
func (a pathChanger) exchange(i int, p dirEntry) (bool, error) {
	s, q := a.steps[i], a.newEntry(i)
	ok, _, err := p.matches(a.ctx, s.Before, false, nil)
	if err != nil || !ok {
		return false, err
	}
	a.point("checked %d", i)
	if err := p.swapWith(q, a.oldEntry(i)); err != nil {
		return false, unlessChanged(err)
	}
	a.point("swapped %d", i)
	ok, _, err = q.matches(a.ctx, s.Before, false, nil)
	return ok, err
}

// setFinalMode sets the planned permissions of the directory at the path of step i. It returns false if there is no directory.
func (a pathChanger) setFinalMode(i int, p dirEntry) (bool, error) {
	return p.chmod(a.steps[i].After.Mode, gate.NodeDir)
}

// unlessChanged returns nil if err means that a path does not exist, or that one to be created exists, and err otherwise.
func unlessChanged(err error) error {
	if fsat.IsOneOf(err, unix.ENOENT, unix.ENOTDIR, unix.EEXIST) {
		return nil
	}
	return err
}

// isEmptyDir reports whether p, a directory, is empty.
func (p dirEntry) isEmptyDir() (bool, error) {
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
			continue // the directory was removed, by the plan or by another process
		}
		if errors.Is(err, unix.EACCES) { // the owner may not list the directory, so it cannot be opened for a sync
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
	return withPath(syncDir(a.stage), a.stageName)
}
