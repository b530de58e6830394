package runs

import (
	"context"
	"slices"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/agent"
)

// guests implements [caisson.GuestRuns]: the requests of agents about runs.
type guests struct {
	runs      caisson.RunStore
	sandboxes caisson.Table[caisson.Sandbox]
	catalog   *agent.Catalog // entries of agents
	planner   *planner       // resolves requests into plans
	admission *admission     // stores runs and queues attempts
	subRuns   *subRuns       // cancels sub-runs
	live      *live          // queued and running attempts
	events    caisson.Publisher
}

// parent returns the run to which the guest's sandbox is assigned, and its agent. It returns a Denied error if the agent may not
// start sub-runs. The guest's identity comes from its wire; the assignment of its sandbox is checked here.
func (g *guests) parent(ctx context.Context) (*caisson.Run, *caisson.Agent, error) {
	guest, err := caisson.GuestOf(ctx)
	if err != nil {
		return nil, nil, err
	}
	none := caisson.Errorf(caisson.Denied, "no run of this sandbox is allowed to start other runs")
	sb, err := g.sandboxes.Get(ctx, caisson.In(guest.Account), string(guest.Sandbox))
	if err != nil || sb.Assigned == nil || string(sb.Assigned.Run) != guest.Run || !sb.Assigned.Tools {
		return nil, nil, none
	}
	r, err := g.runs.Get(ctx, caisson.In(guest.Account), sb.Assigned.Run)
	if err != nil || r.State.Ended() || r.Attempt != sb.Assigned.Attempt {
		return nil, nil, none
	}
	a, err := g.catalog.GetAgent(caisson.WithCaller(ctx, caisson.Caller{Account: guest.Account}), r.Agent)
	if err != nil || len(a.SubAgents) == 0 {
		return nil, nil, none
	}
	return r, a, nil
}

// mayStart reports whether the agent a may start runs of the agent with this id.
func mayStart(a *caisson.Agent, id string) bool {
	return slices.Contains(a.SubAgents, "*") || slices.Contains(a.SubAgents, id)
}

// GuestAgents implements [caisson.GuestRuns]. It returns the agents of which the guest may start runs.
func (g *guests) GuestAgents(ctx context.Context) ([]*caisson.Agent, error) {
	r, a, err := g.parent(ctx)
	if err != nil {
		return nil, err
	}
	list, err := g.catalog.ListAgents(caisson.WithCaller(ctx, caisson.Caller{Account: r.Account}))
	return slices.DeleteFunc(list, func(o *caisson.Agent) bool { return !mayStart(a, o.ID) }), err
}

// timeReserveDivisor determines how much time a run has left after a sub-run that uses up all of its time: the time limit of
// the parent run divided by timeReserveDivisor.
const timeReserveDivisor = 10 // one tenth of the time limit

// StartGuestRun implements [caisson.GuestRuns].
func (g *guests) StartGuestRun(ctx context.Context, req caisson.RunRequest) (*caisson.Run, error) {
	p, a, err := g.parent(ctx)
	if err != nil {
		return nil, err
	}
	if !mayStart(a, req.Agent) {
		return nil, caisson.Errorf(caisson.Denied, "%s may not start runs of %.70q", a.ID, req.Agent)
	}
	if len(p.Lineage) >= maxDepth {
		return nil, caisson.Errorf(caisson.Exhausted, "runs can be nested at most %d deep", maxDepth)
	}
	if req.Policy != nil || req.Image != "" || req.Session != "" || req.Keep || req.Source != "" || req.Directory != nil || req.Workspace != nil ||
		req.Kind != "" || req.Sync != "" || len(req.Show) > 0 || req.Repo != nil || req.Interactive || req.Gateway != nil {
		return nil, caisson.Errorf(caisson.Denied, "an agent may set only agent, persona, prompt, history, model, env and limits")
	}
	req.User, req.Labels = p.Request.User, nil
	// An agent makes this request, so it has no rights of the unix socket, even if the request of the parent run had them.
	ctx = caisson.WithCaller(ctx, caisson.Caller{Account: p.Account})
	r, err := g.planner.plan(ctx, caisson.Caller{Account: p.Account}, req)
	if err != nil {
		return nil, err
	}
	left := time.Until(p.Deadline) - time.Duration(p.Limits.Time)/timeReserveDivisor
	if p.Deadline.IsZero() || left <= time.Second {
		return nil, caisson.Errorf(caisson.Exhausted, "run %s has no time left for another", p.ID)
	}
	r.Deadline = time.Now().Add(left).UTC()
	r.Limits.Time = min(r.Limits.Time, caisson.Duration(left))
	r.Limits.Runs = new(min(r.Limits.StartableRuns(), max(0, p.Limits.StartableRuns()-p.Children-1)))
	r.Parent, r.Lineage = p.ID, append(slices.Clone(p.Lineage), p.ID)
	started, err := g.admission.submit(ctx, r)
	if err != nil {
		return nil, err
	}
	g.recordInParent(ctx, p, started)
	return started, nil
}

// recordInParent records in the parent's events that it has started a run. It uses the recorder of the parent's attempt.
func (g *guests) recordInParent(ctx context.Context, p *caisson.Run, child *caisson.Run) {
	g.events.Publish(ctx, p.Account, "run.started-run", string(p.ID), map[string]string{"child": string(child.ID), "agent": child.Agent})
	g.live.record(p.ID, caisson.RunEvent{Type: caisson.EventStatus, Phase: "running", Label: "started a run of " + child.Agent, Child: child.ID})
}

// GuestRun implements [caisson.GuestRuns].
func (g *guests) GuestRun(ctx context.Context, id caisson.ID) (*caisson.Run, error) {
	p, _, err := g.parent(ctx)
	if err != nil {
		return nil, err
	}
	r, err := g.runs.Get(ctx, caisson.In(p.Account), id)
	if err != nil || !slices.Contains(r.Lineage, p.ID) {
		return nil, caisson.Errorf(caisson.NotFound, "run %s has started no run %.30q", p.ID, id)
	}
	return r, nil
}

// CancelGuestRun implements [caisson.GuestRuns].
func (g *guests) CancelGuestRun(ctx context.Context, id caisson.ID) (*caisson.Run, error) {
	r, err := g.GuestRun(ctx, id)
	if err != nil {
		return nil, err
	}
	// CancelGuestRun does not wait until the runs have ended, because the requests of all other guests would wait, too.
	under, err := g.subRuns.unended(ctx, r)
	if err != nil {
		return nil, err
	}
	g.live.cancel(errCancelled{"it was cancelled by the run that started it"}, append(under, id)...)
	return r, nil
}
