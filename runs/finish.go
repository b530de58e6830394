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

// codes are the codes of runs for errors of Caisson's own.
var codes = map[caisson.Kind]string{
	caisson.Invalid: caisson.RunInvalid, caisson.NotFound: caisson.RunNotFound, caisson.Exhausted: caisson.RunRateLimit,
	caisson.Conflict: caisson.RunInvalid, caisson.Denied: caisson.RunInvalid,
}

// explain makes of what went wrong what the result says: whoever cancelled a run knows why it ended, what the agent or its sandbox did comes
// before the time that was over in the end, and only what nobody explains is internal. It returns nil for nil.
func (x outcome) explain(ctx context.Context, err error) *caisson.RunError {
	if err == nil {
		return nil
	}
	var cancelled errCancelled
	f, told := errors.AsType[*failure](err)
	cause := context.Cause(ctx)
	switch {
	case errors.As(cause, &cancelled):
		return &caisson.RunError{Code: caisson.RunAborted, Message: cancelled.by}
	case told:
		if f.err != nil {
			x.log.WarnContext(ctx, "a run failed", "code", f.code, "err", err)
		}
		x.unsure = f.said
		return &caisson.RunError{Code: f.code, Message: f.msg}
	case errors.Is(err, errDeadline), errors.Is(err, context.DeadlineExceeded):
		x.unsure = true
		return &caisson.RunError{Code: caisson.RunTimeout, Message: x.timeoutText()}
	}
	code := codes[caisson.KindOf(err)]
	if code == "" {
		code = caisson.RunInternal
		x.log.ErrorContext(ctx, "a run failed", "err", err)
	}
	return &caisson.RunError{Code: code, Message: caisson.MessageOf(err)}
}

func (x outcome) timeoutText() string {
	return fmt.Sprintf("the run's time of %s is over; give it more with --timeout", x.r.Limits.Time)
}

// finish stores the result and takes everything down, in an order that loses nothing. The result is durable before anybody is told of the end,
// and before anything of the run is removed; what follows it can be made up from it (see [runs.mend]). The error says that the result is not
// stored: the run is then as if it were still under way, and the next daemon ends it.
func (x outcome) finish(ctx context.Context, failed *caisson.RunError) error {
	// An account's runs within others end with the one that started them.
	if err := x.c.guests.cancelUnder(ctx, x.r); err != nil {
		x.log.ErrorContext(ctx, "runs that this one started could not be cancelled", "err", err)
	}
	x.deliver(ctx, failed)
	x.start()
	x.changes(ctx)
	if err := x.release(ctx, failed); err != nil {
		x.log.ErrorContext(ctx, "a run's sandbox could not be taken back", "sandbox", x.boxID(), "err", err)
		// Stopped, it keeps its files; if not even that can be had, nobody can go on in it.
		if _, serr := x.c.Sandboxes.Stop(ctx, string(x.box.ID), 0); serr != nil {
			x.mine = true
		} else if _, aerr := x.c.Sandboxes.Assign(ctx, x.box.ID, nil); aerr != nil {
			x.mine = true
		}
	}
	if x.stuck {
		if _, err := x.c.Sandboxes.Stop(ctx, string(x.box.ID), 0); err != nil {
			x.log.WarnContext(ctx, "a sandbox that is kept could not be stopped", "sandbox", x.box.ID, "err", err)
		}
	}
	x.phase("teardown")
	x.delivered(ctx)
	if err := x.rec.flush(); err != nil {
		x.log.ErrorContext(ctx, "events of a run could not be stored", "err", err)
		if failed == nil {
			failed = &caisson.RunError{Code: caisson.RunInternal, Message: "what the agent said could not be recorded"}
		}
	}
	bill := x.bill(ctx)
	failed = x.blame(failed, bill.trouble)
	x.result.Provider = bill.trouble.last
	x.result.Usage, x.result.Answer, x.result.Error, x.result.Warm, x.result.Sandbox = bill.attempt, x.answer.String(), failed, x.warm, x.boxID()
	x.result.Phases = x.split(bill.model)
	state := caisson.RunSucceeded
	if failed != nil {
		state = caisson.RunFailed
	}
	if err := x.persist(ctx, "the result of a run", func() error {
		_, err := x.update(ctx, func(r *caisson.Run) {
			r.State, r.EndedAt, r.Result, r.Usage = state, now(), &x.result, bill.run
			if x.box == nil || x.mine {
				r.Sandbox = ""
			}
		})
		return err
	}); err != nil {
		return err
	}
	if bill.run.Most > 0 && !x.starting {
		x.settle(ctx)
	}
	usage := x.result.Usage
	x.caughtUp(ctx)
	// The agent may have started another run while the first ones were ended; from now on it cannot.
	if err := x.c.guests.cancelUnder(ctx, x.r); err != nil {
		x.log.ErrorContext(ctx, "runs that this one started could not be cancelled", "err", err)
	}
	if err := x.persist(ctx, "what a session goes on with", func() error { return x.c.sessions.unclaim(ctx, x.r, x.sessionBox()) }); err != nil {
		x.log.ErrorContext(ctx, "a session is given back by the next daemon", "session", x.r.Session, "err", err)
	}
	if err := x.persist(ctx, "the end of a run", func() error { return x.rec.end(ctx, last(&x.result)) }); err != nil {
		x.log.ErrorContext(ctx, "the end of a run is told by the next daemon", "err", err)
	}
	data := map[string]string{"agent": x.r.Agent, "trace": x.r.Trace, "cost": usage.Cost.String(), "calls": strconv.FormatInt(usage.Calls, 10)}
	if failed != nil {
		data["error"] = failed.Code
	}
	x.c.Events.Publish(ctx, x.r.Account, "run."+string(state), string(x.r.ID), data)
	x.log.InfoContext(ctx, "run ended", "state", state, "error", failed, "cost", usage.Cost, "calls", usage.Calls, "phases", phaseText(x.result.Phases))
	x.clear(ctx, failed == nil)
	return nil
}

// persist does f until it succeeds: a disk that is full or a store that is busy for a moment must cost nobody an answer. It gives up when the
// daemon ends, and at once while it begins.
func (x outcome) persist(ctx context.Context, what string, f func() error) error {
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

// last are the events that end an attempt with this result.
func last(r *caisson.RunResult) []caisson.RunEvent {
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

// clear removes what is of no use to anybody any more, in the background: nobody waits for it but another attempt of the run.
func (x outcome) clear(ctx context.Context, final bool) {
	c, id, gone := x.c, x.r.ID, make(chan struct{})
	c.mu.Lock()
	c.leaving[id] = gone
	c.mu.Unlock()
	work := func() {
		defer func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			delete(c.leaving, id)
			close(gone)
		}()
		if x.box != nil && x.mine {
			if err := x.insist(func() error { return c.Sandboxes.Remove(ctx, string(x.box.ID)) }); err != nil && caisson.KindOf(err) != caisson.NotFound {
				x.log.ErrorContext(ctx, "a run's sandbox could not be removed; the next daemon tries again", "sandbox", x.box.ID, "err", err)
				// As long as it is there, it must not call models, and least of all without a bound.
				if _, err := c.Sandboxes.Assign(ctx, x.box.ID, nil); err != nil {
					x.log.ErrorContext(ctx, "it keeps its run's budget", "sandbox", x.box.ID, "err", err)
					return
				}
			}
		}
		if x.box != nil {
			x.recount(ctx, insistTime)
			x.leaveRepo(ctx)
		}
		if err := x.insist(func() error { return c.budgets.dropBudget(ctx, x.r) }); err != nil {
			x.log.ErrorContext(ctx, "a run's budget could not be removed", "err", err)
		}
		if final {
			if err := c.entrance.removeArchives(id); err != nil {
				x.log.ErrorContext(ctx, "a run's copy of its workspace could not be removed", "err", err)
			}
		}
	}
	if !c.do(work) {
		work() // the daemon is ending, and waits for this attempt
	}
}

// insistTime bounds how long it is tried to take away what a run has left.
const insistTime = time.Minute

// insist does f again while what is to go does not: what stands in the way for a moment must not cost the host a sandbox until the next daemon
// looks. It gives up when the daemon ends.
func (x outcome) insist(f func() error) error {
	end := time.Now().Add(insistTime)
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

// settle waits for calls that were under way when the run ended, so that whoever is told of the end is told what it cost. They end with the
// sandbox, which goes now if it goes with the run; one that stays has lost its grant.
func (x outcome) settle(ctx context.Context) {
	if x.box != nil && x.mine {
		rctx, cancel := context.WithTimeout(ctx, x.c.Limits.Settle)
		if err := x.c.Sandboxes.Remove(rctx, string(x.box.ID)); err != nil && caisson.KindOf(err) != caisson.NotFound {
			x.log.WarnContext(ctx, "a run's sandbox could not be removed at once", "sandbox", x.box.ID, "err", err)
		}
		cancel()
	}
	x.recount(ctx, x.c.Limits.Settle)
}

// recount looks at the ledger again until all calls of the run are in it, but not for longer than that: those that the agent did not wait for end
// with its sandbox, or a moment later.
func (x outcome) recount(ctx context.Context, wait time.Duration) {
	end := time.Now().Add(wait)
	for {
		bill := x.bill(ctx)
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
		if bill.run.Most == 0 || time.Now().After(end) {
			return
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-x.c.ctx.Done():
			return
		}
	}
}

// A bill is what the ledger has of a run.
type bill struct {
	attempt caisson.RunUsage // of this attempt
	run     caisson.RunUsage // of all attempts
	model   time.Duration    // how long the calls of this attempt took together
	trouble trouble
}

// trouble is what calls of an attempt say about providers of models.
type trouble struct {
	last string // what went wrong last; "" if nothing did
	ends bool   // no call of the attempt succeeded after that
}

// note takes the next call into account, in the order in which calls ended. One that was cut off says nothing about its provider.
func (t *trouble) note(call *caisson.Call) {
	switch {
	case call.Detail != "":
		t.last, t.ends = safetext.Line(call.Detail), true
	case call.Error == "" && call.Status/100 == 2:
		t.ends = false
	}
}

// blame returns why a run failed: an agent whose last call a provider of models has failed cannot know why, and often tries again until its
// time is over. Where it was told that it calls too often or has spent too much, that is the reason.
func (x outcome) blame(failed *caisson.RunError, t trouble) *caisson.RunError {
	if failed == nil || !x.unsure || !t.ends {
		return failed
	}
	switch failed.Code {
	case caisson.RunAgentError, caisson.RunTimeout, caisson.RunInternal, caisson.RunNotFound:
		x.log.Warn("a run failed because of a provider of models", "provider", t.last, "agent", failed.Message, "code", failed.Code)
		return &caisson.RunError{Code: caisson.RunProvider, Message: t.last}
	}
	return failed
}

// bill asks the ledger.
func (x outcome) bill(ctx context.Context) (b bill) {
	var under int64
	var most caisson.USD
	var err error
	// First, so that no call is missed that ends meanwhile; one may count twice in what is the most there can be.
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
				b.trouble.note(call)
			}
		}
	}
	if under > 0 {
		b.attempt.Most, b.run.Most = b.attempt.Cost+most, b.run.Cost+most
	}
	return b
}

// count adds a call to what was used.
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

// split returns the phases with the time of calls of models taken out of the agent's own.
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

func (x *attempt) boxID() caisson.ID {
	if x.box == nil {
		return ""
	}
	return x.box.ID
}

// sessionBox is the sandbox that the run's session has from now on; nil for the one it has, if it has one at all.
func (x outcome) sessionBox() *caisson.Sandbox {
	if x.r.Session == "" || x.mine || !x.ready {
		return nil
	}
	return x.box
}

// release takes the sandbox back from the run: nothing more is charged to it, and what it has left running is ended.
func (x outcome) release(ctx context.Context, failed *caisson.RunError) error {
	if x.box != nil && x.r.Session != "" && !x.ready && !x.r.Request.Keep {
		x.mine = true // the agent has not had what it needs: a session cannot begin in it
	}
	if x.box == nil || x.mine {
		return nil // what is removed takes its last calls with it, charged to this run
	}
	stopped := x.starting
	if x.pids != nil { // else nobody has given it a prompt
		var err error
		if stopped, err = x.c.hands.killNew(ctx, x.box.ID, x.agent, x.pids); err != nil && x.r.Session != "" {
			return err
		}
	}
	if _, err := x.c.Sandboxes.Assign(ctx, x.box.ID, nil); err != nil {
		return err
	}
	if x.r.Session == "" || stopped {
		return nil
	}
	if failed != nil && len(x.agent.Service) > 0 && (failed.Code == caisson.RunAgentError || failed.Code == caisson.RunTimeout) {
		// Perhaps because its service is gone; the next run starts it anew.
		_, err := x.c.Sandboxes.Stop(ctx, string(x.box.ID), 0)
		return err
	}
	if _, err := x.c.Sandboxes.Suspend(ctx, string(x.box.ID)); err != nil {
		// It goes on, charged to nobody, until it is put to rest.
		x.log.WarnContext(ctx, "the sandbox of a session does not stand still", "sandbox", x.box.ID, "err", err)
	}
	return nil
}

// removeArchives removes what was put into the workspace of each attempt.
func (c entrance) removeArchives(id caisson.ID) (err error) {
	for _, name := range []string{workspaceTar, uploadTar} {
		if rerr := c.Dir.Remove(path.Join(runDir(id), name)); rerr != nil && !isNotExist(rerr) {
			err = errors.Join(err, rerr)
		}
	}
	return err
}
