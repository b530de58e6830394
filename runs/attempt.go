package runs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/agent"
)

// An attempt is one try at a run. It has the run to itself: nobody else changes it until the result is stored.
type attempt struct {
	c     *Core
	r     *caisson.Run
	agent *caisson.Agent
	set   *agent.Settings // what holds for the run
	log   *slog.Logger
	rec   *recorder

	clock
	lodging lodging
	speech  speech
	outcome outcome

	box    *caisson.Sandbox // the sandbox; nil until there is one
	warm   bool             // it is a fork of the warm snapshot
	pids   map[int]bool     // processes of the sandbox that were there before the prompt
	first  bool             // nobody has given it a prompt yet
	mine   bool             // it was made for this attempt, and goes with it unless it is kept
	answer strings.Builder
	result caisson.RunResult
}

// The parts of an attempt. Each has the attempt, and through it the others.
type (
	lodging struct{ *attempt } // gets it a sandbox
	speech  struct{ *attempt } // gives the prompt and hears the agent
	outcome struct{ *attempt } // leaves the result behind
)

// A clock knows where the time goes.
type clock struct {
	mu     sync.Mutex
	began  time.Time       // of the present phase; guarded by mu
	phases []caisson.Phase // guarded by mu: the sandbox core adds to them from goroutines of its own
}

// newAttempt returns the attempt of a run that is about to be queued.
func (c *Core) newAttempt(ctx context.Context, r *caisson.Run) (*attempt, error) {
	rec, err := newRecorder(ctx, c.streams, r)
	if err != nil {
		return nil, err
	}
	x := &attempt{
		c: c, r: r, rec: rec, clock: clock{began: time.Now()},
		log:    c.Log.With("run", r.ID, "attempt", r.Attempt, "agent", r.Agent, "account", r.Account, "trace", r.Trace),
		result: caisson.RunResult{Attempt: r.Attempt, Trace: r.Trace, Versions: map[string]string{"caisson": c.Version}},
	}
	x.lodging, x.speech, x.outcome = lodging{x}, speech{x}, outcome{x}
	return x, nil
}

// status tells what happens now.
func (x *attempt) status(phase, label string) {
	x.rec.add(caisson.RunEvent{Type: caisson.EventStatus, Phase: phase, Label: label})
}

// warn tells what did not go as it should, where the run goes on all the same.
func (x *attempt) warn(ctx context.Context, what string, err error) {
	x.log.WarnContext(ctx, what, "err", err)
	x.status("warning", what)
	x.c.event(ctx, x.r.Account, "run.warning", string(x.r.ID), map[string]string{"warning": what, "trace": x.r.Trace})
}

// waited says where in the queue the run is.
func (x *attempt) waited(place *ticket) {
	label := ""
	switch n, full := x.c.queue.ahead(place); {
	case n > 0:
		label = fmt.Sprintf("%d of the account's runs are before it", n)
	case full:
		label = "this host is full"
	}
	x.status("queued", label)
}

// start begins a phase whose beginning is not the end of another.
func (x *clock) start() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.began = time.Now()
}

// phase ends the present phase of the run's time and begins the next.
func (x *clock) phase(name string) {
	t := time.Now()
	x.mu.Lock()
	began := x.began
	x.began = t
	x.mu.Unlock()
	x.spent(name, t.Sub(began))
}

// inside adds a part of the present phase that is told by itself.
func (x *clock) inside(name string, d time.Duration) {
	x.spent(name, d)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.began = x.began.Add(d)
}

// spent adds to a phase.
func (x *clock) spent(name string, d time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for i := range x.phases {
		if x.phases[i].Name == name {
			x.phases[i].Time += caisson.Duration(d)
			return
		}
	}
	x.phases = append(x.phases, caisson.Phase{Name: name, Time: caisson.Duration(max(0, d))})
}

// A failure is why an attempt failed, in the words that its result has.
type failure struct {
	code string
	msg  string
	err  error // for the log
}

func (f *failure) Error() string {
	if f.err != nil {
		return f.msg + ": " + f.err.Error()
	}
	return f.msg
}

func (f *failure) Unwrap() error { return f.err }

func failf(code, format string, args ...any) error {
	return &failure{code: code, msg: fmt.Sprintf(format, args...)}
}

// errDeadline is why an attempt ends that has used up its time.
var errDeadline = errors.New("the run's time is over")

// run does the attempt from its turn to its end.
func (x *attempt) run(ctx context.Context) {
	err := x.do(ctx)
	if errors.Is(context.Cause(ctx), errClosing) {
		return // the next daemon finds the run as it is
	}
	// What follows has to happen even for a run that was cancelled.
	x.outcome.finish(context.WithoutCancel(ctx), x.outcome.explain(ctx, err))
}

// do does all that can fail.
func (x *attempt) do(ctx context.Context) (err error) {
	x.phase("queue")
	if err := ctx.Err(); err != nil {
		return err
	}
	if x.agent, err = x.c.making.complete(ctx, x.r.Agent); err != nil {
		return err
	}
	models, err := x.c.Models.ListModels(ctx)
	if err != nil {
		return err
	}
	// Limits were settled when the run was asked for, with the rights of whoever asked.
	asked := x.r.Request
	asked.Limits, asked.Model = x.r.Limits, x.r.Model
	if x.set, err = agent.Resolve(x.agent, asked, x.c.entrance.defaults(models), caisson.Caller{Account: x.r.Account, Local: true}); err != nil {
		return err
	}
	if err := x.state(ctx, caisson.RunStarting); err != nil {
		return err
	}
	x.status("starting", "")
	if err := x.c.budgets.setBudget(ctx, x.r); err != nil {
		return err
	}
	template, err := x.c.making.prepare(ctx, x.agent, x.r.Request.Image, func(p caisson.Progress) { x.status("starting", progressLabel(p)) })
	if err != nil {
		return err
	}
	// What is made once for all runs is not this one's time.
	deadline := time.Now().Add(time.Duration(x.r.Limits.Time))
	if !x.r.Deadline.IsZero() && x.r.Deadline.Before(deadline) {
		deadline = x.r.Deadline // that of the run that this one is part of
	}
	ctx, cancel := context.WithDeadlineCause(ctx, deadline, errDeadline)
	defer cancel()
	x.start()
	if err := x.lodging.open(withPhases(ctx, x), template); err != nil {
		return err
	}
	if _, err := x.update(ctx, func(r *caisson.Run) {
		r.State, r.Sandbox, r.StartedAt, r.Deadline = caisson.RunRunning, x.box.ID, now(), deadline.UTC()
	}); err != nil {
		return err
	}
	if err := x.lodging.copyIn(ctx); err != nil {
		return err
	}
	x.status("running", "")
	return x.speech.turn(ctx, deadline)
}

func progressLabel(p caisson.Progress) string {
	label := "building " + p.Stage
	if p.Detail != "" {
		label += ": " + p.Detail
	}
	return label[:min(len(label), 200)]
}

// state stores where the run is.
func (x *attempt) state(ctx context.Context, s caisson.RunState) error {
	_, err := x.update(ctx, func(r *caisson.Run) { r.State = s })
	return err
}

// update changes the run in the store, and here.
func (x *attempt) update(ctx context.Context, change func(*caisson.Run)) (*caisson.Run, error) {
	r, err := x.c.Store.Runs().Update(ctx, caisson.In(x.r.Account), x.r.ID, func(r *caisson.Run) error {
		change(r)
		return nil
	})
	if err == nil {
		x.r = r
	}
	return r, err
}

// codes are the codes of runs for errors of Caisson's own.
var codes = map[caisson.Kind]string{
	caisson.Invalid: caisson.RunInvalid, caisson.NotFound: caisson.RunNotFound, caisson.Exhausted: caisson.RunRateLimit,
	caisson.Conflict: caisson.RunInvalid, caisson.Denied: caisson.RunInvalid,
}

// explain makes of what went wrong what the result says. It returns nil for nil.
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
		return &caisson.RunError{Code: f.code, Message: f.msg}
	case errors.Is(err, errDeadline), errors.Is(err, context.DeadlineExceeded):
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

// finish stores the result and takes everything down, in an order that loses nothing: the sandbox is removed when the result is
// durable.
func (x outcome) finish(ctx context.Context, failed *caisson.RunError) {
	// An account's runs within others end with the one that started them.
	if err := x.c.guests.cancelUnder(ctx, x.r); err != nil {
		x.log.ErrorContext(ctx, "runs that this one started could not be cancelled", "err", err)
	}
	x.start()
	if err := x.release(ctx); err != nil {
		x.log.ErrorContext(ctx, "a run's sandbox could not be taken back", "sandbox", x.boxID(), "err", err)
		x.mine = true // it is not what a session may go on with
	}
	x.phase("teardown")
	usage, model := x.usage(ctx)
	x.result.Usage, x.result.Answer, x.result.Error, x.result.Warm, x.result.Sandbox = usage, x.answer.String(), failed, x.warm, x.boxID()
	x.split(model)
	x.result.Phases = x.phases
	if failed == nil {
		x.rec.add(caisson.RunEvent{Type: caisson.EventUsage, Usage: &usage},
			caisson.RunEvent{Type: caisson.EventFinal, Content: x.result.Answer})
	} else {
		x.rec.add(caisson.RunEvent{Type: caisson.EventUsage, Usage: &usage}, caisson.RunEvent{Type: caisson.EventError, Error: failed})
	}
	if err := x.rec.flush(); err != nil {
		x.log.ErrorContext(ctx, "events of a run could not be stored", "err", err)
		if x.result.Error == nil {
			x.result.Error = &caisson.RunError{Code: caisson.RunInternal, Message: "what the agent said could not be recorded"}
		}
	}
	state := caisson.RunSucceeded
	if x.result.Error != nil {
		state = caisson.RunFailed
	}
	kept := x.box != nil && !x.mine
	if _, err := x.update(ctx, func(r *caisson.Run) {
		r.State, r.EndedAt, r.Result = state, now(), &x.result
		if !kept {
			r.Sandbox = ""
		}
	}); err != nil {
		x.log.ErrorContext(ctx, "the result of a run could not be stored", "err", err)
	}
	if err := x.c.sessions.unclaim(ctx, x.r, x.sessionBox()); err != nil {
		x.log.ErrorContext(ctx, "a session could not be given back", "session", x.r.Session, "err", err)
	}
	x.rec.add(caisson.RunEvent{Type: caisson.EventDone})
	if err := x.rec.flush(); err != nil {
		x.log.ErrorContext(ctx, "the end of a run could not be recorded", "err", err)
	}
	data := map[string]string{"agent": x.r.Agent, "trace": x.r.Trace, "cost": usage.Cost.String(), "calls": strconv.FormatInt(usage.Calls, 10)}
	if x.result.Error != nil {
		data["error"] = x.result.Error.Code
	}
	x.c.event(ctx, x.r.Account, "run."+string(state), string(x.r.ID), data)
	x.log.InfoContext(ctx, "run ended", "state", state, "error", x.result.Error, "cost", usage.Cost, "calls", usage.Calls, "phases", phaseText(x.result.Phases))
	x.clear(ctx, failed == nil)
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

// clear removes what is of no use to anybody any more, in the background: nobody waits for it.
func (x outcome) clear(ctx context.Context, succeeded bool) {
	work := func() {
		if x.box != nil && x.mine {
			if err := x.c.Sandboxes.Remove(ctx, string(x.box.ID)); err != nil && caisson.KindOf(err) != caisson.NotFound {
				x.log.ErrorContext(ctx, "a run's sandbox could not be removed", "sandbox", x.box.ID, "err", err)
			}
			x.recount(ctx)
		}
		if err := x.c.budgets.dropBudget(ctx, x.r); err != nil {
			x.log.ErrorContext(ctx, "a run's budget could not be removed", "err", err)
		}
		if succeeded {
			for _, name := range []string{workspaceTar, uploadTar} {
				if err := x.c.Dir.Remove(path.Join(runDir(x.r.ID), name)); err != nil && !isNotExist(err) {
					x.log.ErrorContext(ctx, "a run's copy of its workspace could not be removed", "err", err)
				}
			}
		}
	}
	if !x.c.do(work) {
		return // the next daemon does it
	}
}

// recount looks at the ledger again: calls that the agent did not wait for end with its sandbox.
func (x outcome) recount(ctx context.Context) {
	usage, _ := x.usage(ctx)
	if usage == x.result.Usage {
		return
	}
	if _, err := x.update(ctx, func(r *caisson.Run) {
		if r.Result != nil && r.Attempt == x.result.Attempt {
			r.Result.Usage = usage
		}
	}); err != nil && caisson.KindOf(err) != caisson.NotFound {
		x.log.ErrorContext(ctx, "the usage of a run could not be stored", "err", err)
	}
}

// usage returns what the ledger has of this attempt, and how long its calls took together.
func (x outcome) usage(ctx context.Context) (u caisson.RunUsage, model time.Duration) {
	var after caisson.ID
	for {
		list, more, err := x.c.Calls(ctx, caisson.UsageQuery{Run: string(x.r.ID)}, after, 1000)
		if err != nil {
			x.log.ErrorContext(ctx, "the calls of a run could not be read", "err", err)
			u.Estimated = true
			return u, model
		}
		for _, call := range list {
			after = call.ID
			if call.Attempt != x.r.Attempt {
				continue
			}
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
			model += time.Duration(call.Duration)
		}
		if !more {
			return u, model
		}
	}
}

// split takes the time of calls of models out of the agent's own.
func (x *clock) split(model time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for i, p := range x.phases {
		if p.Name != "agent" || model == 0 {
			continue
		}
		model = min(model, time.Duration(p.Time))
		x.phases[i].Time -= caisson.Duration(model)
		rest := append([]caisson.Phase{{Name: "model", Time: caisson.Duration(model)}}, x.phases[i:]...)
		x.phases = append(x.phases[:i], rest...)
		return
	}
}

func (x *attempt) boxID() caisson.ID {
	if x.box == nil {
		return ""
	}
	return x.box.ID
}

// sessionBox is the sandbox that the run's session has from now on; nil for none, if it has one at all.
func (x outcome) sessionBox() *caisson.Sandbox {
	if x.r.Session == "" || x.mine {
		return nil
	}
	return x.box
}

// setBudget makes the budget of an attempt. It has to be there before the first call.
func (c budgets) setBudget(ctx context.Context, r *caisson.Run) error {
	limits := caisson.Limits{}
	if l := &r.Limits; l.Cost > 0 {
		limits.USD = &l.Cost
	}
	if l := &r.Limits; l.Tokens > 0 {
		limits.Tokens = &l.Tokens
	}
	if l := &r.Limits; l.Calls > 0 {
		limits.Calls = &l.Calls
	}
	if limits.IsZero() {
		return nil
	}
	key := budgetKey(r.ID)
	// Each attempt has the whole of it.
	err := c.Store.Ledger().DeleteBudget(ctx, caisson.In(r.Account), key)
	if err != nil && caisson.KindOf(err) != caisson.NotFound {
		return err
	}
	b := &caisson.Budget{Key: key, Account: r.Account, Limits: limits, CreatedAt: now()}
	put, err := c.Store.Ledger().PutBudget(ctx, caisson.In(r.Account), b)
	if err != nil {
		return err
	}
	if b.Limits = limits.Plus(put.Used); b.Limits != limits {
		// A budget begins with what earlier attempts took.
		if _, err := c.Store.Ledger().PutBudget(ctx, caisson.In(r.Account), b); err != nil {
			return err
		}
	}
	if r.Attempt == 1 || c.Forget == nil {
		return nil // nobody has asked for it yet
	}
	return c.Forget(ctx, key)
}

// dropBudget removes the budget of a run that has ended. Its calls stay in the ledger.
func (c budgets) dropBudget(ctx context.Context, r *caisson.Run) error {
	key := budgetKey(r.ID)
	err := c.Store.Ledger().DeleteBudget(ctx, caisson.In(r.Account), key)
	if caisson.KindOf(err) == caisson.NotFound {
		return nil
	}
	if err != nil || c.Forget == nil {
		return err
	}
	return c.Forget(ctx, key)
}

func budgetKey(id caisson.ID) string { return "run/" + string(id) }

// version records what the run ran on.
func (x *attempt) version(more map[string]string) {
	for k, v := range more {
		if v != "" {
			maps.Copy(x.result.Versions, map[string]string{k: v})
		}
	}
}
