package sandboxes

import (
	"context"
	"log/slog"
	"os"

	"github.com/caisson-dev/caisson"
)

// reconciler makes store and host consistent when the daemon starts.
type reconciler struct {
	runtime    lister
	states     states
	templates  caisson.Table[caisson.Template]
	resolver   *resolver
	garbage    *garbage
	network    network
	watches    *watches
	deadlines  *deadlines
	pool       *pool
	unresolved *idSet
	log        *slog.Logger
}

// reconcile implements [Core.Reconcile], but does not start the background work.
func (r *reconciler) reconcile(ctx context.Context, netns func(caisson.ID) (*os.File, error)) ([]caisson.Garbage, error) {
	list, err := r.runtime.List(ctx)
	if err != nil {
		return nil, err
	}
	exist := map[caisson.ID]caisson.RuntimeSandbox{}
	for _, x := range list {
		exist[x.ID] = x
	}
	boxes, err := r.states.list(ctx, caisson.AllAccounts())
	if err != nil {
		return nil, err
	}
	for _, sb := range boxes {
		if err := r.resolver.reconcile(ctx, sb, exist[sb.ID]); err != nil {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			// One sandbox that cannot be reconciled must not make the others unavailable. It can still be removed, and
			// its next change tries again.
			r.unresolved.set(sb.ID, true)
			r.log.ErrorContext(ctx, "a sandbox could not be reconciled", "sandbox", sb.ID, "state", sb.State, "err", err)
		}
	}
	garbage, err := r.garbage.collect(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return garbage, context.Cause(ctx)
		}
		r.log.ErrorContext(ctx, "not all that an earlier daemon had left could be removed; caisson gc tries again", "err", err)
	}
	boxes, err = r.states.list(ctx, caisson.AllAccounts())
	if err != nil {
		return garbage, err
	}
	for _, sb := range boxes {
		if wired(sb) {
			if err := r.network.reattach(ctx, sb, netns); err != nil {
				// The sandbox may have died just now, which its watch detects. Otherwise it has no network access,
				// which is safe.
				r.log.ErrorContext(ctx, "the wire of a sandbox could not be reattached", "sandbox", sb.ID, "err", err)
				r.states.event(ctx, sb, "sandbox.disconnected", nil)
			}
			r.watches.watch(sb)
		}
		r.deadlines.arm(sb)
	}
	return garbage, nil
}

// refillPools starts to fill the pools of all templates, in the background.
func (r *reconciler) refillPools(ctx context.Context) error {
	tpls, err := listAll(ctx, r.templates, caisson.AllAccounts(), func(t *caisson.Template) caisson.ID { return caisson.ID(t.Name) })
	for _, t := range tpls {
		if t.Pool > 0 {
			r.pool.refill(t)
		}
	}
	return err
}
