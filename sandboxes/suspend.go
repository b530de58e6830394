package sandboxes

import (
	"context"
	"errors"

	"github.com/caisson-dev/caisson"
)

// Suspend implements [caisson.Sandboxes]. The wire stays up: what the sandbox has sent is still answered, and waits for it.
func (l *Lifecycle) Suspend(ctx context.Context, ref string) (*caisson.Sandbox, error) {
	return l.change(ctx, ref, caisson.VerbSuspend, func(ctx context.Context, sb *caisson.Sandbox) error {
		// Its answer would never come.
		l.c.guests.dropGuest(sb.ID)
		if err := l.c.host.freeze(ctx, sb.ID); err != nil {
			return l.c.host.goesOn(ctx, sb.ID, err)
		}
		return nil
	})
}

// goesOn lets a sandbox go on that a failed change of one that ran may have left standing still, and returns that change's error. If it
// cannot it says that the sandbox is suspended, as far as is known: then it can be woken.
func (h *host) goesOn(ctx context.Context, id caisson.ID, err error) error {
	terr := h.thaw(context.WithoutCancel(ctx), id)
	if terr == nil || h.ended(id) {
		return err
	}
	return becameError{errors.Join(err, terr), caisson.Suspended}
}

// Wake implements [caisson.Sandboxes].
func (l *Lifecycle) Wake(ctx context.Context, ref string) (*caisson.Sandbox, error) {
	return l.change(ctx, ref, caisson.VerbWake, func(ctx context.Context, sb *caisson.Sandbox) error {
		return l.c.host.thaw(ctx, sb.ID)
	})
}

// freeze makes a sandbox stand still, also if it does already: an earlier daemon may have ended before it could say so.
func (h *host) freeze(ctx context.Context, id caisson.ID) error {
	return h.already(id, h.c.Runtime.Freeze(ctx, id))
}

// thaw lets a sandbox go on, also if it does already.
func (h *host) thaw(ctx context.Context, id caisson.ID) error {
	return h.already(id, h.c.Runtime.Thaw(ctx, id))
}

// letGoOn thaws a sandbox that was to stand still for a moment only. If that fails it is stored that it stands still, as far as is
// known: so it can be woken.
func (h *host) letGoOn(ctx context.Context, id caisson.ID) error {
	ctx = context.WithoutCancel(ctx)
	err := h.thaw(ctx, id)
	if err == nil {
		return nil
	}
	sb, serr := h.c.setState(ctx, id, caisson.Suspended, func(s *caisson.Sandbox) error {
		if s.State != caisson.Running || h.ended(id) {
			return errUnchanged
		}
		return nil
	})
	switch {
	case serr == nil:
		h.c.event(ctx, sb, "sandbox.suspended", map[string]string{"reason": caisson.MessageOf(err)})
	case !errors.Is(serr, errUnchanged):
		err = errors.Join(err, serr)
	}
	return err
}

// already makes nothing of a Conflict that says that nothing was to be done. What does not run is in conflict with everything.
func (h *host) already(id caisson.ID, err error) error {
	if caisson.KindOf(err) != caisson.Conflict {
		return err
	}
	if h.ended(id) {
		return caisson.Wrap(err, caisson.Conflict, "the sandbox has just ceased to run; look at its state")
	}
	return nil
}
