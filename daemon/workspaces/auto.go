package workspaces

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/background"
)

// autoActor is the actor that receipts of automatic syncs name.
const autoActor = "auto"

// Run applies the changes that pass every check in workspaces of mode yolo, saves which processes were the last to change files,
// and removes old data, each periodically, until ctx ends.
func (c *Core) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.layerFiles.background.Context(), cancel)()
	var wg sync.WaitGroup
	wg.Go(func() { background.Every(ctx, c.cfg.ApplyInterval, c.saveAllWriters) })
	wg.Go(func() { background.Every(ctx, cleanInterval, func(ctx context.Context) { c.clean(ctx, now()) }) })
	background.Every(ctx, c.cfg.ApplyInterval, c.applyAll)
	wg.Wait()
	return nil
}

// eachWorkspace calls f with every workspace that is in one of the states, or with every workspace if no states are given.
func (c *Core) eachWorkspace(ctx context.Context, f func(*caisson.Workspace), states ...caisson.WorkspaceState) error {
	var all []*caisson.Workspace // listed before the first call of f, because f may delete some
	filter := caisson.WorkspaceFilter{States: states, Limit: 1000}
	next := func(f *caisson.WorkspaceFilter, w *caisson.Workspace) { f.Before = w.ID }
	for w, err := range caisson.All(ctx, c.cfg.Store.Workspaces().List, caisson.AllAccounts(), filter, next) {
		if err != nil {
			return err
		}
		all = append(all, w)
	}
	for _, w := range all {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		f(w)
	}
	return nil
}

// applyAll applies the changes that pass every check in all live workspaces of mode yolo. An error in one workspace does not
// affect the others. If commands must check the changes, which takes long, it does not wait until the changes are applied.
func (c *Core) applyAll(ctx context.Context) {
	err := c.eachWorkspace(ctx, func(w *caisson.Workspace) {
		if w.Mode != caisson.SyncYolo || ctx.Err() != nil {
			return
		}
		release, ok := c.layerFiles.locks.Try(string(w.ID))
		if !ok {
			return // The workspace is in use; the next tick tries again.
		}
		apply := func(ctx context.Context) {
			defer release()
			c.layerFiles.saveDeferredBase(ctx, w.ID)
			if err := c.applyNow(ctx, w); err != nil && ctx.Err() == nil {
				c.cfg.Log.WarnContext(ctx, "changes could not be applied automatically; will try again", "workspace", w.ID, "err", err)
			}
		}
		if len(c.cfg.Settings.Commands) == 0 {
			apply(ctx)
		} else if !c.layerFiles.background.Start(apply) {
			release()
		}
	}, caisson.WorkspaceLive)
	if err != nil && ctx.Err() == nil {
		c.cfg.Log.ErrorContext(ctx, "workspaces could not be listed", "err", err)
	}
}

// applyNow waits for a job slot and applies all changes in w that pass every check, unless a command has refused changes
// recently. The caller must hold the lock of w but no job slot.
func (c *Core) applyNow(ctx context.Context, w *caisson.Workspace) error {
	if off, err := c.refusals.backingOff(w.ID, ""); err != nil || off {
		return err
	}
	if err := c.layerFiles.acquireSlot(ctx); err != nil {
		return err
	}
	defer func() { <-c.layerFiles.jobSlots }()
	return c.applyAuto(ctx, w)
}

// errBackoff is the error of an automatic sync that is delayed, because a command has recently refused the changes.
var errBackoff = errors.New("a command has recently refused these changes")

// applyAuto applies all changes that pass every check, without a request of a client. The caller must hold the lock of w and
// a job slot.
func (c *Core) applyAuto(ctx context.Context, w *caisson.Workspace) error {
	host, err := openHost(w, 0)
	if err != nil {
		return err
	}
	defer host.Close()
	s := &syncRun{c: c, w: w, host: host, by: autoActor, auto: true}
	_, err = s.run(ctx, &caisson.SyncRequest{Auto: true})
	if errors.Is(err, errBackoff) {
		return nil
	}
	return err
}

// clean removes old workspaces and reviews, and old numbers of existing and removed own files of directories without workspaces.
func (c *Core) clean(ctx context.Context, at time.Time) {
	used := map[string]bool{}
	err := c.eachWorkspace(ctx, func(w *caisson.Workspace) {
		used[filepath.Base(c.removals.file(w))] = true
		if err := c.cleanOne(ctx, w, at); err != nil && caisson.KindOf(err) != caisson.NotFound && ctx.Err() == nil {
			c.cfg.Log.WarnContext(ctx, "old data of a workspace could not be removed", "workspace", w.ID, "err", err)
		}
	})
	if err != nil && ctx.Err() == nil {
		c.cfg.Log.ErrorContext(ctx, "old workspaces could not be found", "err", err)
	}
	if err == nil {
		if err := c.removals.clean(used, at.Add(-time.Duration(c.cfg.Settings.Keep))); err != nil {
			c.cfg.Log.WarnContext(ctx, "old counts of removals could not be removed", "err", err)
		}
	}
}

// cleanOne removes a workspace that was kept for its retention time, or else its old reviews and, if its sandbox was removed, the
// copy of its directory that the sandbox worked on.
func (c *Core) cleanOne(ctx context.Context, w *caisson.Workspace, at time.Time) error {
	keep, last := time.Duration(c.cfg.Settings.Keep), w.EndedAt
	if w.State == caisson.WorkspaceSettled {
		keep = min(keep, keepSettled)
	}
	if w.SyncedAt.After(last) {
		last = w.SyncedAt
	}
	if w.State != caisson.WorkspaceLive && at.Sub(last) > keep {
		return c.remove(ctx, w.ID)
	}
	release, ok := c.layerFiles.locks.Try(string(w.ID))
	if !ok {
		return nil
	}
	defer release()
	if w.Kind == caisson.WorkspaceDirect {
		return nil
	}
	return errors.Join(c.layerFiles.removeCopy(w), c.reviews.trimReviews(w.ID, at))
}
