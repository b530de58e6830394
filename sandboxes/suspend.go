package sandboxes

import (
	"context"

	"github.com/caisson-dev/caisson"
)

// Suspend implements [caisson.Sandboxes]. The wire stays up: what the sandbox has sent is still answered, and waits for it.
func (l *Lifecycle) Suspend(ctx context.Context, ref string) (*caisson.Sandbox, error) {
	return l.change(ctx, ref, caisson.VerbSuspend, func(ctx context.Context, sb *caisson.Sandbox) error {
		// Its answer would never come.
		l.c.guests.dropGuest(sb.ID)
		if err := l.c.host.freeze(ctx, sb.ID); err != nil {
			// It may stand still all the same. Thawing what is not frozen is a Conflict, and no harm.
			_ = l.c.Runtime.Thaw(context.WithoutCancel(ctx), sb.ID)
			return err
		}
		return nil
	})
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

// already makes nothing of a Conflict that says that nothing was to be done. What does not run is in conflict with everything.
func (h *host) already(id caisson.ID, err error) error {
	if caisson.KindOf(err) != caisson.Conflict {
		return err
	}
	select {
	case <-h.c.Runtime.Done(id):
		return caisson.Wrap(err, caisson.Conflict, "the sandbox has just ceased to run; look at its state")
	default:
		return nil
	}
}
