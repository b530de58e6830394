package sandboxes

import (
	"context"
	"log/slog"
	"strings"

	"github.com/caisson-dev/caisson"
)

// wireChanges changes the fields of sandboxes that determine the configuration of their wires, and applies them to the wires.
type wireChanges struct {
	finder   finder    // finds sandboxes of the caller's account
	states   states    // stored records of sandboxes
	locks    *locks    // one lock for each sandbox
	network  network   // configures wires and creates budgets
	activity *activity // records uses of sandboxes
	log      *slog.Logger
}

// assign sets the run that a sandbox of the caller's account serves; nil clears it. It applies the change to the sandbox's wire.
func (w *wireChanges) assign(ctx context.Context, id caisson.ID, to *caisson.Assignment) (*caisson.Sandbox, error) {
	if err := w.network.checkAssignment(ctx, to); err != nil {
		return nil, err
	}
	return w.change(ctx, string(id), func(sb *caisson.Sandbox) (undo func(*caisson.Sandbox), err error) {
		old := sb.Assigned
		if err := checkAssignable(sb, to); err != nil {
			return nil, err
		}
		sb.Assigned = to
		w.activity.recordUse(sb.ID) // The end of a run is the end of a use.
		return func(sb *caisson.Sandbox) { sb.Assigned = old }, nil
	})
}

// setFields sets fields of a sandbox, and returns a function that restores their old values.
type setFields = func(*caisson.Sandbox) (undo func(*caisson.Sandbox), err error)

// change stores the fields of a sandbox that set sets, and applies them to the sandbox's wire. If that fails, it restores the old
// fields with the function that set has returned.
func (w *wireChanges) change(ctx context.Context, ref string, set setFields) (*caisson.Sandbox, error) {
	sb, err := w.finder.find(ctx, ref)
	if err != nil {
		return nil, err
	}
	release, err := w.locks.acquireSoon(ctx, sb.ID)
	if err != nil {
		return nil, err
	}
	defer release()
	var undo func(*caisson.Sandbox)
	// The change is stored first: if the daemon stops here, the next one configures the wire from the store.
	changed, err := w.states.update(ctx, sb.ID, func(s *caisson.Sandbox) (err error) {
		undo, err = set(s)
		return err
	})
	if err != nil || !hasWire(changed) {
		return changed, err // A sandbox without a wire gets the change with its next wire.
	}
	err = w.network.configure(ctx, changed)
	if err == nil || caisson.KindOf(err) == caisson.NotFound { // A sandbox that has lost its wire has no network access.
		return changed, nil
	}
	// After the error, the wire may have the old or the new configuration. The old fields are restored, so that a change that was
	// reported as failed has no effect: no model call is charged to the new run, and the new policy is not in force.
	clean := context.WithoutCancel(ctx)
	back, uerr := w.states.update(clean, sb.ID, func(s *caisson.Sandbox) error {
		undo(s)
		return nil
	})
	if uerr == nil {
		uerr = w.network.configure(clean, back)
	}
	if uerr != nil {
		w.log.ErrorContext(ctx, "a change of a wire that failed could not be taken back", "sandbox", sb.ID, "err", uerr)
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

// runGuest returns the [caisson.Guest] by which the wire process identifies a sandbox that serves a run.
func runGuest(sb *caisson.Sandbox, a *caisson.Assignment) caisson.Guest {
	lineage := make([]string, len(a.Lineage))
	for i, id := range a.Lineage {
		lineage[i] = string(id)
	}
	return caisson.Guest{
		Sandbox: sb.ID, Account: sb.Account, Run: string(a.Run), Attempt: a.Attempt, Session: string(a.Session), Agent: a.Agent,
		User: a.User, Lineage: strings.Join(lineage, " "), Trace: a.Trace,
	}
}
