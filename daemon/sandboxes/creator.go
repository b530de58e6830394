package sandboxes

import (
	"context"
	"errors"
	"path/filepath"
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/undo"
)

// creator executes plans: it creates the planned sandboxes.
type creator struct {
	accounts   caisson.AccountStore // accounts with their host uids
	sandboxes  caisson.Table[caisson.Sandbox]
	states     states      // stored records of sandboxes
	locks      *locks      // one lock for each sandbox
	admission  *admission  // decides whether the host has room
	dirs       dirs        // paths and files in the data directory
	workspaces *workspaces // workspaces and volumes of sandboxes
	network    network     // configures wires and creates budgets
	processes  *processes  // starts and kills processes of sandboxes
	watches    *watches    // monitors running sandboxes
	deadlines  *deadlines  // timers for TTLs and autoPause
}

// recheck checks again what may have changed since the plan was made, for example while an image was pulled: the rights of the
// caller, and the host's policies, models and workspaces.
func (c *creator) recheck(ctx context.Context, p *plan) error {
	policy := p.request.policy // network.check changes a copy, because the forks of one request share the policy
	if policy != nil {
		policy = new(*policy)
	}
	if err := c.network.check(ctx, "", policy, p.request.models); err != nil {
		return err
	}
	if err := c.network.checkAssignment(ctx, p.request.assigned); err != nil {
		return err
	}
	return c.workspaces.check(ctx, p.workspace, p.request.mounts)
}

// execute stores a planned sandbox, creates its directory, and starts its processes if p.start is true.
func (c *creator) execute(ctx context.Context, p *plan) (_ *caisson.Sandbox, err error) {
	sb := p.sandbox
	release, err := c.locks.acquire(ctx, sb.ID)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := c.recheck(ctx, p); err != nil {
		return nil, err
	}
	var need caisson.Size
	if p.from == nil {
		_, err = c.accounts.Ensure(ctx, sb.Account)
	} else if p.from.memory {
		need = checkpointMemory(p.dir)
	}
	if err != nil {
		return nil, err
	}
	admitted, err := c.admission.admit(ctx, sb, need)
	if err != nil {
		return nil, err
	}
	defer admitted()
	var back undo.Stack
	defer func() { err = errors.Join(err, back.Run()) }()
	if err := c.sandboxes.Insert(ctx, sb); err != nil {
		return nil, err
	}
	clean := context.WithoutCancel(ctx)
	back.Push(func() error { return c.states.remove(clean, sb.ID) })
	back.Push(func() error { return c.dirs.removeSandboxDir(clean, sb.ID) })
	if err := c.dirs.makeSandboxDir(sb); err != nil {
		return nil, err
	}
	if err := c.dirs.recordMounts(sb.ID, sb.Spec.Mounts, p.handles); err != nil {
		return nil, err
	}
	if err := c.workspaces.create(ctx, sb, p.workspace, c.processes.halt, &back); err != nil {
		return nil, err
	}
	back.Push(func() error { return c.network.deleteBudget(clean, sb) })
	if err := c.network.createBudget(ctx, sb); err != nil {
		return nil, err
	}
	state, out := caisson.Created, startOutcome{}
	if p.start {
		state = caisson.Running
		if out, err = c.start(ctx, p, &back); err != nil {
			return nil, err
		}
	}
	made, err := c.states.set(ctx, sb.ID, state, func(s *caisson.Sandbox) error {
		s.Plan, s.Build, s.Reason, s.SharedRandomness = nil, sb.Build, out.filesOnly, out.shared
		setDeadlines(s)
		return nil
	})
	if err != nil {
		return nil, err
	}
	back.Release()
	if state == caisson.Running {
		c.watches.watch(made)
	}
	c.deadlines.activity.recordUse(made.ID)
	c.deadlines.arm(made)
	c.publish(ctx, p, made, out)
	c.workspaces.publishUnreviewed(ctx, made, p.workspace)
	return made, nil
}

// startOutcome is the outcome of a start of a planned sandbox.
type startOutcome struct {
	filesOnly string   // reason why memory was not restored, or ""
	shared    []string // programs in the restored memory that may draw the same random numbers as in other forks
}

// start starts the processes of a planned sandbox. It adds the function that ends them again to back.
func (c *creator) start(ctx context.Context, p *plan, back *undo.Stack) (out startOutcome, err error) {
	id := p.sandbox.ID
	switch {
	case p.from == nil:
		err = c.processes.run(ctx, p.sandbox, source{})
	case p.from.memory:
		out.filesOnly, err = c.processes.runFrom(ctx, p.sandbox, p.dir, p.randomness)
	default:
		err = c.processes.run(ctx, p.sandbox, source{files: pathIfExists(filepath.Join(p.dir, filesTar))})
	}
	if err != nil {
		return out, err
	}
	back.Push(func() error { return c.processes.halt(context.WithoutCancel(ctx), id) })
	// A fork for a run is not searched for programs with shared random numbers: an agent is forked only if its catalog entry
	// declares that its forks draw different ones (see caisson.Warm).
	if p.from != nil && p.from.memory && out.filesOnly == "" && p.request.assigned == nil {
		out.shared, err = c.processes.sharedRandomness(ctx, id)
	}
	return out, err
}

// publish publishes the event that a planned sandbox has been created or forked.
func (c *creator) publish(ctx context.Context, p *plan, made *caisson.Sandbox, out startOutcome) {
	if p.from == nil {
		c.states.event(ctx, made, "sandbox."+string(made.State), map[string]string{"template": made.Template})
		return
	}
	data := map[string]string{"parent": string(p.from.id), "reason": out.filesOnly}
	if len(out.shared) > 0 {
		data["sharedRandomness"] = strings.Join(out.shared, ", ")
	}
	c.states.event(ctx, made, "sandbox.forked", data)
}
