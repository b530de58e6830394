package workspaces

import (
	"context"
	"errors"
	"os"

	"github.com/caisson-dev/caisson"
)

// Reconcile completes the work that an earlier daemon left incomplete: it rolls back or completes syncs, calls [Layers.Detach]
// for workspaces whose sandbox was removed, and removes directories without a workspace and workspaces without a directory. It
// must be called after the sandboxes in the store agree with those on the host, and before anything else uses the core. Errors
// with single workspaces are only logged.
func (c *Core) Reconcile(ctx context.Context) error {
	if err := c.removeTrials(ctx); err != nil {
		return err
	}
	known := map[string]bool{}
	var gone, resting []*caisson.Workspace
	err := c.eachWorkspace(ctx, func(w *caisson.Workspace) {
		known[string(w.ID)] = true
		if _, err := os.Lstat(c.dir(w.ID)); errors.Is(err, os.ErrNotExist) {
			gone = append(gone, w)
			return
		}
		if err := c.removals.mergeOld(w); err != nil && ctx.Err() == nil {
			c.cfg.Log.WarnContext(ctx, "counts of removals of an earlier version could not be read", "workspace", w.ID, "err", err)
		}
		if err := c.syncs.recoverAt(ctx, w); err != nil && ctx.Err() == nil {
			c.cfg.Log.ErrorContext(ctx, "a sync that was under way could not be ended; the next one tries again", "workspace", w.ID, "err", err)
		}
		if w.State == caisson.WorkspaceLive {
			if _, err := c.cfg.Store.Sandboxes().Get(ctx, caisson.AllAccounts(), string(w.Sandbox)); caisson.KindOf(err) == caisson.NotFound && err != nil {
				resting = append(resting, w)
			}
		}
	})
	if err != nil {
		return err
	}
	for _, w := range gone {
		c.cfg.Log.WarnContext(ctx, "a workspace without its directory was removed", "workspace", w.ID)
		if err := c.cfg.Store.Workspaces().Delete(ctx, caisson.AllAccounts(), w.ID); err != nil {
			return err
		}
	}
	for _, w := range resting {
		if err := c.Layers().Detach(ctx, w.ID); err != nil {
			c.cfg.Log.ErrorContext(ctx, "a workspace without a sandbox could not be detached", "workspace", w.ID, "err", err)
		}
	}
	return c.reconcileDirs(ctx, known)
}

// reconcileDirs removes directories that belong to no workspace.
func (c *Core) reconcileDirs(ctx context.Context, known map[string]bool) error {
	entries, err := os.ReadDir(string(c.directory))
	for _, e := range entries {
		if !known[e.Name()] {
			c.cfg.Log.WarnContext(ctx, "removed a directory of no workspace", "name", e.Name())
			err = errors.Join(err, removeTree(c.dir(caisson.ID(e.Name()))))
		}
	}
	c.clean(ctx, now())
	return err
}
