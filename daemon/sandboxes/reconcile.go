package sandboxes

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/guesttree"
)

// reconciler determines the outcome of changes that an earlier daemon did not complete.
type reconciler struct{ c *Core }

// Reconcile makes store and host consistent after a start of the daemon: acknowledged sandboxes are recovered or marked
// as failed, incomplete changes are completed or rolled back, and processes and directories of unknown sandboxes are
// removed and returned. netns opens the network namespace of a running sandbox, for its wire. Reconcile must return
// before the core is used otherwise.
func (c *Core) Reconcile(ctx context.Context, netns func(caisson.ID) (*os.File, error)) ([]caisson.Garbage, error) {
	r := &reconciler{c}
	list, err := c.Runtime.List(ctx)
	if err != nil {
		return nil, err
	}
	exist := map[caisson.ID]caisson.RuntimeSandbox{}
	for _, x := range list {
		exist[x.ID] = x
	}
	boxes, err := listAll(ctx, c.Store.Sandboxes(), caisson.AllAccounts(), func(s *caisson.Sandbox) caisson.ID { return s.ID })
	if err != nil {
		return nil, err
	}
	for _, sb := range boxes {
		if err := r.reconcileOne(ctx, sb, exist[sb.ID]); err != nil {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			// One sandbox that cannot be reconciled must not make the others unavailable. It can still be removed, and
			// its next change tries again.
			c.unresolved.set(sb.ID, true)
			c.Log.ErrorContext(ctx, "a sandbox could not be reconciled", "sandbox", sb.ID, "state", sb.State, "err", err)
		}
	}
	garbage, err := c.CollectGarbage(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return garbage, context.Cause(ctx)
		}
		c.Log.ErrorContext(ctx, "not all that an earlier daemon had left could be removed; caisson gc tries again", "err", err)
	}
	boxes, err = listAll(ctx, c.Store.Sandboxes(), caisson.AllAccounts(), func(s *caisson.Sandbox) caisson.ID { return s.ID })
	if err != nil {
		return garbage, err
	}
	for _, sb := range boxes {
		if wired(sb) {
			if err := c.network.reattach(ctx, sb, netns); err != nil {
				// The sandbox may have died just now, which its watch detects. Otherwise it has no network access,
				// which is safe.
				c.Log.ErrorContext(ctx, "the wire of a sandbox could not be reattached", "sandbox", sb.ID, "err", err)
				c.states.event(ctx, sb, "sandbox.disconnected", nil)
			}
			c.watches.watch(sb)
		}
		c.deadlines.arm(sb)
	}
	c.background.Start(c.diskGuard.run)
	return garbage, r.refillPools(ctx)
}

// resolve determines the outcome of a change whose outcome could not be stored, as the next daemon would do, so that the
// sandbox need not wait for a restart. The caller must hold the sandbox's lock, so that no change is in progress.
func (r *reconciler) resolve(ctx context.Context, id caisson.ID) error {
	sb, err := r.c.Store.Sandboxes().Get(ctx, caisson.AllAccounts(), string(id))
	if err != nil || !sb.State.Transient() || sb.State == caisson.Creating || sb.State == caisson.Removing {
		// An incomplete creation or removal is left to the next start of the daemon, because reconcileOne would remove the
		// sandbox.
		return err
	}
	list, err := r.c.Runtime.List(ctx)
	if err != nil {
		return err
	}
	var found caisson.RuntimeSandbox
	if i := slices.IndexFunc(list, func(x caisson.RuntimeSandbox) bool { return x.ID == id }); i >= 0 {
		found = list[i]
	}
	if err := r.reconcileOne(ctx, sb, found); err != nil {
		return err
	}
	if sb, err = r.c.Store.Sandboxes().Get(ctx, caisson.AllAccounts(), string(id)); err != nil {
		return err
	}
	if wired(sb) {
		r.c.watches.ensureWatched(sb)
	}
	r.c.deadlines.arm(sb)
	r.c.unresolved.set(id, false)
	return nil
}

// refillPools starts to fill the pools of all templates, in the background.
func (r *reconciler) refillPools(ctx context.Context) error {
	tpls, err := listAll(ctx, r.c.Store.Templates(), caisson.AllAccounts(), func(t *caisson.Template) caisson.ID { return caisson.ID(t.Name) })
	for _, t := range tpls {
		if t.Pool > 0 {
			r.c.pool.refill(t)
		}
	}
	return err
}

// lostReason is the reason of a failed sandbox that should be running but is not.
const lostReason = "the sandbox ended while no daemon was running (or the host restarted); state that was not saved by a pause, stop or snapshot is lost"

// thawTimeout is the timeout for thawing or freezing one sandbox when the daemon starts.
const thawTimeout = 3 * time.Second

// reconcileOne determines the state of one sandbox, stores it, and removes the files that do not belong to that state.
func (r *reconciler) reconcileOne(ctx context.Context, sb *caisson.Sandbox, found caisson.RuntimeSandbox) error {
	paused := pathIfExists(r.c.inDir(sb.ID, pauseDir)) != ""
	files := pathIfExists(r.c.inDir(sb.ID, filesTar)) != ""
	to, reason := stateAfterCrash(sb.State, found.Running, paused, files)
	switch to {
	case caisson.Removing:
		// Either the creation was not acknowledged, or the removal was requested.
		return r.c.Sandboxes().remove(ctx, sb.ID, "the daemon ended during "+string(sb.State))
	case caisson.Running:
		// The sandbox may be frozen by an incomplete change or, if its stored state is Running, by a snapshot or fork
		// that was interrupted when the daemon stopped. Thawing a sandbox that is not frozen returns a Conflict error,
		// which is ignored.
		tctx, cancel := context.WithTimeout(ctx, thawTimeout)
		defer cancel()
		if err := r.c.Runtime.Thaw(tctx, sb.ID); err != nil && caisson.KindOf(err) != caisson.Conflict {
			r.c.Log.WarnContext(ctx, "a sandbox may still be frozen", "sandbox", sb.ID, "err", err)
		}
	case caisson.Suspended:
		fctx, cancel := context.WithTimeout(ctx, thawTimeout)
		defer cancel()
		if err := r.c.freezer.freeze(fctx, sb.ID); err != nil {
			r.c.Log.WarnContext(ctx, "a suspended sandbox may not be frozen", "sandbox", sb.ID, "err", err)
		}
	default:
		if found.ID != "" {
			if err := r.c.processes.halt(ctx, sb.ID); err != nil {
				return err
			}
		}
	}
	if to != sb.State {
		updated, err := r.c.states.set(ctx, sb.ID, to, func(x *caisson.Sandbox) error {
			if reason != "" {
				x.Reason = reason
			}
			return nil
		})
		if err != nil {
			return err
		}
		r.c.states.event(ctx, updated, "sandbox."+string(to), map[string]string{"reconciled": string(sb.State)})
	}
	if err := r.removeParts(sb.ID); err != nil {
		return err
	}
	switch to {
	case caisson.Running, caisson.Suspended:
		return r.c.dropSaved(sb.ID, pauseDir, filesTar)
	case caisson.Paused:
		return r.c.dropSaved(sb.ID, filesTar)
	case caisson.Stopped:
		return r.c.dropSaved(sb.ID, pauseDir)
	}
	return nil
}

// stateAfterCrash returns the state of a sandbox after a crash of the daemon, and the reason if the sandbox has failed
// because of it. was is the stored state; running reports whether the sandbox's processes run, paused whether its pauseDir
// exists, and files whether its filesTar exists. The result Removing means that the caller must remove the sandbox.
func stateAfterCrash(was caisson.State, running, paused, files bool) (to caisson.State, reason string) {
	switch was {
	case caisson.Creating, caisson.Removing:
		return caisson.Removing, ""
	case caisson.Created, caisson.Failed:
		return was, ""
	case caisson.Starting:
		if files {
			return caisson.Stopped, ""
		}
		return caisson.Created, ""
	case caisson.Stopped:
		if !files {
			return caisson.Failed, "its files are gone from disk"
		}
		return was, ""
	case caisson.Paused:
		if !paused {
			return caisson.Failed, "its pause is gone from disk"
		}
		return was, ""
	case caisson.Pausing, caisson.Resuming:
		if paused {
			return caisson.Paused, ""
		}
	case caisson.Suspended, caisson.Suspending:
		// The sandbox may not have been frozen yet; the caller freezes it.
		if running {
			return caisson.Suspended, ""
		}
	case caisson.Stopping:
		// A stop saves the files before it stops the sandbox, so either the files exist or the sandbox still runs.
		if !running && files {
			return caisson.Stopped, ""
		}
		if !running && paused {
			return caisson.Paused, ""
		}
	}
	if running {
		return caisson.Running, ""
	}
	return caisson.Failed, lostReason
}

// CollectGarbage removes the processes and directories of this data directory that belong to no object of the store,
// and returns them.
func (c *Core) CollectGarbage(ctx context.Context) ([]caisson.Garbage, error) {
	// The host is read first, then the hidden ids, then the store. A change stores or hides its id before it creates
	// anything, so what is found on the host, and is neither hidden nor stored when those are read, is garbage.
	list, err := c.Runtime.List(ctx)
	if err != nil {
		return nil, err
	}
	ids, err := c.Runtime.Remains()
	if err != nil {
		return nil, err
	}
	for _, r := range list {
		ids = append(ids, r.ID)
	}
	ids = append(ids, c.processes.leftovers.list()...)
	slices.Sort(ids)
	ids = slices.Compact(ids)
	boxDirs, err := os.ReadDir(filepath.Join(c.Dir, "sandboxes"))
	if err != nil {
		return nil, err
	}
	snapDirs, err := os.ReadDir(filepath.Join(c.Dir, "snapshots"))
	if err != nil {
		return nil, err
	}
	r := &reconciler{c}
	known, err := r.knownIDs(ctx)
	if err != nil {
		return nil, err
	}
	var found []caisson.Garbage
	var errs []error
	for _, id := range ids {
		if !known[id] {
			errs = append(errs, c.processes.halt(ctx, id))
			found = append(found, caisson.Garbage{Kind: "process", Name: string(id)})
		}
	}
	for _, e := range boxDirs {
		if !known[caisson.ID(e.Name())] {
			errs = append(errs, r.removeGarbageDir("sandboxes", e.Name(), &found))
		}
	}
	for _, e := range snapDirs {
		// The directory of a snapshot that is being written has a suffix; it is kept if the snapshot's id is known.
		id := strings.TrimSuffix(e.Name(), partSuffix)
		if !known[caisson.ID(id)] {
			errs = append(errs, r.removeGarbageDir("snapshots", e.Name(), &found))
		}
	}
	return found, errors.Join(errs...)
}

// knownIDs returns the ids of sandboxes and snapshots that are in the store or in use.
func (r *reconciler) knownIDs(ctx context.Context) (map[caisson.ID]bool, error) {
	c := r.c
	known := map[caisson.ID]bool{}
	for _, id := range c.hidden.list() {
		known[id] = true
	}
	boxes, err := listAll(ctx, c.Store.Sandboxes(), caisson.AllAccounts(), func(s *caisson.Sandbox) caisson.ID { return s.ID })
	if err != nil {
		return nil, err
	}
	snaps, err := listAll(ctx, c.Store.Snapshots(), caisson.AllAccounts(), func(s *caisson.Snapshot) caisson.ID { return s.ID })
	if err != nil {
		return nil, err
	}
	for _, s := range boxes {
		known[s.ID] = true
	}
	for _, s := range snaps {
		known[s.ID] = true
	}
	return known, nil
}

// removeGarbageDir removes the directory called name from the directory kind ("sandboxes" or "snapshots"), and appends it to found.
func (r *reconciler) removeGarbageDir(kind, name string, found *[]caisson.Garbage) error {
	*found = append(*found, caisson.Garbage{Kind: "directory", Name: filepath.Join(kind, name)})
	return guesttree.Remove(context.Background(), filepath.Join(r.c.Dir, kind, name))
}

// removeParts removes the incomplete files of a sandbox that a crash left behind.
func (r *reconciler) removeParts(id caisson.ID) error {
	dir := r.c.sandboxDir(id)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	var errs []error
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), partSuffix) {
			errs = append(errs, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(append(errs, err)...)
}

// Idle reports whether no sandbox needs a running daemon: none is live, changes its state, or has a deadline.
func (c *Core) Idle(ctx context.Context) (bool, error) {
	boxes, err := listAll(ctx, c.Store.Sandboxes(), caisson.AllAccounts(), func(s *caisson.Sandbox) caisson.ID { return s.ID })
	if err != nil {
		return false, err
	}
	for _, sb := range boxes {
		if sb.State.Live() || sb.State.Transient() || sb.PauseAt != nil || sb.RemoveAt != nil {
			return false, nil
		}
	}
	return true, nil
}
