package repos

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/keylock"
)

// keeper removes stores, views and repositories, and refuses work for accounts that have used up their space.
type keeper struct {
	repos      caisson.Table[caisson.Repo]
	sandboxes  caisson.Table[caisson.Sandbox]
	deliveries deliveries    // deliveries in the store
	dirs       *directories  // directories of repositories
	grants     *grants       // grants of all repositories
	space      *space        // measures the space of accounts
	measuring  keylock.Locks // by account; held while its space is measured for a push
	keep       time.Duration // how long commits that were not delivered are kept
	interval   time.Duration // time between two calls of housekeep
	log        *slog.Logger
}

// reconcile removes directories that an earlier daemon has left incomplete, and loads the grants.
func (k *keeper) reconcile(ctx context.Context) error {
	list, err := k.dirs.all()
	if err != nil {
		return err
	}
	for _, r := range list {
		if err := k.reconcileRepo(ctx, r.account, r.name); err != nil {
			return err
		}
	}
	return nil
}

// reconcileRepo removes a repository if its creation was not completed, its directories if the database does not have it, and
// what an earlier daemon has left incomplete in them; and loads its grants.
func (k *keeper) reconcileRepo(ctx context.Context, account, repo string) error {
	r, err := k.repos.Get(ctx, caisson.In(account), repo)
	switch {
	case caisson.KindOf(err) == caisson.NotFound:
		return os.RemoveAll(k.dirs.path(account, repo))
	case err != nil:
		return err
	}
	if r.FetchedAt.IsZero() { // AddRepo was interrupted
		return errors.Join(k.repos.Delete(ctx, caisson.In(account), repo), os.RemoveAll(k.dirs.path(account, repo)))
	}
	if err := errors.Join(os.RemoveAll(k.dirs.path(account, repo, newDir)), k.dirs.create(account, repo)); err != nil {
		return err
	}
	list, err := names(k.dirs.path(account, repo, storesDir))
	if err != nil {
		return err
	}
	for _, name := range list {
		if !strings.HasSuffix(name, ".json") {
			if _, err := os.Lstat(k.dirs.path(account, repo, storesDir, name+".json")); err != nil { // incomplete store
				if err := os.RemoveAll(k.dirs.path(account, repo, storesDir, name)); err != nil {
					return err
				}
			}
			continue
		}
		g, err := readGrant(k.dirs.path(account, repo, storesDir, name))
		if err != nil {
			k.log.ErrorContext(ctx, "a grant cannot be read; its sandbox has lost its repository", "repo", repo, "file", name, "err", err)
			continue
		}
		if !g.Cloning {
			k.grants.add(g)
		} else if err := k.grants.remove(g); err != nil {
			return err
		}
	}
	return nil
}

// leave removes the stores of a sandbox that is being removed, except those that deliveries need.
func (k *keeper) leave(ctx context.Context, sandbox caisson.ID) (errs error) {
	for _, g := range k.grants.list(func(g *grant) bool { return g.Sandbox == sandbox }) {
		unlock, err := k.dirs.lock(ctx, g.Account, g.Repo)
		if err == nil {
			err = k.release(ctx, g)
			unlock()
		}
		errs = errors.Join(errs, err)
	}
	return errs
}

// release removes a grant and its store, unless the sandbox exists or a delivery needs the store. The caller must hold the
// repository's lock.
func (k *keeper) release(ctx context.Context, g *grant) error {
	sb, err := k.sandboxes.Get(ctx, caisson.AllAccounts(), string(g.Sandbox))
	switch {
	case err != nil && caisson.KindOf(err) != caisson.NotFound:
		return err
	case err == nil && sb.State != caisson.Removing:
		return nil
	}
	unsent := caisson.DeliveryFilter{Repo: g.Repo, States: []caisson.DeliveryState{
		caisson.DeliveryWaiting, caisson.DeliverySending, caisson.DeliveryHeld, caisson.DeliveryFailed,
	}}
	for d, err := range k.deliveries.each(ctx, caisson.In(g.Account), unsent) {
		if err != nil || d.Sandbox == g.Sandbox && !k.expired(d) {
			return err
		}
	}
	defer k.space.forget(g.Account)
	return k.grants.remove(g)
}

// expired reports whether the commits of an unsent delivery need not be kept any longer.
func (k *keeper) expired(d *caisson.Delivery) bool {
	return (d.State == caisson.DeliveryFailed || d.State == caisson.DeliveryHeld) && now().Sub(requestedAt(d)) > k.keep
}

// removeRepo removes the grants and directories of a repository. The caller must hold the repository's lock.
func (k *keeper) removeRepo(account, repo string) error {
	k.grants.removeRepo(account, repo)
	defer k.space.forget(account)
	return os.RemoveAll(k.dirs.path(account, repo))
}

// housekeep removes unused stores and views of all repositories.
func (k *keeper) housekeep(ctx context.Context) {
	list, err := k.dirs.all()
	for _, r := range list {
		k.sweep(ctx, r.account, r.name)
	}
	if err != nil {
		k.log.WarnContext(ctx, "the repositories could not be listed to remove unused stores and views", "err", err)
	}
}

// sweep removes unused stores and views of one repository. If the repository's lock is held, as during a fetch from a slow
// remote, it does nothing; the next housekeep tries again.
func (k *keeper) sweep(ctx context.Context, account, repo string) {
	unlock, ok := k.dirs.tryLock(account, repo)
	if !ok {
		return
	}
	defer unlock()
	if err := k.tidy(ctx, account, repo); err != nil && ctx.Err() == nil {
		k.log.WarnContext(ctx, "unused stores and views of a repository could not be removed", "account", account, "repo", repo, "err", err)
	}
}

// tidy removes the stores of removed sandboxes, except those that deliveries need, and the views that no grant uses. The caller
// must hold the repository's lock.
func (k *keeper) tidy(ctx context.Context, account, repo string) (errs error) {
	ofRepo := func(g *grant) bool { return g.Account == account && g.Repo == repo }
	for _, g := range k.grants.list(ofRepo) {
		errs = errors.Join(errs, k.release(ctx, g))
	}
	used := map[string]bool{}
	for _, g := range k.grants.list(ofRepo) {
		used[g.View] = true
	}
	list, err := names(k.dirs.path(account, repo, viewsDir))
	for _, key := range list {
		if !used[key] {
			errs = errors.Join(errs, os.RemoveAll(k.dirs.path(account, repo, viewsDir, key)))
		}
	}
	return errors.Join(errs, err)
}

// room returns Exhausted if an account has used up its space, even after its unused stores and views were removed. It is called
// before fetches and grants. Those that begin while space is left may exceed it, each by as much as one fetch or grant may store.
// The caller may hold the lock of one repository.
func (k *keeper) room(ctx context.Context, account string) error {
	u, err := k.space.measure(account)
	if err != nil || k.space.check(u) == nil {
		return err
	}
	list, err := names(k.dirs.path(account, ""))
	for _, repo := range list {
		k.sweep(ctx, account, repo)
	}
	if err == nil {
		u, err = k.space.measure(account)
	}
	if err != nil {
		return err
	}
	return k.space.check(u)
}

// roomToPush returns Exhausted if an account has used up its space. It is called before pushes, and unlike room it uses the last
// measurement if that is recent.
func (k *keeper) roomToPush(ctx context.Context, account string) error {
	release, err := k.measuring.Acquire(ctx, account)
	if err != nil {
		return err
	}
	defer release()
	if u, ok := k.space.recent(account); ok {
		return k.space.check(u)
	}
	return k.room(ctx, account)
}
