package sandboxes

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/guestd"
)

// fileAccess returns the file clients of sandboxes. For a sandbox that does not run, it returns the client of a stand-in with the
// same files.
type fileAccess struct {
	finder    finder         // finds sandboxes of the caller's account
	locks     *locks         // one lock for each sandbox
	activity  *activity      // records uses of sandboxes
	clients   *fileClients   // clients that access files in sandboxes
	admission *admission     // decides whether the host has room
	unstored  *idSet         // ids of sandboxes and captures in use that are not in the store
	specs     *specs         // builds specs for the runtime
	runtime   standInRuntime // creates and destroys stand-ins
	dirs      dirs           // paths and files in the data directory
	log       *slog.Logger
}

// standInRuntime is the part of a runtime that stand-ins use.
type standInRuntime interface {
	Create(ctx context.Context, id caisson.ID, spec caisson.RuntimeSpec) error
	Destroy(ctx context.Context, id caisson.ID) error
}

// A standIn is a temporary sandbox with the files of a sandbox that does not run.
type standIn struct {
	id       caisson.ID     // id of the temporary sandbox
	runtime  standInRuntime // creates and destroys stand-ins
	dirs     dirs           // paths and files in the data directory
	log      *slog.Logger
	unstored *idSet          // ids in use that are not in the store; id is among them until the stand-in is removed
	ctx      context.Context // context with which the stand-in is removed
	removed  sync.Once       // ensures that the stand-in is removed only once
}

// remove removes the stand-in from the host. An error is logged.
func (s *standIn) remove() {
	s.removed.Do(func() {
		defer s.unstored.set(s.id, false)
		if err := errors.Join(s.runtime.Destroy(s.ctx, s.id), s.dirs.removeSandboxDir(s.ctx, s.id)); err != nil {
			s.log.ErrorContext(s.ctx, "a temporary sandbox for reading files could not be removed", "sandbox", s.id, "err", err)
		}
	})
}

// acquire returns the file client of a sandbox and a function that releases the client after use. Returns a Conflict error if
// write is true and the sandbox does not run.
func (a *fileAccess) acquire(ctx context.Context, ref string, write bool) (*guestd.Client, func(), error) {
	sb, end, err := a.activity.use(ctx, a.finder, ref, caisson.VerbFiles)
	if err != nil {
		return nil, nil, err
	}
	if sb.State == caisson.Running {
		client, release := a.clients.acquireRunning(sb.ID)
		return client, func() { release(); end() }, nil
	}
	defer end()
	if write {
		return nil, nil, caisson.Errorf(caisson.Conflict, "the files of a %s sandbox can be read but not written; make it run first", sb.State)
	}
	return a.acquireStandIn(ctx, sb)
}

// acquireStandIn returns the file client of the stand-in for the sandbox of, which does not run, and a function that releases the
// client after use. It creates the stand-in if there is none.
func (a *fileAccess) acquireStandIn(ctx context.Context, of *caisson.Sandbox) (*guestd.Client, func(), error) {
	release, err := a.locks.acquire(ctx, of.ID)
	if err != nil {
		return nil, nil, err
	}
	defer release()
	// Read the record of the sandbox again: its state may have changed during the wait for the lock.
	if of, err = a.finder.findFor(ctx, string(of.ID), caisson.VerbFiles); err != nil {
		return nil, nil, err
	}
	if of.State == caisson.Running {
		client, release := a.clients.acquireRunning(of.ID)
		return client, release, nil
	}
	if client, release := a.clients.acquireStandIn(of.ID); client != nil {
		return client, release, nil
	}
	a.clients.drop(of.ID) // an open client dates from when the sandbox was running

	files := a.dirs.sandboxPath(of.ID, filesTar)
	if of.State == caisson.Paused {
		files = a.dirs.sandboxPath(of.ID, pauseDir+"/"+filesTar)
	}
	sb := *of
	sb.ID = caisson.NewID(caisson.SandboxPrefix)
	sb.Spec.Command = nil
	// A stand-in has only the root file system: no workspace or volume, and no mounted host directories, because specs reads the
	// list of these from the directory of the stand-in, where there is none.
	sb.Spec.Workspace, sb.Spec.WorkspaceAt, sb.Spec.Volume = "", "", nil
	admitted, err := a.admission.admit(ctx, &sb, 0)
	if err != nil {
		return nil, nil, err
	}
	defer admitted()
	a.unstored.set(sb.ID, true)
	in := &standIn{id: sb.ID, runtime: a.runtime, dirs: a.dirs, log: a.log, unstored: a.unstored, ctx: context.WithoutCancel(ctx)}
	if err := a.dirs.makeSandboxDir(&sb); err != nil {
		in.remove()
		return nil, nil, err
	}
	spec, closeSpec, err := a.specs.baseSpec(ctx, &sb)
	defer closeSpec()
	if err == nil {
		spec.Files = pathIfExists(files)
		err = a.runtime.Create(ctx, sb.ID, spec)
	}
	if err != nil {
		in.remove()
		return nil, nil, err
	}
	client, free := a.clients.addStandIn(of.ID, in)
	return client, free, nil
}
