package runs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
)

// reconcile implements [Core.Reconcile]. Runs that were queued, and interactive runs, whose agents go on in their sandboxes, are queued
// again. Other runs that were in progress have failed, because the output of their agents was not read in the meantime; their sandboxes are stopped or removed,
// after which their last calls are in the ledger.
func (c recovery) reconcile(ctx context.Context) error {
	if err := c.Dir.MkdirAll("runs", 0o700); err != nil {
		return err
	}
	var queued []*caisson.Run
	f := caisson.RunFilter{States: []caisson.RunState{caisson.RunQueued, caisson.RunStarting, caisson.RunRunning}, Limit: 1000}
	for {
		list, more, err := c.Store.Runs().List(ctx, caisson.AllAccounts(), f)
		if err != nil {
			return err
		}
		for _, r := range list {
			f.Before = r.ID
			// A sub-run ends with its parent, which no longer waits for it.
			if r.State == caisson.RunQueued && len(r.Lineage) == 0 || survives(r) {
				queued = append(queued, r)
				continue
			}
			if err := c.fail(ctx, r); err != nil {
				if ctx.Err() != nil {
					return err
				}
				// The next daemon tries again; this one has to serve other requests.
				c.Log.ErrorContext(ctx, "a run that was under way could not be ended", "run", r.ID, "err", err)
			}
		}
		if !more {
			break
		}
	}
	for _, step := range []func(context.Context) error{c.reconcileSessions, c.reconcileSandboxes, c.reconcileBudgets, c.reconcileDirs} {
		if err := step(ctx); err != nil {
			if ctx.Err() != nil {
				return err
			}
			c.Log.ErrorContext(ctx, "what an earlier daemon left of runs could not all be put in order", "err", err)
		}
	}
	for i := len(queued) - 1; i >= 0; i-- { // oldest first
		if err := c.admission.queueAttempt(queued[i]); err != nil {
			return err
		}
	}
	return nil
}

// fail ends a run that was in progress when the daemon stopped.
func (c recovery) fail(ctx context.Context, r *caisson.Run) error {
	ctx = caisson.WithCaller(ctx, caisson.DaemonCaller(r.Account, "end a run of an earlier daemon"))
	x := c.newAttempt(ctx, r)
	x.starting = true
	x.start()
	if err := c.stopSandbox(ctx, x); err != nil {
		return err
	}
	// The answer is the text that was recorded so far.
	in, after := caisson.In(r.Account), int64(0)
	for {
		list, err := c.Store.Runs().Events(ctx, in, r.ID, after, pageSize)
		if err != nil {
			return err
		}
		for _, e := range list {
			after = e.Seq
			if e.Attempt == r.Attempt && e.Type == caisson.EventTextDelta {
				x.answer.WriteString(e.Delta)
			}
		}
		if len(list) < pageSize {
			break
		}
	}
	return x.finisher.finish(ctx, &caisson.RunError{
		Code: caisson.RunInternal, Message: "the daemon ended during this run; try again with: caisson retry " + string(r.ID),
	})
}

// stopSandbox stops all activity in a run's sandbox, after which the last of its calls are in the ledger. A sandbox that a
// session or a caller keeps is stopped, so that its files stay; any other sandbox is removed.
func (c recovery) stopSandbox(ctx context.Context, x *attempt) error {
	r := x.r
	if r.Sandbox == "" {
		return c.removeSandboxesOf(ctx, r)
	}
	sb, err := c.Sandboxes.Lifecycle.Get(ctx, string(r.Sandbox))
	keep := r.Session != "" || r.Request.Keep || r.Request.Repo != nil && c.hasBegun(ctx, r)
	if err == nil && keep && sb.State.Live() {
		sb, err = c.Sandboxes.Lifecycle.Stop(ctx, string(sb.ID), 0)
	}
	if err == nil && keep && (sb.State == caisson.Stopped || sb.State == caisson.Paused) {
		// A session can continue in it if an agent has had a prompt there. Whether this run's agent had one is not
		// recorded.
		x.sandbox, x.prompted, x.removable = sb, true, r.Session != "" && !c.hasBegun(ctx, r)
		return nil
	}
	if err != nil {
		c.Log.WarnContext(ctx, "the sandbox of a run that was under way is removed", "run", r.ID, "sandbox", r.Sandbox, "err", err)
	}
	return c.remove(ctx, r.Sandbox)
}

// hasBegun reports whether the agent of a run produced output, or its session has had an earlier run.
func (c recovery) hasBegun(ctx context.Context, r *caisson.Run) bool {
	if s, err := c.Store.Sessions().Get(ctx, caisson.In(r.Account), string(r.Session)); err == nil && s.Runs > 0 {
		return true
	}
	list, err := c.Store.Runs().Events(ctx, caisson.In(r.Account), r.ID, 0, pageSize)
	return err != nil || slices.ContainsFunc(list, func(e caisson.RunEvent) bool {
		return e.Attempt == r.Attempt && (e.Type == caisson.EventTextDelta || e.Type == caisson.EventToolStart)
	})
}

// remove removes a sandbox that may no longer exist.
func (c recovery) remove(ctx context.Context, box caisson.ID) error {
	err := c.Sandboxes.Lifecycle.Remove(ctx, string(box))
	if caisson.KindOf(err) == caisson.NotFound {
		return nil
	}
	return err
}

// removeSandboxesOf removes the sandboxes that were being created for a run.
func (c recovery) removeSandboxesOf(ctx context.Context, r *caisson.Run) error {
	return c.eachSandbox(ctx, caisson.In(r.Account), map[string]string{labelRun: string(r.ID)}, func(sb *caisson.Sandbox) error {
		if keep, err := c.belongs(ctx, sb, r.ID); err != nil || keep {
			return err
		}
		return c.remove(ctx, sb.ID)
	})
}

// eachSandbox calls do for every sandbox in a scope that has the labels, until do returns an error.
func (c recovery) eachSandbox(ctx context.Context, in caisson.Scope, labels map[string]string, do func(*caisson.Sandbox) error) error {
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

// reconcileSessions releases the sessions whose runs have ended.
func (c recovery) reconcileSessions(ctx context.Context) error {
	return c.sessions.eachSession(ctx, caisson.AllAccounts(), func(s *caisson.Session) error {
		if s.Run == "" {
			return nil
		}
		r, err := c.Store.Runs().Get(ctx, caisson.In(s.Account), s.Run)
		switch {
		case caisson.KindOf(err) == caisson.NotFound:
			r = &caisson.Run{ID: s.Run, Account: s.Account} // the run was never stored, or the session was being removed
		case err != nil:
			return err
		case !r.State.Ended():
			return nil // the run is queued
		}
		r.Session = s.ID
		var box *caisson.Sandbox
		if r.Sandbox != "" { // the daemon stopped before it could store this in the session
			box, err = c.Store.Sandboxes().Get(ctx, caisson.In(s.Account), string(r.Sandbox)) // with its volume
			if err != nil && caisson.KindOf(err) != caisson.NotFound {
				return err
			}
		}
		return c.sessions.unclaim(ctx, r, box)
	})
}

// reconcileSandboxes removes the sandboxes that belong to no run and no session, and those in which warm snapshots were
// being captured. An error with one sandbox does not affect the others.
func (c recovery) reconcileSandboxes(ctx context.Context) error {
	var failed error
	err := c.eachSandbox(ctx, caisson.AllAccounts(), nil, func(sb *caisson.Sandbox) error {
		if err := c.reconcileSandbox(ctx, sb); err != nil {
			failed = errors.Join(failed, fmt.Errorf("sandbox %s: %w", sb.ID, err))
		}
		return ctx.Err()
	})
	return errors.Join(err, failed)
}

func (c recovery) reconcileSandbox(ctx context.Context, sb *caisson.Sandbox) error {
	run, ours := sb.Labels[labelRun]
	_, warming := sb.Labels[labelKey]
	if !ours && !warming {
		return nil
	}
	ctx = caisson.WithCaller(ctx, caisson.DaemonCaller(sb.Account, "put sandboxes of runs in order"))
	if r, err := c.Store.Runs().Get(ctx, caisson.In(sb.Account), caisson.ID(run)); ours && err == nil && survives(r) && r.Sandbox == sb.ID {
		return nil // its agent is at work
	}
	if ours {
		keep, err := c.belongs(ctx, sb, caisson.ID(run))
		if err != nil {
			return err
		}
		if keep {
			return c.unassign(ctx, sb)
		}
	}
	return c.remove(ctx, sb.ID)
}

// unassign clears the assignment of a sandbox that stays. The sandbox of a session is frozen between runs; if it runs, a
// run had started to use it, and the state of its service is unknown, so it is stopped.
func (c recovery) unassign(ctx context.Context, sb *caisson.Sandbox) error {
	if sb.Assigned != nil {
		if _, err := c.Sandboxes.Assign(ctx, sb.ID, nil); err != nil {
			return err
		}
	}
	if sb.Labels[labelSession] == "" || sb.State != caisson.Running {
		return nil
	}
	if _, err := c.Sandboxes.Lifecycle.Stop(ctx, string(sb.ID), 0); err != nil {
		c.Log.WarnContext(ctx, "the sandbox of a session could not be stopped", "sandbox", sb.ID, "err", err)
	}
	return nil
}

// belongs reports whether a sandbox belongs to a session, or is kept for the caller of its run.
func (c recovery) belongs(ctx context.Context, sb *caisson.Sandbox, run caisson.ID) (bool, error) {
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
		return true, nil // Its run was removed; it belongs to the caller who kept it.
	case err != nil:
		return false, err
	}
	was := func(res caisson.RunResult) bool {
		return res.Sandbox == sb.ID && (r.Request.Keep || keptUndeliverable(res))
	}
	return r.Result != nil && was(*r.Result) || slices.ContainsFunc(r.Previous, was), nil
}

// reconcileBudgets deletes the budgets of runs that have ended. Budgets of unknown runs are kept: they may belong to
// other machines.
func (c recovery) reconcileBudgets(ctx context.Context) error {
	list, err := c.Store.Ledger().ListBudgets(ctx, caisson.AllAccounts())
	if err != nil {
		return err
	}
	for _, b := range list {
		id, ok := strings.CutPrefix(b.Key, budgetPrefix)
		if !ok {
			continue
		}
		r, err := c.Store.Runs().Get(ctx, caisson.In(b.Account), caisson.ID(id))
		if err != nil && caisson.KindOf(err) != caisson.NotFound {
			return err
		}
		if err == nil && r.State.Ended() {
			if err := c.budgets.dropBudget(ctx, r); err != nil {
				c.Log.WarnContext(ctx, "the budget of a run that has ended could not be removed", "run", id, "err", err)
			}
		}
	}
	return nil
}

// reconcileDirs removes the directories of runs that are not in the store, and the archives of runs that have
// succeeded.
func (c recovery) reconcileDirs(ctx context.Context) error {
	dir, err := c.Dir.Open("runs")
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		id := caisson.ID(name)
		switch r, err := c.Store.Runs().Get(ctx, caisson.AllAccounts(), id); {
		case caisson.KindOf(err) == caisson.NotFound:
			err = c.admission.removeDir(id)
			if err != nil {
				return err
			}
		case err != nil:
			return err
		case r.State == caisson.RunSucceeded:
			if err := c.admission.removeArchives(id); err != nil {
				return err
			}
		}
	}
	return nil
}

// Run does the background work of the core until ctx ends.
func (c *Core) Run(ctx context.Context) error {
	tick := time.NewTicker(min(time.Minute, max(time.Duration(c.Limits.SessionIdle)/4, 50*time.Millisecond)))
	defer tick.Stop()
	for trim := time.Now(); ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		if err := c.sessions.pauseIdle(ctx, time.Now()); err != nil && ctx.Err() == nil {
			c.Log.ErrorContext(ctx, "idle sessions could not be paused", "err", err)
		}
		if time.Since(trim) < time.Hour {
			continue
		}
		trim = time.Now()
		if err := c.trim(ctx, trim.Add(-time.Duration(c.Limits.Keep))); err != nil && ctx.Err() == nil {
			c.Log.ErrorContext(ctx, "old runs could not be removed", "err", err)
		}
	}
}

// trim removes the runs that ended, and the sessions that were last used, before the given time.
func (c *Core) trim(ctx context.Context, before time.Time) error {
	if err := errors.Join(c.sessions.expire(ctx, before), c.admission.trimArchives(ctx, time.Now())); err != nil {
		return err
	}
	for {
		gone, err := c.Store.Runs().Trim(ctx, before, 100)
		for _, id := range gone {
			err = errors.Join(err, c.admission.removeDir(id))
		}
		if err != nil || len(gone) == 0 {
			return err
		}
	}
}
