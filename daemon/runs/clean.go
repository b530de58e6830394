package runs

import (
	"context"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/background"
)

// cleaner removes the resources of attempts that have ended.
type cleaner struct {
	lifecycle  caisson.Sandboxes // creates, changes and removes sandboxes
	assign     assignFunc        // assigns a sandbox to a run
	usage      *usageReader      // reads the usage of attempts
	deliverer  *deliverer        // starts deliveries of commits
	budgets    *budgets          // budgets of runs
	dirs       *directories      // directories of runs
	live       *live             // queued and running attempts
	background *background.Group
}

// cleanUp removes the resources that the run no longer needs, in the background. Only a retry or the removal of the same run
// waits for that. If final is true, the archives of the run's workspace are removed, too.
func (c *cleaner) cleanUp(ctx context.Context, x *attempt, final bool) {
	id := x.r.ID
	done := c.live.cleaning(id)
	work := func(context.Context) {
		defer done()
		if x.box.sandbox != nil && x.box.removable {
			if err := c.retryRemoval(func() error { return c.lifecycle.Remove(ctx, string(x.box.sandbox.ID)) }); err != nil && caisson.KindOf(err) != caisson.NotFound {
				x.log.ErrorContext(ctx, "a run's sandbox could not be removed; the next daemon tries again", "sandbox", x.box.sandbox.ID, "err", err)
				// As long as the sandbox exists, it must not call models, least of all after its budget is removed.
				if _, err := c.assign(ctx, x.box.sandbox.ID, nil); err != nil {
					x.log.ErrorContext(ctx, "it keeps its run's budget", "sandbox", x.box.sandbox.ID, "err", err)
					return
				}
			}
		}
		if x.box.sandbox != nil {
			c.usage.update(ctx, x, removalTimeout)
			c.deliverer.release(ctx, x)
		}
		if err := c.retryRemoval(func() error { return c.budgets.dropBudget(ctx, x.r) }); err != nil {
			x.log.ErrorContext(ctx, "a run's budget could not be removed", "err", err)
		}
		if final {
			if err := c.dirs.removeArchives(id); err != nil {
				x.log.ErrorContext(ctx, "a run's copy of its workspace could not be removed", "err", err)
			}
		}
	}
	if !c.background.Start(work) {
		work(ctx) // The daemon is stopping and starts no work in the background, but waits for this goroutine.
	}
}

// removalTimeout is how long the removal of a run's resources is retried.
const removalTimeout = time.Minute

// retryRemoval retries f, which removes a resource, for up to removalTimeout, so that a temporary error does not leave a
// sandbox on the host until the next start of the daemon. It gives up when the daemon stops.
func (c *cleaner) retryRemoval(f func() error) error {
	end := time.Now().Add(removalTimeout)
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		err := f()
		if err == nil || caisson.KindOf(err) == caisson.NotFound || time.Now().After(end) {
			return err
		}
		select {
		case <-time.After(wait):
		case <-c.background.Context().Done():
			return err
		}
	}
}
