package repos

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/caisson-dev/caisson"
)

// Reconcile brings store and directories into agreement after a restart. It must return before anything else is asked of the core.
func (c *Core) Reconcile(ctx context.Context) error {
	// What was being sent when the daemon ended is asked for again: the remote says how far it came.
	sending, err := c.sender.all(ctx, caisson.DeliverySending)
	if err != nil {
		return err
	}
	for _, d := range sending {
		if _, err := c.Store.Deliveries().Update(ctx, caisson.Everyone(), d.ID, func(d *caisson.Delivery) error {
			d.State = caisson.DeliveryWaiting
			return nil
		}); err != nil {
			return err
		}
	}
	accounts, err := names(filepath.Join(c.Dir, topDir))
	if err != nil {
		return err
	}
	for _, account := range accounts {
		list, err := names(filepath.Join(c.Dir, topDir, account))
		if err != nil {
			return err
		}
		for _, repo := range list {
			if err := c.keeper.reconcile(ctx, account, repo); err != nil {
				return err
			}
		}
	}
	return nil
}

// reconcile looks at the directories of one repository.
func (c keeper) reconcile(ctx context.Context, account, repo string) error {
	r, err := c.Store.Repos().Get(ctx, caisson.In(account), repo)
	switch {
	case caisson.KindOf(err) == caisson.NotFound:
		return os.RemoveAll(c.dir(account, repo))
	case err != nil:
		return err
	}
	if r.FetchedAt.IsZero() { // it was being added
		return errors.Join(c.Store.Repos().Delete(ctx, caisson.In(account), repo), os.RemoveAll(c.dir(account, repo)))
	}
	if err := errors.Join(os.RemoveAll(c.dir(account, repo, newDir)), c.makeRepo(account, repo)); err != nil {
		return err
	}
	list, err := names(c.dir(account, repo, storesDir))
	if err != nil {
		return err
	}
	for _, name := range list {
		if !strings.HasSuffix(name, ".json") {
			if _, err := os.Lstat(c.dir(account, repo, storesDir, name+".json")); err != nil { // it was being made, or removed
				if err := os.RemoveAll(c.dir(account, repo, storesDir, name)); err != nil {
					return err
				}
			}
			continue
		}
		g, err := readGrant(c.dir(account, repo, storesDir, name))
		if err != nil {
			c.Log.ErrorContext(ctx, "a grant cannot be read; its sandbox has lost its repository", "repo", repo, "file", name, "err", err)
			continue
		}
		if g.Cloning {
			if err := c.grants.forget(g); err != nil {
				return err
			}
			continue
		}
		c.grants.know(g)
	}
	return nil
}

// Leave implements [caisson.Relay].
func (c *Core) Leave(ctx context.Context, sandbox caisson.ID) error {
	c.mu.Lock()
	var list []*grant
	for _, g := range c.have[sandbox] {
		list = append(list, g)
	}
	c.mu.Unlock()
	var errs error
	for _, g := range list {
		unlock, err := c.lock(ctx, g.Account, g.Repo)
		if err == nil {
			err = c.keeper.release(ctx, g)
			unlock()
		}
		errs = errors.Join(errs, err)
	}
	return errs
}

// release removes a sandbox's store, unless the sandbox is still there or a delivery needs it. Whoever calls it has the lock.
func (c keeper) release(ctx context.Context, g *grant) error {
	sb, err := c.Store.Sandboxes().Get(ctx, caisson.Everyone(), string(g.Sandbox))
	switch {
	case err != nil && caisson.KindOf(err) != caisson.NotFound:
		return err
	case err == nil && sb.State != caisson.Removing:
		return nil
	}
	if needed, err := c.needed(ctx, g); err != nil || needed {
		return err
	}
	defer c.space.forget(g.Account)
	return c.grants.forget(g)
}

// needed reports whether a delivery needs what a sandbox has pushed.
func (c keeper) needed(ctx context.Context, g *grant) (bool, error) {
	f := caisson.DeliveryFilter{Repo: g.Repo, Limit: 1000, States: []caisson.DeliveryState{
		caisson.DeliveryWaiting, caisson.DeliverySending, caisson.DeliveryHeld, caisson.DeliveryFailed,
	}}
	for {
		page, more, err := c.Store.Deliveries().List(ctx, caisson.In(g.Account), f)
		if err != nil {
			return true, err
		}
		for _, d := range page {
			f.Before = d.ID
			old := (d.State == caisson.DeliveryFailed || d.State == caisson.DeliveryHeld) && now().Sub(wanted(d)) > c.Limits.Keep
			if d.Sandbox == g.Sandbox && !old {
				return true, nil
			}
		}
		if !more {
			return false, nil
		}
	}
}

// housekeep removes stores and views that nobody needs any more. A repository that somebody changes, or that a slow remote holds up, is
// left for the next time: deliveries do not wait for it.
func (c keeper) housekeep(ctx context.Context) {
	accounts, err := names(filepath.Join(c.Dir, topDir))
	for _, account := range accounts {
		list, e := names(filepath.Join(c.Dir, topDir, account))
		err = errors.Join(err, e)
		for _, repo := range list {
			c.sweep(ctx, account, repo)
		}
	}
	if err != nil {
		c.Log.WarnContext(ctx, "what nobody needs of repositories could not be looked for", "err", err)
	}
}

// sweep tidies one repository unless somebody changes it.
func (c keeper) sweep(ctx context.Context, account, repo string) {
	unlock, ok := c.locks.Try(account + "/" + repo)
	if !ok {
		return
	}
	defer unlock()
	if err := c.tidy(ctx, account, repo); err != nil && ctx.Err() == nil {
		c.Log.WarnContext(ctx, "what nobody needs of a repository could not be removed", "account", account, "repo", repo, "err", err)
	}
}

// tidy removes of one repository the stores of sandboxes that have gone, and the views that no grant has. Whoever calls it has the lock.
func (c keeper) tidy(ctx context.Context, account, repo string) error {
	var errs error
	for _, g := range c.of(account, repo) {
		errs = errors.Join(errs, c.release(ctx, g))
	}
	used := map[string]bool{}
	for _, g := range c.of(account, repo) {
		used[g.View] = true
	}
	list, err := names(c.dir(account, repo, viewsDir))
	for _, key := range list {
		if !used[key] {
			errs = errors.Join(errs, os.RemoveAll(c.dir(account, repo, viewsDir, key)))
		}
	}
	return errors.Join(errs, err)
}

// of returns the grants of a repository.
func (c keeper) of(account, repo string) (list []*grant) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, of := range c.have {
		if g := of[repo]; g != nil && g.Account == account {
			list = append(list, g)
		}
	}
	return list
}
