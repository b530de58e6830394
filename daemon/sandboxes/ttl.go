package sandboxes

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/background"
)

// deadline returns the time that is ttl from now, or nil if ttl is 0, which means no limit.
func deadline(ttl caisson.Duration) *time.Time {
	if ttl == 0 {
		return nil
	}
	t := now().Add(time.Duration(ttl))
	return &t
}

// setDeadlines sets the deadlines for TTL and hard TTL, counted from now.
func setDeadlines(sb *caisson.Sandbox) {
	sb.PauseAt, sb.RemoveAt = deadline(sb.Spec.TTL), deadline(sb.Spec.HardTTL)
}

// deadlineRetry is the delay before a failed pause or removal is retried.
const deadlineRetry = time.Minute

// deadlines holds the timers for TTL and hard TTL.
type deadlines struct {
	background *background.Group
	due        chan caisson.ID // sandboxes whose timers have fired

	mu     sync.Mutex
	timers map[caisson.ID]*time.Timer // guarded by mu
}

// close stops all timers. No timer is set after background has been stopped.
func (d *deadlines) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, t := range d.timers {
		t.Stop()
	}
}

// arm sets the timer for a sandbox's next deadline, and stops the sandbox's previous timer.
func (d *deadlines) arm(sb *caisson.Sandbox) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if t := d.timers[sb.ID]; t != nil {
		t.Stop()
		delete(d.timers, sb.ID)
	}
	next := sb.RemoveAt
	if sb.PauseAt != nil && (next == nil || sb.PauseAt.Before(*next)) && sb.State != caisson.Paused {
		next = sb.PauseAt
	}
	if next == nil || d.background.Context().Err() != nil {
		return
	}
	id := sb.ID
	d.timers[id] = time.AfterFunc(time.Until(*next), func() {
		d.background.Start(func(ctx context.Context) {
			select {
			case d.due <- id:
			case <-ctx.Done():
			}
		})
	})
}

// disarm stops the timer of a sandbox.
func (d *deadlines) disarm(id caisson.ID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if t := d.timers[id]; t != nil {
		t.Stop()
		delete(d.timers, id)
	}
}

// expiry removes and pauses sandboxes whose deadlines have passed.
type expiry struct {
	states     states
	locks      *locks
	deadlines  *deadlines
	remover    *remover
	changes    *changes
	verbs      *verbs
	background *background.Group
	log        *slog.Logger
	retry      time.Duration // deadlineRetry, or less in tests
}

// run handles deadlines until ctx ends.
func (e *expiry) run(ctx context.Context) {
	for {
		select {
		case id := <-e.deadlines.due:
			e.background.Start(func(ctx context.Context) { e.expire(ctx, id) })
		case <-ctx.Done():
			return
		}
	}
}

// expire removes or pauses a sandbox whose deadline has passed.
func (e *expiry) expire(ctx context.Context, id caisson.ID) {
	due := func(t *time.Time) bool { return t != nil && !now().Before(*t) }
	sb, err := e.states.get(ctx, id)
	if err != nil {
		e.retryLater(ctx, id, err)
		return
	}
	lock := e.locks.acquire
	if due(sb.RemoveAt) {
		lock = e.remover.lock
	}
	release, err := lock(ctx, id)
	if err != nil {
		e.retryLater(ctx, id, err)
		return
	}
	defer release()
	if sb, err = e.states.get(ctx, id); err != nil {
		e.retryLater(ctx, id, err)
		return
	}
	switch {
	case due(sb.RemoveAt):
		if err := e.remover.remove(ctx, id, "hard ttl of "+sb.Spec.HardTTL.String()+" reached"); err != nil {
			e.retryLater(ctx, id, err)
		}
		return
	case due(sb.PauseAt) && wired(sb):
		sb, err = e.changes.changeLocked(ctx, id, caisson.VerbPause, func(ctx context.Context, s *caisson.Sandbox) error {
			s.Reason = "ttl of " + s.Spec.TTL.String() + " reached"
			return e.verbs.pause(ctx, s)
		})
		if err != nil {
			e.log.ErrorContext(ctx, "a sandbox whose time is over could not be paused", "sandbox", id, "err", err)
			if sb, err = e.states.get(ctx, id); err != nil {
				e.retryLater(ctx, id, err)
				return
			}
			again := now().Add(e.retry)
			sb.PauseAt = &again // This only sets the timer; the stored sandbox is not changed.
		}
	}
	if !sb.State.Live() { // a stopped sandbox has only its hard TTL
		sb.PauseAt = nil
	}
	e.deadlines.arm(sb)
}

// retryLater schedules a retry of a failed pause or removal.
func (e *expiry) retryLater(ctx context.Context, id caisson.ID, err error) {
	if caisson.KindOf(err) == caisson.NotFound || ctx.Err() != nil {
		return // The sandbox is removed, or the next daemon sets its timer.
	}
	e.log.ErrorContext(ctx, "what is due for a sandbox whose time is over could not be done; it is tried again", "sandbox", id, "err", err)
	again := now().Add(e.retry)
	e.deadlines.arm(&caisson.Sandbox{ID: id, RemoveAt: &again}) // The time sets the timer; the stored sandbox is not changed.
}
