package sandboxes

import (
	"context"
	"errors"

	"github.com/caisson-dev/caisson"
)

// freezer freezes and thaws sandboxes.
type freezer struct {
	runtime interface {
		caisson.Freezer
		doneReporter
	}
	states states // stored records of sandboxes
}

// thawAfter thaws a running sandbox that a failed change may have left frozen, and returns err, the error of that change. If the
// sandbox cannot be thawed, the returned error is a stateError that sets the state Suspended, so that the sandbox can be woken.
func (f *freezer) thawAfter(ctx context.Context, id caisson.ID, err error) error {
	terr := f.thaw(context.WithoutCancel(ctx), id)
	if terr == nil || ended(f.runtime, id) {
		return err
	}
	return stateError{errors.Join(err, terr), caisson.Suspended}
}

// freeze freezes a sandbox. It is idempotent, because an earlier daemon may have frozen the sandbox and stopped before it stored
// the new state.
func (f *freezer) freeze(ctx context.Context, id caisson.ID) error {
	return f.ignoreRepeated(id, f.runtime.Freeze(ctx, id))
}

// thaw thaws a frozen sandbox. It does nothing if the sandbox is not frozen.
func (f *freezer) thaw(ctx context.Context, id caisson.ID) error {
	return f.ignoreRepeated(id, f.runtime.Thaw(ctx, id))
}

// thawOrSuspend thaws a sandbox that was frozen only for a short time. If that fails, it stores the state Suspended, so that
// the sandbox can be woken.
func (f *freezer) thawOrSuspend(ctx context.Context, id caisson.ID) error {
	ctx = context.WithoutCancel(ctx)
	err := f.thaw(ctx, id)
	if err == nil {
		return nil
	}
	sb, serr := f.states.set(ctx, id, caisson.Suspended, func(s *caisson.Sandbox) error {
		if s.State != caisson.Running || ended(f.runtime, id) {
			return errUnchanged
		}
		return nil
	})
	switch {
	case serr == nil:
		f.states.event(ctx, sb, "sandbox.suspended", map[string]string{"reason": caisson.MessageOf(err)})
	case !errors.Is(serr, errUnchanged):
		err = errors.Join(err, serr)
	}
	return err
}

// ignoreRepeated returns err, the error of a freeze or thaw, but nil if err is a Conflict error because the sandbox was already
// frozen or thawed. If the sandbox has ended, it returns a Conflict error that says so.
func (f *freezer) ignoreRepeated(id caisson.ID, err error) error {
	if caisson.KindOf(err) != caisson.Conflict {
		return err
	}
	if ended(f.runtime, id) {
		return caisson.Wrap(err, caisson.Conflict, "the sandbox has just ceased to run; look at its state")
	}
	return nil
}
