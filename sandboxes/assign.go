package sandboxes

import (
	"context"
	"strings"

	"github.com/caisson-dev/caisson"
)

// Assign says which run a sandbox of the caller's account serves from now on; nil says that it serves none. It is a Conflict while the
// sandbox serves another run, or another attempt of the same: there has to be an Assign of nil between. When Assign returns, what the
// sandbox calls on its wire is charged to the run, with the run's grant of models and not the sandbox's own. Calls that had begun stay
// what they were. If it fails, everything is as it was.
func (c *Core) Assign(ctx context.Context, id caisson.ID, a *caisson.Assignment) (*caisson.Sandbox, error) {
	if err := c.network.checkAssignment(ctx, a); err != nil {
		return nil, err
	}
	sb, err := c.find(ctx, string(id))
	if err != nil {
		return nil, err
	}
	release, err := c.locks.soon(ctx, sb.ID)
	if err != nil {
		return nil, err
	}
	defer release()
	var old *caisson.Assignment
	set := func(ctx context.Context, change func(*caisson.Sandbox) error) (*caisson.Sandbox, error) {
		return c.Store.Sandboxes().Update(ctx, caisson.In(sb.Account), string(sb.ID), change)
	}
	// Stored first: if the daemon dies now, the next one gives the wire what the store says.
	changed, err := set(ctx, func(s *caisson.Sandbox) error {
		old = s.Assigned
		if err := mayServe(s, a); err != nil {
			return err
		}
		s.Assigned = a
		return nil
	})
	if err != nil || !wired(changed) {
		return changed, err // without a wire it gets the assignment with its next one
	}
	err = c.network.configure(ctx, changed)
	if caisson.KindOf(err) == caisson.NotFound {
		err = nil // it has lost its wire, and reaches nothing
	}
	if err == nil {
		return changed, nil
	}
	// What is in force may be either now; nobody is to be charged who does not know of it.
	clean := context.WithoutCancel(ctx)
	back, uerr := set(clean, func(s *caisson.Sandbox) error {
		s.Assigned = old
		return nil
	})
	if uerr == nil {
		uerr = c.network.configure(clean, back)
	}
	if uerr != nil {
		c.Log.ErrorContext(ctx, "an assignment that failed could not be taken back", "sandbox", sb.ID, "err", uerr)
	}
	return nil, err
}

// mayServe says whether a sandbox can be given an assignment. To take one away is always possible.
func mayServe(sb *caisson.Sandbox, a *caisson.Assignment) error {
	switch has := sb.Assigned; {
	case a == nil:
		return nil
	case sb.Pooled:
		return caisson.Errorf(caisson.Conflict, "this sandbox waits in a pool and is nobody's yet")
	case sb.State == caisson.Failed || sb.State == caisson.Removing:
		return caisson.Errorf(caisson.Conflict, "a %s sandbox cannot serve a run; it can only be removed", sb.State)
	case has != nil && (has.Run != a.Run || has.Attempt != a.Attempt):
		return caisson.Errorf(caisson.Conflict, "the sandbox serves attempt %d of run %s; that has to end first", has.Attempt, has.Run)
	}
	return nil
}

// checkAssignment validates an assignment; nil is one, too.
func (n network) checkAssignment(ctx context.Context, a *caisson.Assignment) error {
	if a == nil {
		return nil
	}
	if a.Run == "" {
		return caisson.Invalidf("assigned.run", "say which run it is")
	}
	for _, id := range a.Lineage {
		if id == "" || strings.ContainsAny(string(id), " \t\r\n") {
			return caisson.Invalidf("assigned.lineage", "%.70q is not the id of a run", id)
		}
	}
	return n.check(ctx, "assigned.", nil, a.Models)
}

// serving is the guest of a sandbox that serves a run.
func serving(sb *caisson.Sandbox, a *caisson.Assignment) caisson.Guest {
	lineage := make([]string, len(a.Lineage))
	for i, id := range a.Lineage {
		lineage[i] = string(id)
	}
	return caisson.Guest{
		Sandbox: sb.ID, Account: sb.Account, Run: string(a.Run), Attempt: a.Attempt, Session: string(a.Session), Agent: a.Agent,
		User: a.User, Lineage: strings.Join(lineage, " "), Trace: a.Trace,
	}
}
