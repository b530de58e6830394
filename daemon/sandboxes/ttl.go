package sandboxes

import (
	"context"
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
	return new(now().Add(time.Duration(ttl)))
}

// setDeadlines sets the times at which a sandbox is paused and removed: its TTL and hard TTL from now.
func setDeadlines(sb *caisson.Sandbox) {
	sb.PauseAt, sb.RemoveAt = deadline(sb.Spec.TTL), deadline(sb.Spec.HardTTL)
}

// deadlines holds a timer for the next step of each sandbox.
type deadlines struct {
	activity   *activity         // records uses of sandboxes
	background *background.Group // background goroutines of the core
	due        chan caisson.ID   // sandboxes whose timers have fired

	mu     sync.Mutex
	timers map[caisson.ID]*time.Timer // timers by sandbox; guarded by mu
}

// close stops all timers. No timer is set after background has been stopped.
func (d *deadlines) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, t := range d.timers {
		t.Stop()
	}
}

// arm sets the timer for a sandbox's next step, and stops the sandbox's previous timer.
func (d *deadlines) arm(sb *caisson.Sandbox) { d.armAfter(sb, time.Time{}) }

// armAfter sets the timer for a sandbox's next step, and stops its previous timer. If retry is not zero, the timer fires at that
// time at the latest, and steps that are already due do not make it fire earlier.
func (d *deadlines) armAfter(sb *caisson.Sandbox, retry time.Time) {
	next := retry
	for _, s := range d.activity.steps(sb) {
		if (retry.IsZero() || !s.isDue()) && (next.IsZero() || s.at.Before(next)) {
			next = s.at
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if t := d.timers[sb.ID]; t != nil {
		t.Stop()
		delete(d.timers, sb.ID)
	}
	if next.IsZero() || d.background.Context().Err() != nil {
		return
	}
	id := sb.ID
	d.timers[id] = time.AfterFunc(time.Until(next), func() {
		d.background.Start(func(ctx context.Context) {
			select {
			case d.due <- id:
			case <-ctx.Done():
			}
		})
	})
}

// disarm stops the timer of a sandbox that is being removed, and deletes the record of its uses.
func (d *deadlines) disarm(id caisson.ID) {
	d.activity.forget(id)
	d.mu.Lock()
	defer d.mu.Unlock()
	if t := d.timers[id]; t != nil {
		t.Stop()
		delete(d.timers, id)
	}
}
