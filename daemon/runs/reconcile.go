package runs

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
)

// recovery reconciles the runs, sessions, sandboxes and budgets of an earlier daemon.
type recovery struct {
	runs      caisson.RunStore
	sandboxes caisson.Table[caisson.Sandbox]
	table     caisson.Table[caisson.Session] // sessions of all accounts
	sessions  *sessions                      // sessions and their sandboxes
	lifecycle caisson.Sandboxes              // creates, changes and removes sandboxes
	assign    assignFunc                     // assigns a sandbox to a run
	budgets   *budgets                       // budgets of runs
	dirs      *directories                   // directories of runs
	admission *admission                     // stores runs and queues attempts
	executor  *executor                      // executes attempts
	log       *slog.Logger
}

// reconcile implements [Core.Reconcile]. Runs that were queued, and interactive runs, whose agents continue in their sandboxes,
// are queued again. Other runs that were in progress have failed, because the output of their agents was not read while no
// daemon was running; their sandboxes are stopped or removed, after which their last calls are in the ledger.
func (v *recovery) reconcile(ctx context.Context) error {
	if err := v.dirs.makeParent(); err != nil {
		return err
	}
	var queued, surviving []*caisson.Run
	f := caisson.RunFilter{States: []caisson.RunState{caisson.RunQueued, caisson.RunStarting, caisson.RunRunning}, Limit: 1000}
	for r, err := range eachRun(ctx, v.runs, f) {
		if err != nil {
			return err
		}
		if survives(r) {
			surviving = append(surviving, r)
			continue
		}
		// A queued sub-run is ended, because its parent run no longer waits for it.
		if r.State == caisson.RunQueued && len(r.Lineage) == 0 {
			queued = append(queued, r)
			continue
		}
		if err := v.fail(ctx, r); err != nil {
			if ctx.Err() != nil {
				return err
			}
			// The error does not stop the daemon, which has other requests to serve; the next daemon tries again.
			v.log.ErrorContext(ctx, "a run that was under way could not be ended", "run", r.ID, "err", err)
		}
	}
	for _, step := range []func(context.Context) error{v.reconcileSessions, v.reconcileSandboxes, v.reconcileBudgets, v.dirs.reconcile} {
		if err := step(ctx); err != nil {
			if ctx.Err() != nil {
				return err
			}
			v.log.ErrorContext(ctx, "what an earlier daemon left of runs could not all be put in order", "err", err)
		}
	}
	for _, list := range [][]*caisson.Run{surviving, queued} { // surviving runs first: they were admitted before
		for _, r := range slices.Backward(list) { // the lists have the newest run first
			if err := v.admission.queueAttempt(r); err != nil {
				return err
			}
		}
	}
	return nil
}

// eachRun yields the runs of all accounts that f selects, the newest first.
func eachRun(ctx context.Context, runs caisson.RunStore, f caisson.RunFilter) iter.Seq2[*caisson.Run, error] {
	return caisson.All(ctx, runs.List, caisson.AllAccounts(), f, func(f *caisson.RunFilter, r *caisson.Run) { f.Before = r.ID })
}

// fail ends a run that was in progress when an earlier daemon stopped.
func (v *recovery) fail(ctx context.Context, r *caisson.Run) error {
	ctx = caisson.WithCaller(ctx, caisson.DaemonCaller(r.Account, "end a run of an earlier daemon"))
	x := v.executor.newAttempt(ctx, r)
	x.starting = true
	delete(x.result.Versions, "caisson") // another version may have started the run
	x.clock.start()
	if err := v.stopSandbox(ctx, x); err != nil {
		return err
	}
	// The answer in the result is the text that was recorded before the daemon stopped.
	in, after := caisson.In(r.Account), int64(0)
	for {
		list, err := v.runs.Events(ctx, in, r.ID, after, pageSize)
		if err != nil {
			return err
		}
		for _, e := range list {
			after = e.Seq
			if e.Attempt == r.Attempt && e.Type == caisson.EventTextDelta {
				x.output.answer.WriteString(e.Delta)
			}
		}
		if len(list) < pageSize {
			break
		}
	}
	return v.executor.end(ctx, x, &caisson.RunError{
		Code: caisson.RunInternal, Message: "the daemon ended during this run; try again with: caisson retry " + string(r.ID),
	})
}

// stopSandbox ends all activity in a run's sandbox, so that all of its calls are in the ledger afterwards. A sandbox that is
// kept for a session, a caller or a delivery of commits is stopped, which keeps its files; any other sandbox is removed.
func (v *recovery) stopSandbox(ctx context.Context, x *attempt) error {
	r := x.r
	if r.Sandbox == "" {
		return v.removeSandboxes(ctx, r)
	}
	sb, err := v.lifecycle.Get(ctx, string(r.Sandbox))
	keep := r.Session != "" || r.Request.Keep || r.Request.Repo != nil && v.hasBegun(ctx, r)
	if err == nil && keep && sb.State.Live() {
		sb, err = v.lifecycle.Stop(ctx, string(sb.ID), 0)
	}
	if err == nil && keep && (sb.State == caisson.Stopped || sb.State == caisson.Paused) {
		// A session can continue in a sandbox in which an agent has had a prompt. Whether the agent of this run had one is not
		// recorded.
		x.box.sandbox, x.box.prompted, x.box.removable = sb, true, r.Session != "" && !v.hasBegun(ctx, r)
		return nil
	}
	if err != nil {
		v.log.WarnContext(ctx, "the sandbox of a run that was under way is removed", "run", r.ID, "sandbox", r.Sandbox, "err", err)
	}
	return v.remove(ctx, r.Sandbox)
}

// hasBegun reports whether the agent of a run produced output, or the run's session has had an earlier run.
func (v *recovery) hasBegun(ctx context.Context, r *caisson.Run) bool {
	if s, err := v.table.Get(ctx, caisson.In(r.Account), string(r.Session)); err == nil && s.Runs > 0 {
		return true
	}
	list, err := v.runs.Events(ctx, caisson.In(r.Account), r.ID, 0, pageSize)
	return err != nil || slices.ContainsFunc(list, func(e caisson.RunEvent) bool {
		return e.Attempt == r.Attempt && (e.Type == caisson.EventTextDelta || e.Type == caisson.EventToolStart)
	})
}

// remove removes a sandbox; it is not an error if the sandbox no longer exists.
func (v *recovery) remove(ctx context.Context, box caisson.ID) error {
	return caisson.IgnoreNotFound(v.lifecycle.Remove(ctx, string(box)))
}

// removeSandboxes removes the sandboxes that were being created for a run.
func (v *recovery) removeSandboxes(ctx context.Context, r *caisson.Run) error {
	return v.eachSandbox(ctx, caisson.In(r.Account), map[string]string{labelRun: string(r.ID)}, func(sb *caisson.Sandbox) error {
		if keep, err := v.belongs(ctx, sb, r.ID); err != nil || keep {
			return err
		}
		return v.remove(ctx, sb.ID)
	})
}

// eachSandbox calls do for every sandbox in a scope that has the labels, until do returns an error.
func (v *recovery) eachSandbox(ctx context.Context, in caisson.Scope, labels map[string]string, do func(*caisson.Sandbox) error) error {
	f := caisson.Filter{Limit: 1000, Labels: labels}
	for sb, err := range caisson.All(ctx, v.sandboxes.List, in, f, func(f *caisson.Filter, sb *caisson.Sandbox) { f.After = sb.ID }) {
		if err == nil {
			err = do(sb)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// reconcileSessions releases the sessions whose runs have ended, so that other runs can use them.
func (v *recovery) reconcileSessions(ctx context.Context) error {
	return v.sessions.each(ctx, caisson.AllAccounts(), func(s *caisson.Session) error {
		if s.Run == "" {
			return nil
		}
		r, err := v.runs.Get(ctx, caisson.In(s.Account), s.Run)
		switch {
		case caisson.KindOf(err) == caisson.NotFound:
			r = &caisson.Run{ID: s.Run, Account: s.Account} // the run was never stored, or the session was being removed
		case err != nil:
			return err
		case !r.State.Ended():
			return nil // the run has not ended and keeps the session
		}
		r.Session = s.ID
		var box *caisson.Sandbox
		if r.Sandbox != "" { // the daemon may have stopped before it stored the sandbox in the session
			box, err = v.sandboxes.Get(ctx, caisson.In(s.Account), string(r.Sandbox)) // release needs the sandbox's volume, too
			if err != nil && caisson.KindOf(err) != caisson.NotFound {
				return err
			}
		}
		return v.sessions.release(ctx, r, box)
	})
}

// reconcileSandboxes removes the sandboxes that belong to no run and no session, and those in which warm snapshots were being
// captured or agents checked. An error with one sandbox does not affect the others.
func (v *recovery) reconcileSandboxes(ctx context.Context) error {
	var failed error
	err := v.eachSandbox(ctx, caisson.AllAccounts(), nil, func(sb *caisson.Sandbox) error {
		if err := v.reconcileSandbox(ctx, sb); err != nil {
			failed = errors.Join(failed, fmt.Errorf("sandbox %s: %w", sb.ID, err))
		}
		return ctx.Err()
	})
	return errors.Join(err, failed)
}

// reconcileSandbox removes a sandbox of an earlier daemon, or clears its assignment if it is kept. Sandboxes that this package
// has not created are left alone.
func (v *recovery) reconcileSandbox(ctx context.Context, sb *caisson.Sandbox) error {
	run, ours := sb.Labels[labelRun]
	_, warming := sb.Labels[labelKey]
	if !ours && !warming {
		return nil
	}
	ctx = caisson.WithCaller(ctx, caisson.DaemonCaller(sb.Account, "put sandboxes of runs in order"))
	if r, err := v.runs.Get(ctx, caisson.In(sb.Account), caisson.ID(run)); ours && err == nil && survives(r) && r.Sandbox == sb.ID {
		return nil // the agent of the run is working in the sandbox
	}
	if ours {
		keep, err := v.belongs(ctx, sb, caisson.ID(run))
		if err != nil {
			return err
		}
		if keep {
			return v.unassign(ctx, sb)
		}
	}
	return v.remove(ctx, sb.ID)
}

// unassign clears the assignment of a sandbox that is kept. Between runs, the sandbox of a session is suspended. If it is
// running, a run had begun to use it and the state of the agent's service is unknown, so the sandbox is stopped.
func (v *recovery) unassign(ctx context.Context, sb *caisson.Sandbox) error {
	if sb.Assigned != nil {
		if _, err := v.assign(ctx, sb.ID, nil); err != nil {
			return err
		}
	}
	if sb.Labels[labelSession] == "" || sb.State != caisson.Running {
		return nil
	}
	if _, err := v.lifecycle.Stop(ctx, string(sb.ID), 0); err != nil {
		v.log.WarnContext(ctx, "the sandbox of a session could not be stopped", "sandbox", sb.ID, "err", err)
	}
	return nil
}

// belongs reports whether the sandbox of a run belongs to a session, or is kept for the caller of the run.
func (v *recovery) belongs(ctx context.Context, sb *caisson.Sandbox, run caisson.ID) (bool, error) {
	if id := sb.Labels[labelSession]; id != "" {
		s, err := v.table.Get(ctx, caisson.In(sb.Account), id)
		if caisson.KindOf(err) == caisson.NotFound {
			return false, nil
		}
		return err == nil && s.Sandbox == sb.ID, err
	}
	r, err := v.runs.Get(ctx, caisson.In(sb.Account), run)
	switch {
	case caisson.KindOf(err) == caisson.NotFound:
		return true, nil // The run of the sandbox was removed; the sandbox belongs to the caller who kept it.
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
func (v *recovery) reconcileBudgets(ctx context.Context) error {
	list, err := v.budgets.list(ctx)
	if err != nil {
		return err
	}
	for _, b := range list {
		id, ok := strings.CutPrefix(b.Key, budgetPrefix)
		if !ok {
			continue
		}
		r, err := v.runs.Get(ctx, caisson.In(b.Account), caisson.ID(id))
		if err != nil && caisson.KindOf(err) != caisson.NotFound {
			return err
		}
		if err == nil && r.State.Ended() {
			if err := v.budgets.dropBudget(ctx, r); err != nil {
				v.log.WarnContext(ctx, "the budget of a run that has ended could not be removed", "run", id, "err", err)
			}
		}
	}
	return nil
}

// keeper pauses idle sessions, and removes old runs and sessions.
type keeper struct {
	runs     caisson.RunStore
	sessions *sessions    // sessions and their sandboxes
	dirs     *directories // directories of runs
	limits   Limits       // limits of runs and sessions
	log      *slog.Logger
}

// run pauses idle sessions, and removes old runs and sessions once an hour, until ctx ends.
func (k *keeper) run(ctx context.Context) error {
	tick := time.NewTicker(min(time.Minute, max(time.Duration(k.limits.SessionIdle)/4, 50*time.Millisecond)))
	defer tick.Stop()
	for trim := time.Now(); ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		if err := k.sessions.pauseIdle(ctx, time.Now()); err != nil && ctx.Err() == nil {
			k.log.ErrorContext(ctx, "idle sessions could not be paused", "err", err)
		}
		if time.Since(trim) < time.Hour {
			continue
		}
		trim = time.Now()
		if err := k.trim(ctx, trim.Add(-time.Duration(k.limits.Keep))); err != nil && ctx.Err() == nil {
			k.log.ErrorContext(ctx, "old runs could not be removed", "err", err)
		}
	}
}

// trim removes the runs that ended before the given time, and the sessions that were not used since.
func (k *keeper) trim(ctx context.Context, before time.Time) error {
	if err := errors.Join(k.sessions.expire(ctx, before), k.dirs.trimArchives(ctx, time.Now())); err != nil {
		return err
	}
	for {
		gone, err := k.runs.Trim(ctx, before, 100)
		for _, id := range gone {
			err = errors.Join(err, k.dirs.removeDir(id))
		}
		if err != nil || len(gone) == 0 {
			return err
		}
	}
}
