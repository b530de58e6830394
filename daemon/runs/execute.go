package runs

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
)

// executor executes attempts: it provisions the sandbox, lets the agent work, and has the finisher store the result.
type executor struct {
	runs        caisson.RunStore
	streams     *streams     // sends events to watchers
	builder     *builder     // builds the templates of agents
	planner     *planner     // resolves requests into plans
	budgets     *budgets     // budgets of runs
	provisioner *provisioner // gets the sandboxes of attempts
	turns       *turns       // gives prompts to agents
	interactive *interactive // executes interactive runs
	finisher    *finisher    // stores the results of attempts
	events      caisson.Publisher
	version     string // version of Caisson
	log         *slog.Logger
}

// newAttempt returns the attempt of a run that is about to be queued.
func (e *executor) newAttempt(ctx context.Context, r *caisson.Run) *attempt {
	return &attempt{
		runs: e.runs, events: e.events, r: r, rec: newRecorder(ctx, e.streams, r), clock: clock{began: time.Now()},
		log:    e.log.With("run", r.ID, "attempt", r.Attempt, "agent", r.Agent, "account", r.Account, "trace", r.Trace),
		result: caisson.RunResult{Attempt: r.Attempt, Trace: r.Trace, Versions: map[string]string{"caisson": e.version}},
	}
}

// run executes the attempt from its admission to its end.
func (e *executor) run(ctx context.Context, x *attempt) {
	err := e.runSteps(ctx, x)
	if err != nil && errors.Is(context.Cause(ctx), errClosing) {
		_ = x.rec.flush() // The next daemon, which reconciles the run, may add events after these.
		return
	}
	// An attempt must also be ended properly if its run was cancelled.
	clean := context.WithoutCancel(ctx)
	if err := e.end(clean, x, explain(ctx, x, err)); err != nil {
		x.log.ErrorContext(clean, "the result of a run is lost; the next daemon ends the run", "err", err)
	}
}

// end stores the result of an attempt and releases its resources. failed is its error, or nil if it has succeeded.
func (e *executor) end(ctx context.Context, x *attempt, failed *caisson.RunError) error {
	return e.finisher.finish(ctx, x, failed)
}

// runSteps executes the attempt until the agent has ended. It returns an error if one of the steps fails.
func (e *executor) runSteps(ctx context.Context, x *attempt) error {
	if survives(x.r) {
		return e.interactive.rejoin(ctx, x)
	}
	template, err := e.prepare(ctx, x)
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
	if err := e.provisioner.provision(ctx, x, template, deadline); err != nil {
		return err
	}
	if x.r.Request.Interactive {
		return e.interactive.execute(ctx, x, deadline)
	}
	return e.turns.execute(ctx, x, deadline)
}

// prepare reads the run, checks its plan, and makes sure that its budget and the agent's template exist.
func (e *executor) prepare(ctx context.Context, x *attempt) (*preparedTemplate, error) {
	x.clock.phase("queue")
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := x.rec.flush(); err != nil {
		return nil, err // The events of the attempt could not be stored.
	}
	r, err := e.runs.Get(ctx, caisson.In(x.r.Account), x.r.ID)
	if err != nil {
		return nil, err // x.r stays set, because the result is stored under the id of the run.
	}
	x.r = r
	if x.agent, err = e.builder.complete(ctx, r.Agent); err != nil {
		return nil, err
	}
	plan, now, err := e.planner.check(ctx, r, x.agent)
	if err != nil {
		return nil, err
	}
	x.plan = now
	if _, err := x.update(ctx, func(r *caisson.Run) { r.State, r.Plan = caisson.RunStarting, plan }); err != nil {
		return nil, err
	}
	x.status("starting", "")
	if err := e.budgets.setBudget(ctx, x.r); err != nil {
		return nil, err
	}
	return e.build(ctx, x)
}

// Limits of building a template, which does not count against the time of the run: a timeout, and a maximum number of status
// events about it.
const (
	buildTimeout   = 30 * time.Minute // timeout of building a template
	maxBuildEvents = 200              // maximum number of status events about building a template
)

// build makes sure that the agent's template exists and is built.
func (e *executor) build(ctx context.Context, x *attempt) (*preparedTemplate, error) {
	bctx, cancel := context.WithTimeoutCause(ctx, buildTimeout, failf(caisson.RunTimeout, "the agent could not be built within %s", buildTimeout))
	defer cancel()
	told, stages := "", 0
	template, err := e.builder.prepare(bctx, x.agent, x.r.Request.Image, func(p caisson.Progress) {
		if label := progressLabel(p); label != told && stages < maxBuildEvents {
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

// progressLabel returns the label of a status event about the building of a template.
func progressLabel(p caisson.Progress) string {
	label := "building " + p.Stage
	if p.Detail != "" {
		label += ": " + p.Detail
	}
	return strings.ToValidUTF8(label[:min(len(label), 200)], "")
}
