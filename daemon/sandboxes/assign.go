package sandboxes

import (
	"context"
	"log/slog"
	"strings"

	"github.com/caisson-dev/caisson"
)

// assignments assigns sandboxes to runs.
type assignments struct {
	finder    finder
	sandboxes caisson.Table[caisson.Sandbox]
	locks     *locks
	network   network
	log       *slog.Logger
}

// assign implements [Core.Assign].
func (a *assignments) assign(ctx context.Context, id caisson.ID, to *caisson.Assignment) (*caisson.Sandbox, error) {
	if err := a.network.checkAssignment(ctx, to); err != nil {
		return nil, err
	}
	sb, err := a.finder.find(ctx, string(id))
	if err != nil {
		return nil, err
	}
	release, err := a.locks.acquireSoon(ctx, sb.ID)
	if err != nil {
		return nil, err
	}
	defer release()
	var old *caisson.Assignment
	set := func(ctx context.Context, change func(*caisson.Sandbox) error) (*caisson.Sandbox, error) {
		return a.sandboxes.Update(ctx, caisson.In(sb.Account), string(sb.ID), change)
	}
	// The assignment is stored first: if the daemon stops here, the next one configures the wire from the store.
	changed, err := set(ctx, func(s *caisson.Sandbox) error {
		old = s.Assigned
		if err := checkAssignable(s, to); err != nil {
			return err
		}
		s.Assigned = to
		return nil
	})
	if err != nil || !wired(changed) {
		return changed, err // A sandbox without a wire gets the assignment with its next wire.
	}
	err = a.network.configure(ctx, changed)
	if caisson.KindOf(err) == caisson.NotFound {
		err = nil // The sandbox has lost its wire and has no network access.
	}
	if err == nil {
		return changed, nil
	}
	// The wire may use either assignment now. The old one is restored, so that no run is charged for an assignment that
	// was reported as failed.
	clean := context.WithoutCancel(ctx)
	back, uerr := set(clean, func(s *caisson.Sandbox) error {
		s.Assigned = old
		return nil
	})
	if uerr == nil {
		uerr = a.network.configure(clean, back)
	}
	if uerr != nil {
		a.log.ErrorContext(ctx, "an assignment that failed could not be taken back", "sandbox", sb.ID, "err", uerr)
	}
	return nil, err
}

// checkAssignable returns a Conflict error if the sandbox cannot get the assignment a. Clearing the assignment (nil) is always
// allowed.
func checkAssignable(sb *caisson.Sandbox, a *caisson.Assignment) error {
	switch has := sb.Assigned; {
	case a == nil:
		return nil
	case sb.Pooled:
		return caisson.Errorf(caisson.Conflict, "this sandbox is in a pool and has not been claimed yet")
	case sb.State == caisson.Failed || sb.State == caisson.Removing:
		return caisson.Errorf(caisson.Conflict, "a %s sandbox cannot serve a run; it can only be removed", sb.State)
	case has != nil && (has.Run != a.Run || has.Attempt != a.Attempt):
		return caisson.Errorf(caisson.Conflict, "the sandbox serves attempt %d of run %s, which must end first", has.Attempt, has.Run)
	}
	return nil
}

// checkAssignment validates an assignment; nil is valid.
func (n network) checkAssignment(ctx context.Context, a *caisson.Assignment) error {
	if a == nil {
		return nil
	}
	if a.Run == "" {
		return caisson.Invalidf("assigned.run", "a run id is required")
	}
	for _, id := range a.Lineage {
		if id == "" || strings.ContainsAny(string(id), " \t\r\n") {
			return caisson.Invalidf("assigned.lineage", "%.70q is not the id of a run", id)
		}
	}
	return n.check(ctx, "assigned.", nil, a.Models)
}

// guestOf returns the wire's guest record of a sandbox that serves a run.
func guestOf(sb *caisson.Sandbox, a *caisson.Assignment) caisson.Guest {
	lineage := make([]string, len(a.Lineage))
	for i, id := range a.Lineage {
		lineage[i] = string(id)
	}
	return caisson.Guest{
		Sandbox: sb.ID, Account: sb.Account, Run: string(a.Run), Attempt: a.Attempt, Session: string(a.Session), Agent: a.Agent,
		User: a.User, Lineage: strings.Join(lineage, " "), Trace: a.Trace,
	}
}
