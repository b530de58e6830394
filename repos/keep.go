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
		_, err := c.keeper.release(ctx, g)
		errs = errors.Join(errs, err)
	}
	return errs
}

// release removes a sandbox's store, unless the sandbox is still there or a delivery needs it.
func (c keeper) release(ctx context.Context, g *grant) (gone bool, err error) {
	unlock, err := c.lock(ctx, g.Account, g.Repo)
	if err != nil {
		return false, err
	}
	defer unlock()
	sb, err := c.Store.Sandboxes().Get(ctx, caisson.Everyone(), string(g.Sandbox))
	switch {
	case err != nil && caisson.KindOf(err) != caisson.NotFound:
		return false, err
	case err == nil && sb.State != caisson.Removing:
		return false, nil
	}
	if needed, err := c.needed(ctx, g); err != nil || needed {
		return false, err
	}
	c.mu.Lock()
	delete(c.have[g.Sandbox], g.Repo)
	if len(c.have[g.Sandbox]) == 0 {
		delete(c.have, g.Sandbox)
	}
	c.mu.Unlock()
	store := c.dir(g.Account, g.Repo, storesDir, string(g.Sandbox))
	if err := errors.Join(os.RemoveAll(store), os.Remove(store+".json")); err != nil {
		return false, err
	}
	return true, nil
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
			old := (d.State == caisson.DeliveryFailed || d.State == caisson.DeliveryHeld) && now().Sub(d.CreatedAt) > c.Limits.Keep
			if d.Sandbox == g.Sandbox && !old {
				return true, nil
			}
		}
		if !more {
			return false, nil
		}
	}
}

// housekeep removes stores and views that nobody needs any more.
func (c keeper) housekeep(ctx context.Context) {
	c.mu.Lock()
	repos := map[[2]string]bool{}
	var list []*grant
	for _, of := range c.have {
		for _, g := range of {
			list = append(list, g)
			repos[[2]string{g.Account, g.Repo}] = true
		}
	}
	c.mu.Unlock()
	for _, g := range list {
		if _, err := c.release(ctx, g); err != nil && ctx.Err() == nil {
			c.Log.WarnContext(ctx, "what a sandbox has pushed could not be removed", "sandbox", g.Sandbox, "repo", g.Repo, "err", err)
		}
	}
	for r := range repos {
		if err := c.dropViews(ctx, r[0], r[1]); err != nil && ctx.Err() == nil {
			c.Log.WarnContext(ctx, "old parts of a repository could not be removed", "repo", r[1], "err", err)
		}
	}
}

// dropViews removes the views of a repository that no grant has.
func (c keeper) dropViews(ctx context.Context, account, repo string) error {
	release, err := c.lock(ctx, account, repo)
	if err != nil {
		return err
	}
	defer release()
	used := map[string]bool{}
	c.mu.Lock()
	for _, of := range c.have {
		if g := of[repo]; g != nil && g.Account == account {
			used[g.View] = true
		}
	}
	c.mu.Unlock()
	list, err := names(c.dir(account, repo, viewsDir))
	for _, key := range list {
		if !used[key] {
			err = errors.Join(err, os.RemoveAll(c.dir(account, repo, viewsDir, key)))
		}
	}
	return err
}
