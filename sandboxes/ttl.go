package sandboxes

import (
	"context"
	"time"

	"github.com/caisson-dev/caisson"
)

func deadline(ttl caisson.Duration) *time.Time {
	if ttl == 0 {
		return nil
	}
	t := now().Add(time.Duration(ttl))
	return &t
}

// setDeadlines counts ttl and hard ttl from now.
func setDeadlines(sb *caisson.Sandbox) {
	sb.PauseAt, sb.RemoveAt = deadline(sb.Spec.TTL), deadline(sb.Spec.HardTTL)
}

// rearm counts the ttl of a resumed sandbox anew; the hard ttl goes on.
func (c *Core) rearm(sb *caisson.Sandbox) {
	updated, err := c.Store.Sandboxes().Update(c.ctx, caisson.Everyone(), string(sb.ID), func(s *caisson.Sandbox) error {
		s.PauseAt = deadline(s.Spec.TTL)
		return nil
	})
	if err == nil {
		c.arm(updated)
	}
}

// arm sets the timer for a sandbox's next deadline, replacing an earlier one.
func (c *Core) arm(sb *caisson.Sandbox) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t := c.timers[sb.ID]; t != nil {
		t.Stop()
		delete(c.timers, sb.ID)
	}
	next := sb.RemoveAt
	if sb.PauseAt != nil && (next == nil || sb.PauseAt.Before(*next)) && sb.State != caisson.Paused {
		next = sb.PauseAt
	}
	if next == nil || c.ctx.Err() != nil {
		return
	}
	id := sb.ID
	c.timers[id] = time.AfterFunc(time.Until(*next), func() {
		c.do(func(ctx context.Context) { c.expire(ctx, id) })
	})
}

func (c *Core) disarm(id caisson.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t := c.timers[id]; t != nil {
		t.Stop()
		delete(c.timers, id)
	}
}

// expire does what is due for a sandbox: its removal, or its pause.
func (c *Core) expire(ctx context.Context, id caisson.ID) {
	release, err := c.locks.acquire(ctx, id)
	if err != nil {
		return
	}
	defer release()
	sb, err := c.Store.Sandboxes().Get(ctx, caisson.Everyone(), string(id))
	if err != nil {
		return
	}
	due := func(t *time.Time) bool { return t != nil && !now().Before(*t) }
	switch {
	case due(sb.RemoveAt):
		if err := c.remove(ctx, id, "hard ttl of "+sb.Spec.HardTTL.String()+" reached"); err != nil {
			c.Log.ErrorContext(ctx, "a sandbox whose time is over could not be removed", "sandbox", id, "err", err)
		}
		return
	case due(sb.PauseAt) && sb.State == caisson.Running:
		sb, err = c.changeLocked(ctx, id, caisson.VerbPause, func(ctx context.Context, s *caisson.Sandbox) error {
			s.Reason = "ttl of " + s.Spec.TTL.String() + " reached"
			return c.pause(ctx, s)
		})
		if err != nil {
			c.Log.ErrorContext(ctx, "a sandbox whose time is over could not be paused", "sandbox", id, "err", err)
			return
		}
	}
	if sb.State != caisson.Running { // a stopped one has only its hard ttl left
		sb.PauseAt = nil
	}
	c.arm(sb)
}
