package workspaces

import (
	"context"
	"time"

	"github.com/caisson-dev/caisson"
)

// autoActor is who applies automatically, in receipts.
const autoActor = "auto"

// Run applies changes automatically where that was asked for, and forgets what is old, until ctx ends.
func (c *Core) Run(ctx context.Context) error {
	apply, clean := time.NewTicker(c.Every), time.NewTicker(housekeep)
	defer apply.Stop()
	defer clean.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.ctx.Done():
			return nil
		case <-apply.C:
			c.applyAll(ctx)
		case <-clean.C:
			c.clean(ctx, now())
		}
	}
}

// each calls f with every workspace in one of these states.
func (c *Core) each(ctx context.Context, f func(*caisson.Workspace), states ...caisson.WorkspaceState) error {
	var all []*caisson.Workspace // first, because f may delete some
	filter := caisson.WorkspaceFilter{States: states, Limit: 1000}
	for more := true; more; {
		page, rest, err := c.Store.Workspaces().List(ctx, caisson.Everyone(), filter)
		if err != nil {
			return err
		}
		if more = rest; len(page) > 0 {
			filter.Before = page[len(page)-1].ID
		}
		all = append(all, page...)
	}
	for _, w := range all {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		f(w)
	}
	return nil
}

// applyAll applies what may be applied automatically. One workspace's failure is no other's.
func (c *Core) applyAll(ctx context.Context) {
	err := c.each(ctx, func(w *caisson.Workspace) {
		if w.Mode != caisson.SyncYolo || ctx.Err() != nil {
			return
		}
		release, ok := c.locks.Try(string(w.ID))
		if !ok {
			return // somebody looks at it; it has its turn the next time
		}
		defer release()
		if err := c.syncs.applyAlone(ctx, w); err != nil && ctx.Err() == nil {
			c.Log.WarnContext(ctx, "changes could not be applied automatically; that is tried again", "workspace", w.ID, "err", err)
		}
	}, caisson.WorkspaceLive)
	if err != nil && ctx.Err() == nil {
		c.Log.ErrorContext(ctx, "workspaces could not be listed", "err", err)
	}
}

// applyAlone applies whatever passes every check, on nobody's request. The caller holds w.
func (c syncs) applyAlone(ctx context.Context, w *caisson.Workspace) error {
	host, err := c.openHost(w, 0)
	if err != nil {
		return err
	}
	defer host.Close()
	s := &syncing{c: c.Core, w: w, host: host, by: autoActor}
	_, err = s.do(ctx, &caisson.SyncRequest{Auto: true})
	return err
}

// clean forgets reviews and workspaces that are old.
func (c *Core) clean(ctx context.Context, at time.Time) {
	err := c.each(ctx, func(w *caisson.Workspace) {
		if err := c.cleanOne(ctx, w, at); err != nil && caisson.KindOf(err) != caisson.NotFound && ctx.Err() == nil {
			c.Log.WarnContext(ctx, "what is old of a workspace could not be removed", "workspace", w.ID, "err", err)
		}
	})
	if err != nil && ctx.Err() == nil {
		c.Log.ErrorContext(ctx, "old workspaces could not be found", "err", err)
	}
}

func (c *Core) cleanOne(ctx context.Context, w *caisson.Workspace, at time.Time) error {
	keep, last := c.Keep, w.EndedAt
	if w.State == caisson.WorkspaceSettled {
		keep = min(keep, keepSettled)
	}
	if w.SyncedAt.After(last) {
		last = w.SyncedAt
	}
	if w.State != caisson.WorkspaceLive && at.Sub(last) > keep {
		return c.remove(ctx, w.ID)
	}
	release, ok := c.locks.Try(string(w.ID))
	if !ok {
		return nil
	}
	defer release()
	if w.Kind == caisson.WorkspaceDirect {
		return nil
	}
	return c.reviews.trimReviews(w.ID, at)
}
