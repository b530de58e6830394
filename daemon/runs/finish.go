package runs

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
)

// errorCodes maps kinds of Caisson's errors to the codes of runs.
var errorCodes = map[caisson.Kind]string{
	caisson.Invalid: caisson.RunInvalid, caisson.NotFound: caisson.RunNotFound, caisson.Exhausted: caisson.RunRateLimit,
	caisson.Conflict: caisson.RunInvalid, caisson.Denied: caisson.RunInvalid,
}

// explain converts the error of an attempt to the error of its result. A cancellation takes precedence over a failure
// that the agent or its sandbox reported, and that over the deadline; any other error is mapped by codes, or is
// internal. explain returns nil for nil.
func (x finisher) explain(ctx context.Context, err error) *caisson.RunError {
	if err == nil {
		return nil
	}
	var cancelled errCancelled
	f, told := errors.AsType[*failure](err)
	cause := context.Cause(ctx)
	switch {
	case errors.As(cause, &cancelled):
		return &caisson.RunError{Code: caisson.RunAborted, Message: cancelled.message}
	case told:
		if f.err != nil {
			x.log.WarnContext(ctx, "a run failed", "code", f.code, "err", err)
		}
		x.maybeProvider = f.fromAgent
		return &caisson.RunError{Code: f.code, Message: f.msg}
	case errors.Is(err, errDeadline), errors.Is(err, context.DeadlineExceeded):
		x.maybeProvider = true
		return &caisson.RunError{Code: caisson.RunTimeout, Message: x.timeoutText()}
	}
	code := errorCodes[caisson.KindOf(err)]
	if code == "" {
		code = caisson.RunInternal
		x.log.ErrorContext(ctx, "a run failed", "err", err)
	}
	return &caisson.RunError{Code: code, Message: caisson.MessageOf(err)}
}

func (x finisher) timeoutText() string {
	return fmt.Sprintf("the run's time of %s is over; give it more with --timeout", x.r.Limits.Time)
}

// finish stores the result and cleans up, in an order that loses nothing. The result is durable before the end is
// reported, and before anything of the run is removed; the following steps can be repeated from it (see [runs.storeEnd]).
// An error means that the result is not stored: the run then remains in progress, and the next daemon ends it.
func (x finisher) finish(ctx context.Context, failed *caisson.RunError) error {
	// The sub-runs of a run end with it.
	if err := x.c.guests.cancelSubRuns(ctx, x.r); err != nil {
		x.log.ErrorContext(ctx, "runs that this one started could not be cancelled", "err", err)
	}
	x.deliver(ctx, failed)
	x.start()
	x.changes(ctx)
	if err := x.releaseSandbox(ctx, failed); err != nil {
		x.log.ErrorContext(ctx, "a run's sandbox could not be taken back", "sandbox", x.sandboxID(), "err", err)
		// A stopped sandbox keeps its files. If it cannot be stopped or released, it is removed, because no session can
		// continue in it.
		if _, serr := x.c.Sandboxes.Lifecycle.Stop(ctx, string(x.sandbox.ID), 0); serr != nil {
			x.removable = true
		} else if _, aerr := x.c.Sandboxes.Assign(ctx, x.sandbox.ID, nil); aerr != nil {
			x.removable = true
		}
	}
	if x.undeliverable {
		if _, err := x.c.Sandboxes.Lifecycle.Stop(ctx, string(x.sandbox.ID), 0); err != nil {
			x.log.WarnContext(ctx, "a sandbox that is kept could not be stopped", "sandbox", x.sandbox.ID, "err", err)
		}
	}
	x.phase("teardown")
	x.awaitDelivery(ctx)
	if err := x.rec.flush(); err != nil {
		x.log.ErrorContext(ctx, "events of a run could not be stored", "err", err)
		if failed == nil {
			failed = &caisson.RunError{Code: caisson.RunInternal, Message: "the agent's output could not be recorded"}
		}
	}
	bill := x.readUsage(ctx)
	failed = x.attribute(failed, bill.trouble)
	x.result.Provider = bill.trouble.last
	x.result.Usage, x.result.Answer, x.result.Error, x.result.Warm, x.result.Sandbox = bill.attempt, x.answer.String(), failed, x.warm, x.sandboxID()
	x.result.Phases = x.split(bill.model)
	state := caisson.RunSucceeded
	if failed != nil {
		state = caisson.RunFailed
	}
	if err := x.retryStore(ctx, "the result of a run", func() error {
		_, err := x.update(ctx, func(r *caisson.Run) {
			r.State, r.EndedAt, r.Result, r.Usage = state, now(), &x.result, bill.run
			if x.sandbox == nil || x.removable {
				r.Sandbox = ""
			}
		})
		return err
	}); err != nil {
		return err
	}
	if bill.run.MaxCost > 0 && !x.starting {
		x.awaitCalls(ctx)
	}
	usage := x.result.Usage
	x.updateDelivery(ctx)
	// The agent may have started another sub-run while the first ones were cancelled; from now on it cannot.
	if err := x.c.guests.cancelSubRuns(ctx, x.r); err != nil {
		x.log.ErrorContext(ctx, "runs that this one started could not be cancelled", "err", err)
	}
	if err := x.retryStore(ctx, "what a session goes on with", func() error { return x.c.sessions.unclaim(ctx, x.r, x.sessionBox()) }); err != nil {
		x.log.ErrorContext(ctx, "a session is given back by the next daemon", "session", x.r.Session, "err", err)
	}
	if err := x.retryStore(ctx, "the end of a run", func() error { return x.rec.end(ctx, endEvents(&x.result)) }); err != nil {
		x.log.ErrorContext(ctx, "the end of a run is told by the next daemon", "err", err)
	}
	data := map[string]string{"agent": x.r.Agent, "trace": x.r.Trace, "cost": usage.Cost.String(), "calls": strconv.FormatInt(usage.Calls, 10)}
	if failed != nil {
		data["error"] = failed.Code
	}
	x.c.Events.Publish(ctx, x.r.Account, "run."+string(state), string(x.r.ID), data)
	x.log.InfoContext(ctx, "run ended", "state", state, "error", failed, "cost", usage.Cost, "calls", usage.Calls, "phases", phaseText(x.result.Phases))
	x.cleanUp(ctx, failed == nil)
	return nil
}

// retryStore retries f until it succeeds: a full disk or a busy store must not lose an answer. It gives up when the daemon
// stops, and after one attempt while the daemon starts.
func (x finisher) retryStore(ctx context.Context, what string, f func() error) error {
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		err := f()
		if err == nil || x.starting || caisson.KindOf(err) == caisson.NotFound {
			return err
		}
		x.log.ErrorContext(ctx, what+" could not be stored; trying again", "err", err)
		select {
		case <-time.After(wait):
		case <-x.c.ctx.Done():
			return err
		}
	}
}

// endEvents returns the events that end an attempt with the result r.
func endEvents(r *caisson.RunResult) []caisson.RunEvent {
	outcome := caisson.RunEvent{Type: caisson.EventFinal, Content: r.Answer}
	if r.Error != nil {
		outcome = caisson.RunEvent{Type: caisson.EventError, Error: r.Error}
	}
	return []caisson.RunEvent{{Type: caisson.EventUsage, Usage: &r.Usage}, outcome, {Type: caisson.EventDone}}
}

func phaseText(list []caisson.Phase) string {
	var b strings.Builder
	for i, p := range list {
		if i > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprintf(&b, "%s=%s", p.Name, time.Duration(p.Time).Round(time.Millisecond))
	}
	return b.String()
}

// cleanUp removes what is no longer needed of the run, in the background. Only another attempt of the same run waits for
// it.
func (x finisher) cleanUp(ctx context.Context, final bool) {
	c, id, gone := x.c, x.r.ID, make(chan struct{})
	c.mu.Lock()
	c.cleanups[id] = gone
	c.mu.Unlock()
	work := func() {
		defer func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			delete(c.cleanups, id)
			close(gone)
		}()
		if x.sandbox != nil && x.removable {
			if err := x.retryRemoval(func() error { return c.Sandboxes.Lifecycle.Remove(ctx, string(x.sandbox.ID)) }); err != nil && caisson.KindOf(err) != caisson.NotFound {
				x.log.ErrorContext(ctx, "a run's sandbox could not be removed; the next daemon tries again", "sandbox", x.sandbox.ID, "err", err)
				// While the sandbox exists it must not call models, least of all without a budget.
				if _, err := c.Sandboxes.Assign(ctx, x.sandbox.ID, nil); err != nil {
					x.log.ErrorContext(ctx, "it keeps its run's budget", "sandbox", x.sandbox.ID, "err", err)
					return
				}
			}
		}
		if x.sandbox != nil {
			x.updateUsage(ctx, removalTimeout)
			x.releaseRepo(ctx)
		}
		if err := x.retryRemoval(func() error { return c.budgets.dropBudget(ctx, x.r) }); err != nil {
			x.log.ErrorContext(ctx, "a run's budget could not be removed", "err", err)
		}
		if final {
			if err := c.admission.removeArchives(id); err != nil {
				x.log.ErrorContext(ctx, "a run's copy of its workspace could not be removed", "err", err)
			}
		}
	}
	if !c.goBackground(work) {
		work() // The daemon is stopping, and waits for this attempt.
	}
}

// removalTimeout is how long the removal of a run's resources is retried.
const removalTimeout = time.Minute

// retryRemoval retries f, which removes a resource, for up to removalTimeout: a temporary error must not leave a sandbox on the
// host until the next start of the daemon. It gives up when the daemon stops.
func (x finisher) retryRemoval(f func() error) error {
	end := time.Now().Add(removalTimeout)
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		err := f()
		if err == nil || caisson.KindOf(err) == caisson.NotFound || time.Now().After(end) {
			return err
		}
		select {
		case <-time.After(wait):
		case <-x.c.ctx.Done():
			return err
		}
	}
}

// awaitCalls waits for model calls that were in progress when the run ended, so that the end is reported with the full
// cost. The calls end with the sandbox, which is removed now if it belongs to the run; a sandbox that is kept has lost
// its grant.
func (x finisher) awaitCalls(ctx context.Context) {
	if x.sandbox != nil && x.removable {
		rctx, cancel := context.WithTimeout(ctx, x.c.Limits.Settle)
		if err := x.c.Sandboxes.Lifecycle.Remove(rctx, string(x.sandbox.ID)); err != nil && caisson.KindOf(err) != caisson.NotFound {
			x.log.WarnContext(ctx, "a run's sandbox could not be removed at once", "sandbox", x.sandbox.ID, "err", err)
		}
		cancel()
	}
	x.updateUsage(ctx, x.c.Limits.Settle)
}

// updateUsage updates the usage from the ledger until all calls of the run are in it, or until wait has passed. Calls that
// the agent did not wait for end with its sandbox, or shortly afterwards.
func (x finisher) updateUsage(ctx context.Context, wait time.Duration) {
	end := time.Now().Add(wait)
	for {
		bill := x.readUsage(ctx)
		if bill.attempt != x.result.Usage || bill.run != x.r.Usage {
			x.result.Usage = bill.attempt
			if _, err := x.update(ctx, func(r *caisson.Run) {
				if r.Result != nil && r.Attempt == x.result.Attempt {
					r.Result.Usage, r.Usage = bill.attempt, bill.run
				}
			}); err != nil && caisson.KindOf(err) != caisson.NotFound {
				x.log.ErrorContext(ctx, "the usage of a run could not be stored", "err", err)
			}
		}
		if bill.run.MaxCost == 0 || time.Now().After(end) {
			return
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-x.c.ctx.Done():
			return
		}
	}
}

// A ledgerUsage is the usage of a run in the ledger.
type ledgerUsage struct {
	attempt caisson.RunUsage // of this attempt
	run     caisson.RunUsage // of all attempts
	model   time.Duration    // total duration of the calls of this attempt
	trouble providerProblem
}

// providerProblem contains the problems with model providers that the calls of an attempt had.
type providerProblem struct {
	last  string // description of the last problem; "" if there was none
	final bool   // no later call of the attempt succeeded
}

// addCall adds a call. Calls must be added in the order in which they ended. A call that was aborted does not count,
// because it does not indicate a problem of its provider.
func (t *providerProblem) addCall(call *caisson.Call) {
	switch {
	case call.Detail != "":
		t.last, t.final = safetext.Line(call.Detail), true
	case call.Error == "" && call.Status/100 == 2:
		t.final = false
	}
}

// attribute returns the error of a failed run. An agent whose last model call failed at the provider does not have that
// error, and often retries until the run's time is over; then the provider's problem is the error. An error about a
// rate limit or an exhausted budget is kept.
func (x finisher) attribute(failed *caisson.RunError, t providerProblem) *caisson.RunError {
	if failed == nil || !x.maybeProvider || !t.final {
		return failed
	}
	switch failed.Code {
	case caisson.RunAgentError, caisson.RunTimeout, caisson.RunInternal, caisson.RunNotFound:
		x.log.Warn("a run failed because of a provider of models", "provider", t.last, "agent", failed.Message, "code", failed.Code)
		return &caisson.RunError{Code: caisson.RunProvider, Message: t.last}
	}
	return failed
}

// readUsage reads the usage of the run from the ledger.
func (x finisher) readUsage(ctx context.Context) (b ledgerUsage) {
	var under int64
	var most caisson.USD
	var err error
	// Calls in progress are read first, so that no call is missed that ends in the meantime. Such a call may be counted
	// twice in the upper bound.
	if x.c.UnderWay != nil {
		if under, most, err = x.c.UnderWay(ctx, x.r.Account, string(x.r.ID)); err != nil {
			x.log.ErrorContext(ctx, "the calls of a run that are under way could not be read", "err", err)
			b.attempt.Estimated, b.run.Estimated = true, true
		}
	}
	var after caisson.ID
	for more := true; more; {
		var list []caisson.Call
		if list, more, err = x.c.Calls(ctx, caisson.UsageQuery{Run: string(x.r.ID)}, after, 1000); err != nil {
			x.log.ErrorContext(ctx, "the calls of a run could not be read", "err", err)
			b.attempt.Estimated, b.run.Estimated = true, true
			break
		}
		for i := range list {
			call := &list[i]
			after = call.ID
			count(&b.run, call)
			if call.Attempt == x.r.Attempt {
				count(&b.attempt, call)
				b.model += time.Duration(call.Duration)
				b.trouble.addCall(call)
			}
		}
	}
	if under > 0 {
		b.attempt.MaxCost, b.run.MaxCost = b.attempt.Cost+most, b.run.Cost+most
	}
	return b
}

// count adds a call to the usage u.
func count(u *caisson.RunUsage, call *caisson.Call) {
	u.Calls++
	if call.Status < 200 || call.Status > 299 {
		u.Failed++
	}
	u.Tokens.Input += call.Tokens.Input
	u.Tokens.Output += call.Tokens.Output
	u.Tokens.CacheRead += call.Tokens.CacheRead
	u.Tokens.CacheWrite += call.Tokens.CacheWrite
	u.Cost += call.Cost
	u.Estimated = u.Estimated || call.Estimated
}

// split returns the phases, with the time of model calls taken out of the phase "agent".
func (x *clock) split(model time.Duration) []caisson.Phase {
	x.mu.Lock()
	defer x.mu.Unlock()
	list := slices.Clone(x.phases)
	i := slices.IndexFunc(list, func(p caisson.Phase) bool { return p.Name == "agent" })
	if i < 0 || model == 0 {
		return list
	}
	spent := min(caisson.Duration(model), list[i].Time)
	list[i].Time -= spent
	return slices.Insert(list, i, caisson.Phase{Name: "model", Time: spent})
}

func (x *attempt) sandboxID() caisson.ID {
	if x.sandbox == nil {
		return ""
	}
	return x.sandbox.ID
}

// sessionBox returns the sandbox that the run's session uses from now on; nil if that does not change.
func (x finisher) sessionBox() *caisson.Sandbox {
	if x.r.Session == "" || x.removable || !x.prompted {
		return nil
	}
	return x.sandbox
}

// releaseSandbox takes the sandbox from the run: processes that the agent has left are killed, and nothing more is charged to
// the run.
func (x finisher) releaseSandbox(ctx context.Context, failed *caisson.RunError) error {
	if x.sandbox != nil && x.r.Session != "" && !x.prompted && !x.r.Request.Keep {
		x.removable = true // the agent has not had a prompt in it, so a session cannot start in it
	}
	if x.sandbox == nil || x.removable {
		return nil // until it is removed, its last calls are charged to this run
	}
	stopped := x.starting
	if x.pids != nil { // nil if this attempt has given no prompt in the sandbox
		var err error
		if stopped, err = x.c.guestExec.killNew(ctx, x.sandbox.ID, x.agent, x.pids); err != nil && x.r.Session != "" {
			return err
		}
	}
	if _, err := x.c.Sandboxes.Assign(ctx, x.sandbox.ID, nil); err != nil {
		return err
	}
	if x.r.Session == "" || stopped {
		return nil
	}
	if failed != nil && len(x.agent.Service) > 0 && (failed.Code == caisson.RunAgentError || failed.Code == caisson.RunTimeout) {
		// The cause may be that the service has exited; the next run starts it again.
		_, err := x.c.Sandboxes.Lifecycle.Stop(ctx, string(x.sandbox.ID), 0)
		return err
	}
	if _, err := x.c.Sandboxes.Lifecycle.Suspend(ctx, string(x.sandbox.ID)); err != nil {
		// It keeps running, charged to no run, until the idle session is paused.
		x.log.WarnContext(ctx, "the sandbox of a session could not be frozen", "sandbox", x.sandbox.ID, "err", err)
	}
	return nil
}

// removeArchives removes the archives that are unpacked into the workspace of each attempt.
func (c admission) removeArchives(id caisson.ID) (err error) {
	for _, name := range []string{workspaceTar, uploadTar} {
		if rerr := c.Dir.Remove(path.Join(runDir(id), name)); rerr != nil && !isNotExist(rerr) {
			err = errors.Join(err, rerr)
		}
	}
	return err
}
