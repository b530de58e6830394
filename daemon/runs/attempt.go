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
	"github.com/caisson-dev/caisson/daemon/agent"
)

// An attempt is one try of a run. Nothing else changes the run until the attempt's result is stored.
type attempt struct {
	c        *Core
	r        *caisson.Run
	agent    *caisson.Agent
	settings *agent.Settings // resolved settings of the run
	log      *slog.Logger
	rec      *recorder

	clock
	provisioner provisioner
	turn        turn
	finisher    finisher

	sandbox       *caisson.Sandbox   // nil until the sandbox exists
	volume        caisson.ID         // the volume of the run's session; "" for none
	repo          *caisson.RepoGrant // access to the run's repository; nil for none
	warm          bool               // the sandbox is a fork of the warm snapshot
	pids          map[int]bool       // processes that were in the sandbox before the prompt
	unprompted    bool               // the sandbox has not had a prompt yet
	removable     bool               // the sandbox was created for this attempt, and is removed with it unless it is kept
	undeliverable bool               // the sandbox is kept because it contains changes that could not be delivered
	prompted      bool               // the agent has had a prompt in the sandbox, now or before: a session can continue in it
	answer        strings.Builder    // the text that the agent has written so far
	eventBytes    int64              // bytes of the agent's events
	maybeProvider bool               // the cause may be a failed model provider: the agent or the deadline ended the run
	result        caisson.RunResult

	starting bool // the daemon is starting, and ends a run of an earlier daemon
}

// The parts of an attempt. Each embeds the attempt, and uses the others through it.
type (
	provisioner struct{ *attempt } // provisions the sandbox
	turn        struct{ *attempt } // gives the prompt to the agent and records its events
	finisher    struct{ *attempt } // stores the result and cleans up
)

// A clock measures the phases of a run.
type clock struct {
	mu     sync.Mutex
	began  time.Time       // start of the current phase; guarded by mu
	phases []caisson.Phase // guarded by mu, because package sandboxes adds phases from other goroutines
}

// newAttempt returns the attempt of a run that is about to be queued.
func (c *Core) newAttempt(ctx context.Context, r *caisson.Run) *attempt {
	x := &attempt{
		c: c, r: r, rec: newRecorder(ctx, c.streams, r), clock: clock{began: time.Now()},
		log:    c.Log.With("run", r.ID, "attempt", r.Attempt, "agent", r.Agent, "account", r.Account, "trace", r.Trace),
		result: caisson.RunResult{Attempt: r.Attempt, Trace: r.Trace, Versions: map[string]string{"caisson": c.Version}},
	}
	x.provisioner, x.turn, x.finisher = provisioner{x}, turn{x}, finisher{x}
	return x
}

// status records a status event.
func (x *attempt) status(phase, label string) {
	x.rec.add(caisson.RunEvent{Type: caisson.EventStatus, Phase: phase, Label: label})
}

// warn logs and records a problem that does not end the run.
func (x *attempt) warn(ctx context.Context, what string, err error) {
	x.log.WarnContext(ctx, what, "err", err)
	x.status("warning", what)
	x.c.Events.Publish(ctx, x.r.Account, "run.warning", string(x.r.ID), map[string]string{"warning": what, "trace": x.r.Trace})
}

// recordQueuePosition records the run's position in the queue.
func (x *attempt) recordQueuePosition(place *ticket) {
	label := ""
	switch n, full := x.c.queue.ahead(place); {
	case n > 0:
		label = fmt.Sprintf("%d runs of the account are ahead of it", n)
	case full:
		label = "this host is full"
	}
	x.status("queued", label)
}

// start begins a phase without ending another one.
func (x *clock) start() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.began = time.Now()
}

// phase ends the current phase, which gets the given name, and begins the next one.
func (x *clock) phase(name string) {
	t := time.Now()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.add(name, t.Sub(x.began))
	x.began = t
}

// addPart records a part of the current phase as a phase of its own.
func (x *clock) addPart(name string, d time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.add(name, d)
	x.began = x.began.Add(d)
}

// add adds d to a phase. The caller must hold mu.
func (x *clock) add(name string, d time.Duration) {
	d = max(0, d)
	for i := range x.phases {
		if x.phases[i].Name == name {
			x.phases[i].Time += caisson.Duration(d)
			return
		}
	}
	x.phases = append(x.phases, caisson.Phase{Name: name, Time: caisson.Duration(d)})
}

// A failure is the error of a failed attempt, with the code and message of its result.
type failure struct {
	code      string
	msg       string
	err       error // cause, for the log
	fromAgent bool  // reported by the agent, which may not have the actual cause
}

func (f *failure) Error() string {
	if f.err != nil {
		return f.msg + ": " + f.err.Error()
	}
	return f.msg
}

func (f *failure) Unwrap() error { return f.err }

// isFailure reports whether err already contains the code and message of a result.
func isFailure(err error) bool {
	_, ok := errors.AsType[*failure](err)
	return ok
}

func failf(code, format string, args ...any) error {
	return &failure{code: code, msg: fmt.Sprintf(format, args...)}
}

// errDeadline is the cause when an attempt has used up its time.
var errDeadline = errors.New("the run's time is over")

// run executes the attempt from its admission to its end.
func (x *attempt) run(ctx context.Context) {
	err := x.do(ctx)
	if err != nil && errors.Is(context.Cause(ctx), errClosing) {
		return // The next daemon reconciles the run.
	}
	// The following steps are required for a cancelled run, too.
	clean := context.WithoutCancel(ctx)
	if err := x.finisher.finish(clean, x.finisher.explain(ctx, err)); err != nil {
		x.log.ErrorContext(clean, "the result of a run is lost; the next daemon ends the run", "err", err)
	}
}

// do executes all steps that can fail.
func (x *attempt) do(ctx context.Context) error {
	x.phase("queue")
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := x.rec.flush(); err != nil {
		return err // The agent's events could not be recorded.
	}
	r, err := x.c.Store.Runs().Get(ctx, caisson.In(x.r.Account), x.r.ID)
	if err != nil {
		return err // x.r is kept, because the result is stored under its id.
	}
	x.r = r
	if x.agent, err = x.c.builder.complete(ctx, x.r.Agent); err != nil {
		return err
	}
	models, err := x.c.Models.ListModels(ctx)
	if err != nil {
		return err
	}
	// The limits were resolved when the run was requested, with the rights of its caller.
	asked := x.r.Request
	asked.Limits, asked.Model = x.r.Limits, x.r.Model
	settled := caisson.HostCaller(x.r.Account, "begin an attempt")
	if x.settings, err = agent.Resolve(x.agent, asked, x.c.admission.defaults(models), settled); err != nil {
		return err
	}
	if survives(x.r) {
		deadline, err := rejoin(ctx, x)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithDeadlineCause(ctx, deadline, errDeadline)
		defer cancel()
		return x.turn.execute(ctx, deadline)
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
	// The template is built once for all runs, so building it does not count against this run's time.
	deadline := time.Now().Add(time.Duration(x.r.Limits.Time))
	if !x.r.Deadline.IsZero() && x.r.Deadline.Before(deadline) {
		deadline = x.r.Deadline // the deadline set by the parent run
	}
	ctx, cancel := context.WithDeadlineCause(ctx, deadline, errDeadline)
	defer cancel()
	x.start()
	if err := x.provisioner.open(withPhaseTimer(ctx, x), template); err != nil {
		return err
	}
	if _, err := x.update(ctx, func(r *caisson.Run) {
		r.State, r.Sandbox, r.StartedAt, r.Deadline = caisson.RunRunning, x.sandbox.ID, now(), deadline.UTC()
		r.Workspace, r.Terminal = x.sandbox.Spec.Workspace, ""
	}); err != nil {
		return err
	}
	if err := x.provisioner.copyIn(ctx); err != nil {
		return err
	}
	if err := x.provisioner.clone(ctx); err != nil {
		return err
	}
	x.status("running", "")
	return x.turn.execute(ctx, deadline)
}

// Building a template is not part of the run's time; it has its own timeout, and a maximum number of status events.
const (
	buildTime = 30 * time.Minute
	maxStages = 200 // status events
)

// build makes sure that the agent's template exists and is built.
func (x *attempt) build(ctx context.Context) (*prepared, error) {
	bctx, cancel := context.WithTimeoutCause(ctx, buildTime, failf(caisson.RunTimeout, "the agent could not be built within %s", buildTime))
	defer cancel()
	told, stages := "", 0
	template, err := x.c.builder.prepare(bctx, x.agent, x.r.Request.Image, func(p caisson.Progress) {
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

// state stores the state of the run.
func (x *attempt) state(ctx context.Context, s caisson.RunState) error {
	_, err := x.update(ctx, func(r *caisson.Run) { r.State = s })
	return err
}

// update changes the run in the store, and updates x.r.
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

// version records the versions that the run uses; empty ones are omitted.
func (x *attempt) version(more map[string]string) {
	for k, v := range more {
		if v != "" {
			x.result.Versions[k] = v
		}
	}
}
