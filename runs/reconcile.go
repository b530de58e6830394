package runs

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/caisson-dev/caisson"
)

// reconcile does [Core.Reconcile]. What waited waits again; what was under way has failed, as
// nobody heard what its agent said meanwhile, and its sandbox is removed, with which the last of its calls are in the ledger.
func (c restart) reconcile(ctx context.Context) error {
	if err := c.Dir.MkdirAll("runs", 0o700); err != nil {
		return err
	}
	var queued []*caisson.Run
	f := caisson.RunFilter{States: []caisson.RunState{caisson.RunQueued, caisson.RunStarting, caisson.RunRunning}, Limit: 1000}
	for {
		list, more, err := c.Store.Runs().List(ctx, caisson.Everyone(), f)
		if err != nil {
			return err
		}
		for _, r := range list {
			f.Before = r.ID
			// A run within another ends with it, which nobody waits for any more.
			if r.State == caisson.RunQueued && len(r.Lineage) == 0 {
				queued = append(queued, r)
				continue
			}
			if err := c.fail(ctx, r); err != nil {
				return err
			}
		}
		if !more {
			break
		}
	}
	if err := c.reconcileEnds(ctx); err != nil {
		return err
	}
	if err := c.reconcileSessions(ctx); err != nil {
		return err
	}
	if err := c.reconcileBoxes(ctx); err != nil {
		return err
	}
	for i := len(queued) - 1; i >= 0; i-- { // oldest first
		if err := c.entrance.queueAttempt(queued[i]); err != nil {
			return err
		}
	}
	return nil
}

// fail ends a run that was under way when the daemon ended.
func (c restart) fail(ctx context.Context, r *caisson.Run) error {
	ctx = caisson.WithCaller(ctx, caisson.Caller{Account: r.Account, Local: true})
	x, err := c.newAttempt(ctx, r)
	if err != nil {
		return err
	}
	x.start()
	if r.Sandbox != "" {
		err := c.Sandboxes.Remove(ctx, string(r.Sandbox))
		if err != nil && caisson.KindOf(err) != caisson.NotFound {
			return err
		}
	} else if err := c.removeBoxesOf(ctx, r); err != nil {
		return err
	}
	// What it had said is its answer as far as it got.
	in, after := caisson.In(r.Account), int64(0)
	for {
		list, err := c.Store.Runs().Events(ctx, in, r.ID, after, page)
		if err != nil {
			return err
		}
		for _, e := range list {
			after = e.Seq
			if e.Attempt == r.Attempt && e.Type == caisson.EventTextDelta {
				x.answer.WriteString(e.Delta)
			}
		}
		if len(list) < page {
			break
		}
	}
	x.outcome.finish(ctx, &caisson.RunError{
		Code: caisson.RunInternal, Message: "the daemon ended during this run; try again with: caisson retry " + string(r.ID),
	})
	return nil
}

// removeBoxesOf removes the sandboxes that were being made for a run.
func (c restart) removeBoxesOf(ctx context.Context, r *caisson.Run) error {
	return c.eachBox(ctx, caisson.In(r.Account), map[string]string{labelRun: string(r.ID)}, func(sb *caisson.Sandbox) error {
		err := c.Sandboxes.Remove(ctx, string(sb.ID))
		if caisson.KindOf(err) == caisson.NotFound {
			return nil
		}
		return err
	})
}

// eachBox calls do for every sandbox in a scope that has the labels, until one fails.
func (c restart) eachBox(ctx context.Context, in caisson.Scope, labels map[string]string, do func(*caisson.Sandbox) error) error {
	f := caisson.Filter{Limit: 1000, Labels: labels}
	for {
		list, more, err := c.Store.Sandboxes().List(ctx, in, f)
		if err != nil {
			return err
		}
		for _, sb := range list {
			f.After = sb.ID
			if err := do(sb); err != nil {
				return err
			}
		}
		if !more {
			return nil
		}
	}
}

// reconcileEnds gives the runs that ended last their done, which the daemon may not have come to write.
func (c restart) reconcileEnds(ctx context.Context) error {
	list, _, err := c.Store.Runs().List(ctx, caisson.Everyone(), caisson.RunFilter{
		States: []caisson.RunState{caisson.RunSucceeded, caisson.RunFailed}, Limit: 200,
	})
	if err != nil {
		return err
	}
	for _, r := range list {
		last, err := c.Store.Runs().LastEvent(ctx, r.ID)
		if err != nil {
			return err
		}
		if endsWithDone(ctx, c.Store.Runs(), caisson.In(r.Account), r.ID, last) {
			continue
		}
		rec, err := newRecorder(ctx, c.streams, r)
		if err != nil {
			return err
		}
		rec.add(caisson.RunEvent{Type: caisson.EventDone})
		if err := rec.flush(); err != nil {
			return err
		}
	}
	return nil
}

// reconcileSessions gives back the sessions whose runs have ended.
func (c restart) reconcileSessions(ctx context.Context) error {
	return c.sessions.eachSession(ctx, caisson.Everyone(), func(s *caisson.Session) error {
		if s.Run == "" {
			return nil
		}
		r, err := c.Store.Runs().Get(ctx, caisson.In(s.Account), s.Run)
		if err != nil && caisson.KindOf(err) != caisson.NotFound && s.Run != removing {
			return err
		}
		if err == nil && !r.State.Ended() {
			return nil // it waits
		}
		_, err = c.Store.Sessions().Update(ctx, caisson.In(s.Account), string(s.ID), func(s *caisson.Session) error {
			s.Run = ""
			return nil
		})
		return err
	})
}

// reconcileBoxes removes the sandboxes that no run and no session accounts for any more, and what warm snapshots were being made in.
func (c restart) reconcileBoxes(ctx context.Context) error {
	return c.eachBox(ctx, caisson.Everyone(), nil, func(sb *caisson.Sandbox) error {
		run, ours := sb.Labels[labelRun]
		_, warming := sb.Labels[labelKey]
		if !ours && !warming {
			return nil
		}
		ctx := caisson.WithCaller(ctx, caisson.Caller{Account: sb.Account, Local: true})
		if ours {
			keep, err := c.accounted(ctx, sb, caisson.ID(run))
			if err != nil {
				return err
			}
			if keep {
				if sb.Assigned == nil {
					return nil
				}
				_, err := c.Sandboxes.Assign(ctx, sb.ID, nil) // nobody is charged for what it does between runs
				return err
			}
		}
		err := c.Sandboxes.Remove(ctx, string(sb.ID))
		if caisson.KindOf(err) == caisson.NotFound {
			return nil
		}
		return err
	})
}

// accounted reports whether a sandbox belongs to a session, or is kept for who asked for it.
func (c restart) accounted(ctx context.Context, sb *caisson.Sandbox, run caisson.ID) (bool, error) {
	if id := sb.Labels[labelSession]; id != "" {
		s, err := c.Store.Sessions().Get(ctx, caisson.In(sb.Account), id)
		if caisson.KindOf(err) == caisson.NotFound {
			return false, nil
		}
		return err == nil && s.Sandbox == sb.ID, err
	}
	r, err := c.Store.Runs().Get(ctx, caisson.In(sb.Account), run)
	switch {
	case caisson.KindOf(err) == caisson.NotFound:
		return true, nil // its run was removed; it is whoever's who kept it
	case err != nil:
		return false, err
	}
	return r.State.Ended() && r.Request.Keep && r.Result != nil, nil
}

// Run does what the core does in the background, until ctx ends.
func (c *Core) Run(ctx context.Context) error {
	tick := time.NewTicker(min(time.Minute, max(c.Limits.SessionIdle/4, 50*time.Millisecond)))
	defer tick.Stop()
	for trim := time.Now(); ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		if err := c.sessions.settle(ctx, time.Now()); err != nil && ctx.Err() == nil {
			c.Log.ErrorContext(ctx, "sessions could not be put to rest", "err", err)
		}
		if time.Since(trim) < time.Hour {
			continue
		}
		trim = time.Now()
		if err := c.trim(ctx, trim.Add(-c.Limits.Keep)); err != nil && ctx.Err() == nil {
			c.Log.ErrorContext(ctx, "old runs could not be removed", "err", err)
		}
	}
}

// trim forgets the runs that ended before.
func (c *Core) trim(ctx context.Context, before time.Time) error {
	for {
		gone, err := c.Store.Runs().Trim(ctx, before, 100)
		if err != nil || len(gone) == 0 {
			return err
		}
		for _, id := range gone {
			if rerr := c.entrance.removeDir(id); rerr != nil && !errors.Is(rerr, os.ErrNotExist) {
				err = errors.Join(err, rerr)
			}
		}
		if err != nil {
			return err
		}
	}
}
