package runs

import (
	"context"
	"slices"
	"time"

	"github.com/caisson-dev/caisson"
)

// parent returns the run that the guest in ctx serves, and its agent, if it may start sub-runs; otherwise it returns a
// Denied error. The guest's identity comes from its wire; the assignment of its sandbox is checked here.
func (c guests) parent(ctx context.Context) (*caisson.Run, *caisson.Agent, error) {
	g, err := caisson.GuestOf(ctx)
	if err != nil {
		return nil, nil, err
	}
	none := caisson.Errorf(caisson.Denied, "this sandbox serves no run that may start others")
	sb, err := c.Store.Sandboxes().Get(ctx, caisson.In(g.Account), string(g.Sandbox))
	if err != nil || sb.Assigned == nil || string(sb.Assigned.Run) != g.Run || !sb.Assigned.Tools {
		return nil, nil, none
	}
	r, err := c.Store.Runs().Get(ctx, caisson.In(g.Account), sb.Assigned.Run)
	if err != nil || r.State.Ended() || r.Attempt != sb.Assigned.Attempt {
		return nil, nil, none
	}
	a, err := c.Catalog.GetAgent(caisson.WithCaller(ctx, caisson.Caller{Account: g.Account}), r.Agent)
	if err != nil || len(a.SubAgents) == 0 {
		return nil, nil, none
	}
	return r, a, nil
}

// mayStart reports whether an agent may start runs of another.
func mayStart(a *caisson.Agent, id string) bool {
	return slices.Contains(a.SubAgents, "*") || slices.Contains(a.SubAgents, id)
}

// GuestAgents implements [caisson.GuestRuns].
func (c guests) GuestAgents(ctx context.Context) ([]*caisson.Agent, error) {
	r, a, err := c.parent(ctx)
	if err != nil {
		return nil, err
	}
	list, err := c.Catalog.ListAgents(caisson.WithCaller(ctx, caisson.Caller{Account: r.Account}))
	return slices.DeleteFunc(list, func(o *caisson.Agent) bool { return !mayStart(a, o.ID) }), err
}

// timeReserveDivisor is the part of its time limit that a run keeps for itself when a sub-run uses up all of its own time, as a
// divisor.
const timeReserveDivisor = 10 // one tenth

// StartGuestRun implements [caisson.GuestRuns].
func (c guests) StartGuestRun(ctx context.Context, req caisson.RunRequest) (*caisson.Run, error) {
	p, a, err := c.parent(ctx)
	if err != nil {
		return nil, err
	}
	if !mayStart(a, req.Agent) {
		return nil, caisson.Errorf(caisson.Denied, "%s may not start runs of %.70q", a.ID, req.Agent)
	}
	if len(p.Lineage) >= maxDepth {
		return nil, caisson.Errorf(caisson.Exhausted, "runs cannot be more than %d deep within one another", maxDepth)
	}
	if req.Policy != nil || req.Image != "" || req.Session != "" || req.Keep || req.Source != "" || req.Directory != nil || req.Workspace != nil ||
		req.Kind != "" || req.Sync != "" || len(req.Show) > 0 || req.Repo != nil || req.Interactive {
		return nil, caisson.Errorf(caisson.Denied, "an agent may set only agent, persona, prompt, history, model, env and limits")
	}
	req.User, req.Labels = p.Request.User, nil
	// An agent makes this request, so it does not count as one over the unix socket, even if the parent's did.
	ctx = caisson.WithCaller(ctx, caisson.Caller{Account: p.Account})
	r, err := c.admission.plan(ctx, caisson.Caller{Account: p.Account}, req)
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
	started, err := c.admission.submit(ctx, r)
	if err != nil {
		return nil, err
	}
	c.recordInParent(ctx, p, started)
	return started, nil
}

// recordInParent records in the parent's events that it has started a run. It uses the recorder of the parent's attempt.
func (c guests) recordInParent(ctx context.Context, p *caisson.Run, child *caisson.Run) {
	c.Events.Publish(ctx, p.Account, "run.started-run", string(p.ID), map[string]string{"child": string(child.ID), "agent": child.Agent})
	var tell func(...caisson.RunEvent)
	c.mu.Lock()
	if l := c.live[p.ID]; l != nil {
		tell = l.addEvents
	}
	c.mu.Unlock()
	if tell != nil {
		tell(caisson.RunEvent{Type: caisson.EventStatus, Phase: "running", Label: "started a run of " + child.Agent, Child: child.ID})
	}
}

// GuestRun implements [caisson.GuestRuns].
func (c guests) GuestRun(ctx context.Context, id caisson.ID) (*caisson.Run, error) {
	p, _, err := c.parent(ctx)
	if err != nil {
		return nil, err
	}
	r, err := c.Store.Runs().Get(ctx, caisson.In(p.Account), id)
	if err != nil || !slices.Contains(r.Lineage, p.ID) {
		return nil, caisson.Errorf(caisson.NotFound, "run %s has started no run %.30q", p.ID, id)
	}
	return r, nil
}

// CancelGuestRun implements [caisson.GuestRuns].
func (c guests) CancelGuestRun(ctx context.Context, id caisson.ID) (*caisson.Run, error) {
	r, err := c.GuestRun(ctx, id)
	if err != nil {
		return nil, err
	}
	// This does not wait until the runs have ended, because the requests of all other guests would wait, too.
	under, err := c.runs.liveSubRuns(ctx, r)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, o := range append(under, id) {
		if l := c.live[o]; l != nil {
			l.cancel(errCancelled{"it was cancelled by the run that started it"})
		}
	}
	return r, nil
}

// errOrphaned is the cause when a run ends because its parent has ended.
var errOrphaned = errCancelled{"the run that started it has ended"}

// orphaned reports whether the parent of a run has ended. A parent that ends later cancels its live sub-runs.
func (c guests) orphaned(ctx context.Context, r *caisson.Run) bool {
	if r.Parent == "" {
		return false
	}
	p, err := c.Store.Runs().Get(ctx, caisson.In(r.Account), r.Parent)
	return caisson.KindOf(err) == caisson.NotFound || err == nil && p.State.Ended()
}

// cancelSubRuns cancels the sub-runs of r, and waits until they have ended.
func (c guests) cancelSubRuns(ctx context.Context, r *caisson.Run) error {
	stored, err := c.Store.Runs().Get(ctx, caisson.In(r.Account), r.ID)
	if err != nil || stored.Children == 0 {
		return err
	}
	under, err := c.runs.liveSubRuns(ctx, stored)
	if err != nil {
		return err
	}
	var wait []*liveAttempt
	c.mu.Lock()
	for _, id := range under {
		if l := c.live[id]; l != nil {
			l.cancel(errOrphaned)
			wait = append(wait, l)
		}
	}
	c.mu.Unlock()
	for _, l := range wait {
		<-l.done
	}
	return nil
}
