package sandboxes

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/guesttree"
)

// resolver determines the outcome of changes that were not completed, or whose outcome could not be stored.
type resolver struct {
	runtime interface {
		lister
		Thaw(ctx context.Context, id caisson.ID) error
	}
	states     states     // stored records of sandboxes
	dirs       dirs       // paths and files in the data directory
	freezer    *freezer   // freezes and thaws sandboxes
	processes  *processes // starts and kills processes of sandboxes
	watches    *watches   // monitors running sandboxes
	deadlines  *deadlines // timers for TTLs and autoPause
	remover    *remover   // removes sandboxes
	unresolved *idSet     // sandboxes whose last change has an outcome that is not stored
	log        *slog.Logger
}

// resolve determines the outcome of a change whose outcome could not be stored, as the next daemon would do, so that the
// sandbox need not wait for a restart. The caller must hold the sandbox's lock, so that no change is in progress.
func (r *resolver) resolve(ctx context.Context, id caisson.ID) error {
	sb, err := r.states.get(ctx, id)
	if err != nil || !sb.State.Transient() || sb.State == caisson.Creating || sb.State == caisson.Removing {
		// An incomplete creation or removal is left to the next start of the daemon, because reconcile would remove the sandbox.
		return err
	}
	list, err := r.runtime.List(ctx)
	if err != nil {
		return err
	}
	var found caisson.RuntimeSandbox
	if i := slices.IndexFunc(list, func(x caisson.RuntimeSandbox) bool { return x.ID == id }); i >= 0 {
		found = list[i]
	}
	if err := r.reconcile(ctx, sb, found); err != nil {
		return err
	}
	if sb, err = r.states.get(ctx, id); err != nil {
		return err
	}
	if hasWire(sb) {
		r.watches.ensureWatched(sb)
	}
	r.deadlines.arm(sb)
	r.unresolved.set(id, false)
	return nil
}

// lostReason is the reason of a failed sandbox that should be running but is not.
const lostReason = "the sandbox ended while no daemon was running (or the host restarted, or a backup was restored); state that was not saved by a pause, stop or snapshot is lost"

// thawTimeout is the timeout for thawing or freezing one sandbox when the daemon starts.
const thawTimeout = 3 * time.Second

// reconcile determines the state of one sandbox, stores it, and removes the files that do not belong to that state. found is the
// runtime's entry for the sandbox, or zero if the runtime has none.
func (r *resolver) reconcile(ctx context.Context, sb *caisson.Sandbox, found caisson.RuntimeSandbox) error {
	paused := pathIfExists(r.dirs.sandboxPath(sb.ID, pauseDir)) != ""
	files := pathIfExists(r.dirs.sandboxPath(sb.ID, filesTar)) != ""
	to, reason := stateAfterCrash(sb.State, found.Running, paused, files)
	if to == caisson.Created && isMissing(r.dirs.sandboxDir(sb.ID)) {
		to, reason = caisson.Failed, goneReason
	}
	switch to {
	case caisson.Removing:
		// Either the creation of the sandbox was not acknowledged to the client, or its removal was requested.
		return errors.Join(r.remover.remove(ctx, sb.ID, "the daemon ended during "+string(sb.State)), r.undo(ctx, sb.Plan))
	case caisson.Running:
		// The sandbox may be frozen by an incomplete change or, if its stored state is Running, by a snapshot or fork that was
		// interrupted when the daemon stopped. Thawing a sandbox that is not frozen returns a Conflict error, which is ignored.
		tctx, cancel := context.WithTimeout(ctx, thawTimeout)
		defer cancel()
		if err := r.runtime.Thaw(tctx, sb.ID); err != nil && caisson.KindOf(err) != caisson.Conflict {
			r.log.WarnContext(ctx, "a sandbox may still be frozen", "sandbox", sb.ID, "err", err)
		}
	case caisson.Suspended:
		fctx, cancel := context.WithTimeout(ctx, thawTimeout)
		defer cancel()
		if err := r.freezer.freeze(fctx, sb.ID); err != nil {
			r.log.WarnContext(ctx, "a suspended sandbox may not be frozen", "sandbox", sb.ID, "err", err)
		}
	default:
		if found.ID != "" {
			if err := r.processes.halt(ctx, sb.ID); err != nil {
				return err
			}
		}
	}
	if to != sb.State {
		updated, err := r.states.set(ctx, sb.ID, to, func(x *caisson.Sandbox) error {
			if reason != "" {
				x.Reason = reason
			}
			return nil
		})
		if err != nil {
			return err
		}
		r.states.event(ctx, updated, "sandbox."+string(to), map[string]string{"reconciled": string(sb.State)})
	}
	if err := r.removeParts(sb.ID); err != nil {
		return err
	}
	switch to {
	case caisson.Running, caisson.Suspended:
		return r.dirs.dropSaved(sb.ID, pauseDir, filesTar)
	case caisson.Paused:
		return r.dirs.dropSaved(sb.ID, filesTar)
	case caisson.Stopped:
		return r.dirs.dropSaved(sb.ID, pauseDir)
	}
	return nil
}

// undo removes the temporary capture of a sandbox that was forked if the creation of the fork, whose stored plan is p, was not
// completed. p is nil for a sandbox of an earlier build.
func (r *resolver) undo(ctx context.Context, p *caisson.Plan) error {
	if p == nil || p.Version > caisson.PlanVersion {
		return nil // The plan is missing or of a newer build. If there is a capture, it is removed as garbage.
	}
	if _, err := caisson.ParseID(caisson.SnapshotPrefix, string(p.Capture)); err != nil {
		return nil // The plan has no capture.
	}
	return guesttree.Remove(ctx, r.dirs.snapshotDir(p.Capture))
}

// stateAfterCrash returns the state of a sandbox after a crash of the daemon, and the reason if the sandbox has failed
// because of it. was is the stored state; running reports whether the sandbox's processes run, paused whether a checkpoint in its
// directory exists, and files whether an archive of its files exists. The result Removing means that the caller must remove it.
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
			return caisson.Failed, goneReason
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
		// The suspension may have been interrupted before it froze the sandbox, so the caller freezes the sandbox.
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

// removeParts removes the incomplete files that a crash has left in a sandbox's directory.
func (r *resolver) removeParts(id caisson.ID) error {
	dir := r.dirs.sandboxDir(id)
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
