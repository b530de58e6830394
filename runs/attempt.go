package runs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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

	box    *caisson.Sandbox   // the sandbox; nil until there is one
	volume caisson.ID         // what the run's session has worked in; "" for none
	repo   *caisson.RepoGrant // the repository that it was let into; nil for none
	warm   bool               // it is a fork of the warm snapshot
	pids   map[int]bool       // processes of the sandbox that were there before the prompt
	first  bool               // nobody has given it a prompt yet
	mine   bool               // it was made for this attempt, and goes with it unless it is kept
	stuck  bool               // it was to go, and has what could not be taken from it
	ready  bool               // the agent has had a prompt in it, now or before: a session can go on in it
	answer strings.Builder
	said   int64 // bytes of events, of what an agent can make of them
	unsure bool  // the run may have failed because a provider of models did: its agent or its time ended it
	result caisson.RunResult

	starting bool // the daemon is, and ends what an earlier one has left
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
func (c *Core) newAttempt(ctx context.Context, r *caisson.Run) *attempt {
	x := &attempt{
		c: c, r: r, rec: newRecorder(ctx, c.streams, r), clock: clock{began: time.Now()},
		log:    c.Log.With("run", r.ID, "attempt", r.Attempt, "agent", r.Agent, "account", r.Account, "trace", r.Trace),
		result: caisson.RunResult{Attempt: r.Attempt, Trace: r.Trace, Versions: map[string]string{"caisson": c.Version}},
	}
	x.lodging, x.speech, x.outcome = lodging{x}, speech{x}, outcome{x}
	return x
}

// status tells what happens now.
func (x *attempt) status(phase, label string) {
	x.rec.add(caisson.RunEvent{Type: caisson.EventStatus, Phase: phase, Label: label})
}

// warn tells what did not go as it should, where the run goes on all the same.
func (x *attempt) warn(ctx context.Context, what string, err error) {
	x.log.WarnContext(ctx, what, "err", err)
	x.status("warning", what)
	x.c.Events.Publish(ctx, x.r.Account, "run.warning", string(x.r.ID), map[string]string{"warning": what, "trace": x.r.Trace})
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
	defer x.mu.Unlock()
	x.spent(name, t.Sub(x.began))
	x.began = t
}

// inside adds a part of the present phase that is told by itself.
func (x *clock) inside(name string, d time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.spent(name, d)
	x.began = x.began.Add(d)
}

// spent adds to a phase. It needs mu.
func (x *clock) spent(name string, d time.Duration) {
	d = max(0, d)
	for i := range x.phases {
		if x.phases[i].Name == name {
			x.phases[i].Time += caisson.Duration(d)
			return
		}
	}
	x.phases = append(x.phases, caisson.Phase{Name: name, Time: caisson.Duration(d)})
}

// A failure is why an attempt failed, in the words that its result has.
type failure struct {
	code string
	msg  string
	err  error // for the log
	said bool  // by the agent, which may not know what it was
}

func (f *failure) Error() string {
	if f.err != nil {
		return f.msg + ": " + f.err.Error()
	}
	return f.msg
}

func (f *failure) Unwrap() error { return f.err }

// explained reports whether err is in the words of a result already.
func explained(err error) bool {
	_, ok := errors.AsType[*failure](err)
	return ok
}

func failf(code, format string, args ...any) error {
	return &failure{code: code, msg: fmt.Sprintf(format, args...)}
}

// errDeadline is why an attempt ends that has used up its time.
var errDeadline = errors.New("the run's time is over")

// run does the attempt from its turn to its end.
func (x *attempt) run(ctx context.Context) {
	err := x.do(ctx)
	if err != nil && errors.Is(context.Cause(ctx), errClosing) {
		return // the next daemon finds the run as it is
	}
	// What follows has to happen even for a run that was cancelled.
	clean := context.WithoutCancel(ctx)
	if err := x.outcome.finish(clean, x.outcome.explain(ctx, err)); err != nil {
		x.log.ErrorContext(clean, "the result of a run is lost; the next daemon ends the run", "err", err)
	}
}

// do does all that can fail.
func (x *attempt) do(ctx context.Context) error {
	x.phase("queue")
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := x.rec.flush(); err != nil {
		return err // nobody would hear what the agent says
	}
	r, err := x.c.Store.Runs().Get(ctx, caisson.In(x.r.Account), x.r.ID)
	if err != nil {
		return err // x.r stays: whatever comes, the run is ended under its name
	}
	x.r = r
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
	settled := caisson.HostWork(x.r.Account, "begin an attempt")
	if x.set, err = agent.Resolve(x.agent, asked, x.c.entrance.defaults(models), settled); err != nil {
		return err
	}
	if err := x.state(ctx, caisson.RunStarting); err != nil {
		return err
	}
	x.status("starting", "")
	if err := x.c.budgets.setBudget(ctx, x.r); err != nil {
		return err
	}
	template, err := x.build(ctx)
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
		r.Workspace = x.box.Spec.Workspace
	}); err != nil {
		return err
	}
	if err := x.lodging.copyIn(ctx); err != nil {
		return err
	}
	if err := x.lodging.clone(ctx); err != nil {
		return err
	}
	x.status("running", "")
	return x.speech.turn(ctx, deadline)
}

// Building a template is no part of the run's time, but has bounds of its own: of time, and of what is told of it.
const (
	buildTime = 30 * time.Minute
	maxStages = 200
)

// build makes sure that the agent's template is there.
func (x *attempt) build(ctx context.Context) (*prepared, error) {
	bctx, cancel := context.WithTimeoutCause(ctx, buildTime, failf(caisson.RunTimeout, "the agent could not be built within %s", buildTime))
	defer cancel()
	told, stages := "", 0
	template, err := x.c.making.prepare(bctx, x.agent, x.r.Request.Image, func(p caisson.Progress) {
		if label := progressLabel(p); label != told && stages < maxStages {
			told = label
			stages++
			x.status("starting", label)
		}
	})
	if err != nil && bctx.Err() != nil {
		return nil, context.Cause(bctx)
	}
	return template, err
}

func progressLabel(p caisson.Progress) string {
	label := "building " + p.Stage
	if p.Detail != "" {
		label += ": " + p.Detail
	}
	return strings.ToValidUTF8(label[:min(len(label), 200)], "")
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

// version records what the run ran on.
func (x *attempt) version(more map[string]string) {
	for k, v := range more {
		if v != "" {
			x.result.Versions[k] = v
		}
	}
}
