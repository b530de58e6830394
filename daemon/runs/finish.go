package runs

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/task"
)

// finisher stores the results of attempts, and releases their resources.
type finisher struct {
	subRuns    *subRuns          // cancels sub-runs
	deliverer  *deliverer        // starts deliveries of commits
	workspaces Workspaces        // reads the changes in mounted workspaces; nil if directories are only copied
	lifecycle  caisson.Sandboxes // creates, changes and removes sandboxes
	assign     assignFunc        // assigns a sandbox to a run
	guestExec  *guestExec        // executes programs in sandboxes
	sessions   *sessions         // sessions and their sandboxes
	usage      *usageReader      // reads the usage of attempts
	cleaner    *cleaner          // removes the resources of attempts
	settle     time.Duration     // how long the end of a run waits until its last model calls are in the ledger
	done       <-chan struct{}   // closed when the daemon stops
}

// errorCodes maps kinds of Caisson's errors to the error codes of runs. Other kinds are internal errors.
var errorCodes = map[caisson.Kind]string{
	caisson.Invalid: caisson.RunInvalid, caisson.NotFound: caisson.RunNotFound, caisson.Exhausted: caisson.RunRateLimit,
	caisson.Conflict: caisson.RunInvalid, caisson.Denied: caisson.RunInvalid,
}

// explain converts the error of an attempt to the error of its result; nil is converted to nil. A cancellation takes precedence
// over a failure that the agent or its sandbox reported, and that failure takes precedence over the deadline. The code of any
// other error is that in errorCodes, or internal.
func explain(ctx context.Context, x *attempt, err error) *caisson.RunError {
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
		x.output.maybeProviderFailed = f.fromAgent
		return &caisson.RunError{Code: f.code, Message: f.msg}
	case errors.Is(err, errDeadline), errors.Is(err, context.DeadlineExceeded):
		x.output.maybeProviderFailed = true
		return &caisson.RunError{Code: caisson.RunTimeout, Message: x.timeoutText()}
	}
	code := errorCodes[caisson.KindOf(err)]
	if code == "" {
		code = caisson.RunInternal
		x.log.ErrorContext(ctx, "a run failed", "err", err)
	}
	return &caisson.RunError{Code: code, Message: caisson.MessageOf(err)}
}

// timeoutText returns the message of an attempt that has used up its time.
func (x *attempt) timeoutText() string {
	return fmt.Sprintf("the run's time of %s is over; give it more with --timeout", x.r.Limits.Time)
}

// finish stores the result of an attempt and cleans up, in an order that loses nothing. The result is durable before the end is
// reported, and before anything of the run is removed; later steps can be repeated from the result. An error means that the
// result is not stored: the run then remains in progress, and the next daemon ends it.
func (f *finisher) finish(ctx context.Context, x *attempt, failed *caisson.RunError) error {
	// When a run ends, its sub-runs are cancelled.
	if err := f.subRuns.cancel(ctx, x.r); err != nil {
		x.log.ErrorContext(ctx, "runs that this one started could not be cancelled", "err", err)
	}
	f.deliverer.deliver(ctx, x, failed)
	x.clock.start()
	f.addChanges(ctx, x)
	if err := f.releaseSandbox(ctx, x, failed); err != nil {
		x.log.ErrorContext(ctx, "a run's sandbox could not be taken back", "sandbox", x.sandboxID(), "err", err)
		// A stopped sandbox keeps its files. If it cannot be stopped or released, it is removed, because no session can
		// continue in it.
		if _, serr := f.lifecycle.Stop(ctx, string(x.box.sandbox.ID), 0); serr != nil {
			x.box.removable = true
		} else if _, aerr := f.assign(ctx, x.box.sandbox.ID, nil); aerr != nil {
			x.box.removable = true
		}
	}
	if x.box.undeliverable {
		if _, err := f.lifecycle.Stop(ctx, string(x.box.sandbox.ID), 0); err != nil {
			x.log.WarnContext(ctx, "a sandbox that is kept could not be stopped", "sandbox", x.box.sandbox.ID, "err", err)
		}
	}
	x.clock.phase("teardown")
	f.deliverer.await(ctx, x)
	if err := x.rec.flush(); err != nil {
		x.log.ErrorContext(ctx, "events of a run could not be stored", "err", err)
		if failed == nil {
			failed = &caisson.RunError{Code: caisson.RunInternal, Message: "the agent's output could not be recorded"}
		}
	}
	bill := f.usage.read(ctx, x)
	failed = preferProviderError(x, failed, bill.problem)
	x.result.Provider = bill.problem.last
	x.result.Usage, x.result.Answer, x.result.Error, x.result.Warm, x.result.Sandbox = bill.attempt, x.output.answer.String(), failed, x.box.warm, x.sandboxID()
	x.result.Phases = x.clock.split(bill.modelTime)
	state := caisson.RunSucceeded
	if failed != nil {
		state = caisson.RunFailed
	}
	if err := f.retryStore(ctx, x, "the result of a run", func() error {
		_, err := x.update(ctx, func(r *caisson.Run) {
			r.State, r.EndedAt, r.Result, r.Usage = state, now(), &x.result, bill.run
			if x.box.sandbox == nil || x.box.removable {
				r.Sandbox = ""
			}
		})
		return err
	}); err != nil {
		return err
	}
	if bill.run.MaxCost > 0 && !x.starting {
		f.awaitCalls(ctx, x)
	}
	usage := x.result.Usage
	f.deliverer.update(ctx, x)
	// The agent may have started another sub-run while its sub-runs were cancelled. From now on it cannot start any.
	if err := f.subRuns.cancel(ctx, x.r); err != nil {
		x.log.ErrorContext(ctx, "runs that this one started could not be cancelled", "err", err)
	}
	if err := f.retryStore(ctx, x, "the state of a session", func() error { return f.sessions.release(ctx, x.r, x.sessionBox()) }); err != nil {
		x.log.ErrorContext(ctx, "a session is given back by the next daemon", "session", x.r.Session, "err", err)
	}
	if err := f.retryStore(ctx, x, "the end of a run", func() error { return x.rec.end(ctx, endEvents(&x.result)) }); err != nil {
		x.log.ErrorContext(ctx, "the end of a run could not be stored; the next daemon stores it", "err", err)
	}
	data := map[string]string{"agent": x.r.Agent, "trace": x.r.Trace, "cost": usage.Cost.String(), "calls": strconv.FormatInt(usage.Calls, 10)}
	if failed != nil {
		data["error"] = failed.Code
	}
	x.events.Publish(ctx, x.r.Account, "run."+string(state), string(x.r.ID), data)
	x.log.InfoContext(ctx, "run ended", "state", state, "error", failed, "cost", usage.Cost, "calls", usage.Calls, "phases", phaseText(x.result.Phases))
	f.cleaner.cleanUp(ctx, x, failed == nil)
	return nil
}

// retryStore calls do, which stores something, until do succeeds or returns NotFound: a full disk or a busy store must not lose
// an answer. It gives up when the daemon stops. If the attempt is ended while the daemon starts, it calls do only once.
func (f *finisher) retryStore(ctx context.Context, x *attempt, what string, do func() error) error {
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		err := do()
		if err == nil || x.starting || caisson.KindOf(err) == caisson.NotFound {
			return err
		}
		x.log.ErrorContext(ctx, what+" could not be stored; trying again", "err", err)
		select {
		case <-time.After(wait):
		case <-f.done:
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

// phaseText returns the phases on one line, for the log.
func phaseText(list []caisson.Phase) string {
	texts := make([]string, len(list))
	for i, p := range list {
		texts[i] = p.Name + "=" + time.Duration(p.Time).Round(time.Millisecond).String()
	}
	return strings.Join(texts, " ")
}

// awaitCalls waits for model calls that were in progress when the run ended, so that the end of the run is reported with the
// full cost. The calls end with the sandbox: a sandbox that belongs only to the run is removed now, and a sandbox that is kept
// no longer has the grant of its models.
func (f *finisher) awaitCalls(ctx context.Context, x *attempt) {
	if x.box.sandbox != nil && x.box.removable {
		rctx, cancel := context.WithTimeout(ctx, f.settle)
		if err := f.lifecycle.Remove(rctx, string(x.box.sandbox.ID)); err != nil && caisson.KindOf(err) != caisson.NotFound {
			x.log.WarnContext(ctx, "a run's sandbox could not be removed at once", "sandbox", x.box.sandbox.ID, "err", err)
		}
		cancel()
	}
	f.usage.update(ctx, x, f.settle)
}

// sessionBox returns the sandbox that the run's session uses after the run; nil if the session keeps the sandbox that it has.
func (x *attempt) sessionBox() *caisson.Sandbox {
	if x.r.Session == "" || x.box.removable || !x.box.prompted {
		return nil
	}
	return x.box.sandbox
}

// releaseSandbox separates the sandbox from the run: processes that the agent has left are killed, and later calls are not
// charged to the run.
func (f *finisher) releaseSandbox(ctx context.Context, x *attempt, failed *caisson.RunError) error {
	if x.box.sandbox != nil && x.r.Session != "" && !x.box.prompted && !x.r.Request.Keep {
		x.box.removable = true // the agent has not had a prompt in the sandbox, so the session cannot continue in it
	}
	if x.box.sandbox == nil || x.box.removable {
		return nil // the sandbox stays assigned until it is removed, so its last calls are charged to this run
	}
	stopped := x.starting
	if x.box.earlierPIDs != nil { // nil if this attempt has given no prompt in the sandbox
		var err error
		if stopped, err = f.guestExec.killNew(ctx, x.box.sandbox.ID, x.agent, x.box.earlierPIDs); err != nil && x.r.Session != "" {
			return err
		}
	}
	if _, err := f.assign(ctx, x.box.sandbox.ID, nil); err != nil {
		return err
	}
	if x.r.Session == "" || stopped {
		return nil
	}
	if failed != nil && len(x.agent.Service) > 0 && (failed.Code == caisson.RunAgentError || failed.Code == caisson.RunTimeout) {
		// The run may have failed because the agent's service has exited. The next run of the session starts the service
		// again, but only if the sandbox is stopped.
		_, err := f.lifecycle.Stop(ctx, string(x.box.sandbox.ID), 0)
		return err
	}
	if _, err := f.lifecycle.Suspend(ctx, string(x.box.sandbox.ID)); err != nil {
		// The sandbox keeps running, and is charged to no run, until the idle session is paused.
		x.log.WarnContext(ctx, "the sandbox of a session could not be frozen", "sandbox", x.box.sandbox.ID, "err", err)
	}
	return nil
}

// preferProviderError returns the error of a failed run. If the agent's last model call failed at the provider, the result is
// that failure instead of failed: agents may report another error, and often retry until the run's time is over. An error about
// a rate limit or an exhausted budget is not replaced.
func preferProviderError(x *attempt, failed *caisson.RunError, t providerProblem) *caisson.RunError {
	if failed == nil || !x.output.maybeProviderFailed || !t.final {
		return failed
	}
	switch failed.Code {
	case caisson.RunAgentError, caisson.RunTimeout, caisson.RunInternal, caisson.RunNotFound:
		x.log.Warn("a run failed because of a provider of models", "provider", t.last, "agent", failed.Message, "code", failed.Code)
		return &caisson.RunError{Code: caisson.RunProvider, Message: t.last}
	}
	return failed
}

// diffTimeout is how long the result of a run waits for the list of changes in the workspace.
const diffTimeout = 30 * time.Second

// addChanges adds the changes in the workspace to the result, as the host determines them.
func (f *finisher) addChanges(ctx context.Context, x *attempt) {
	if x.box.sandbox == nil || x.box.sandbox.Spec.Workspace == "" || f.workspaces == nil || x.starting {
		return
	}
	ctx, cancel := context.WithTimeout(caisson.WithCaller(ctx, caisson.DaemonCaller(x.r.Account, "read the changes of a run")), diffTimeout)
	defer cancel()
	diff, err := f.workspaces.Diff(ctx, string(x.box.sandbox.Spec.Workspace), caisson.DiffRequest{Patch: true})
	if err != nil {
		x.warn(ctx, "the changes of the workspace could not be listed; caisson diff tries again", err)
		return
	}
	x.result.Changes, x.result.Patch = nil, ""
	var patch []byte
	for _, ch := range diff.Changes {
		if len(x.result.Changes) == task.MaxChanges {
			break
		}
		x.result.Changes = append(x.result.Changes, caisson.FileChange{Path: ch.Path, Kind: runKind(ch.Kind), Added: ch.Added, Removed: ch.Removed})
		if len(patch)+len(ch.Patch) <= task.MaxPatch {
			patch = append(patch, ch.Patch...)
		}
	}
	x.result.Patch = string(patch)
}

// runKind returns the kind of a change for the result of a run, which has only the kinds added, removed and modified.
func runKind(kind string) string {
	switch kind {
	case caisson.ChangeAdded, caisson.ChangeRemoved:
		return kind
	}
	return caisson.ChangeModified
}
