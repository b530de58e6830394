package sandboxes

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/background"
)

// deadlineRetry is the delay before a [step] of a sandbox that has failed is retried.
const deadlineRetry = time.Minute

// idleGrace is the time between SIGTERM and SIGKILL for sandboxes that are stopped because they are not in use.
const idleGrace = 10 * time.Second

// idleReason begins the Reason in the record of a sandbox that was suspended, paused or stopped because it was not in use.
const idleReason = "not used for "

// errUsed reports that a sandbox that was to be suspended, paused or stopped is in use again.
var errUsed = caisson.Errorf(caisson.Conflict, "the sandbox is used again")

// expiry executes the steps of sandboxes, such as pauses and removals, when they are due.
type expiry struct {
	states     states            // stored records of sandboxes
	locks      *locks            // one lock for each sandbox
	deadlines  *deadlines        // timers for TTLs and autoPause
	remover    *remover          // removes sandboxes
	keeper     *keeper           // takes and stores snapshots
	changes    *changes          // changes the states of sandboxes, one change at a time for each
	verbs      *verbs            // carries out changes of states on the host
	background *background.Group // background goroutines of the core
	log        *slog.Logger
	retry      time.Duration // delay before a failed step is retried: deadlineRetry, or less in tests
}

// run executes the steps of sandboxes whose timers have fired, until ctx ends.
func (e *expiry) run(ctx context.Context) {
	for {
		select {
		case id := <-e.deadlines.due:
			e.background.Start(func(ctx context.Context) {
				if err := e.expire(ctx, id); err != nil {
					e.retryLater(ctx, id, err)
				}
			})
		case <-ctx.Done():
			return
		}
	}
}

// expire executes the first due step of a sandbox, and sets the sandbox's timer for the next step.
func (e *expiry) expire(ctx context.Context, id caisson.ID) error {
	release, err := e.lock(ctx, id)
	if err != nil {
		return err
	}
	defer release()
	if err := e.changes.resolvePrevious(ctx, id); err != nil {
		return err
	}
	sb, err := e.states.get(ctx, id)
	if err != nil {
		return err
	}
	due, ok := e.due(sb)
	if ok {
		sb, err = e.execute(ctx, sb, due)
		if errors.Is(err, errUsed) {
			sb, err = e.states.get(ctx, id)
		}
		if err != nil || sb == nil {
			return err
		}
	}
	e.deadlines.arm(sb)
	return nil
}

// lock acquires a sandbox's lock, and waits while a change of the sandbox is in progress. If the sandbox is due to be removed
// without a final snapshot and the change takes too long, lock kills the sandbox's processes. If the sandbox is due to be removed
// after a final snapshot, lock waits for at most e.retry and then returns an error.
func (e *expiry) lock(ctx context.Context, id caisson.ID) (release func(), err error) {
	sb, err := e.states.get(ctx, id)
	if err != nil {
		return nil, err
	}
	if due, ok := e.due(sb); !ok || due.kind != actRemove {
		return e.locks.acquire(ctx, id)
	}
	if !e.keeper.takesFinal(sb) || e.keeper.retriesEnded(sb) {
		return e.remover.lock(ctx, id)
	}
	wait, cancel := context.WithTimeout(ctx, e.retry)
	defer cancel()
	return e.locks.acquire(wait, id)
}

// due returns the first due step of a sandbox, and false if no step is due.
func (e *expiry) due(sb *caisson.Sandbox) (step, bool) {
	list := e.deadlines.activity.steps(sb)
	if i := slices.IndexFunc(list, step.isDue); i >= 0 {
		return list[i], true
	}
	return step{}, false
}

// execute executes a step of a sandbox, and returns the resulting record of the sandbox; nil if the sandbox was removed. The
// caller must hold the sandbox's lock.
func (e *expiry) execute(ctx context.Context, sb *caisson.Sandbox, s step) (*caisson.Sandbox, error) {
	if (s.kind == actRemove || s.kind == actExpire) && s.limit > 0 && !isAnnounced(sb, s.until) {
		// The end of the TTL was not announced before, because the host was busy or no daemon ran.
		announced, err := e.announce(ctx, sb, s)
		if err != nil {
			return nil, err
		}
		sb = announced
	}
	switch s.kind {
	case actRemove:
		return nil, e.remove(ctx, sb)
	case actAnnounce:
		return e.announce(ctx, sb, s)
	case actExpire:
		return e.changes.changeLocked(ctx, sb.ID, caisson.VerbPause, func(ctx context.Context, b *caisson.Sandbox) error {
			b.Reason = "ttl of " + s.limit.String() + " reached"
			return e.verbs.pause(ctx, b)
		})
	case actWake:
		return e.wake(ctx, sb)
	case actSuspend:
		return e.autoPause(ctx, sb, s, caisson.VerbSuspend, e.verbs.suspend)
	case actPause:
		return e.autoPause(ctx, sb, s, caisson.VerbPause, e.verbs.pause)
	}
	return e.autoPause(ctx, sb, s, caisson.VerbStop, func(ctx context.Context, b *caisson.Sandbox) error {
		return e.verbs.stop(ctx, b, idleGrace)
	})
}

// remove removes a sandbox whose hard TTL has ended. If the sandbox gets a final snapshot, remove takes it first.
func (e *expiry) remove(ctx context.Context, sb *caisson.Sandbox) error {
	if e.keeper.takesFinal(sb) {
		if err := e.takeFinalSnapshot(ctx, sb); err != nil {
			if !e.keeper.retriesEnded(sb) {
				return err
			}
			e.log.ErrorContext(ctx, "a sandbox whose hard ttl is over is removed without its final snapshot, which could not be taken",
				"sandbox", sb.ID, "err", err)
		}
	}
	return e.remover.remove(ctx, sb.ID, "hard ttl of "+sb.Spec.HardTTL.String()+" reached")
}

// takeFinalSnapshot takes the final snapshot of a sandbox. It first pauses a suspended sandbox.
func (e *expiry) takeFinalSnapshot(ctx context.Context, sb *caisson.Sandbox) (err error) {
	if sb.State == caisson.Suspended { // A frozen sandbox has to be paused to be captured.
		if sb, err = e.changes.changeLocked(ctx, sb.ID, caisson.VerbPause, e.verbs.pause); err != nil {
			return err
		}
	}
	return e.keeper.takeFinal(ctx, sb)
}

// announce publishes an event that a sandbox will be paused or removed soon. It first stores that the end of the TTL was
// announced, so that the event is published only once.
func (e *expiry) announce(ctx context.Context, sb *caisson.Sandbox, s step) (*caisson.Sandbox, error) {
	limit, at := "ttl", sb.PauseAt
	if sb.RemoveAt != nil && s.until.Equal(*sb.RemoveAt) {
		limit, at = "hardTtl", sb.RemoveAt
	}
	sb, err := e.states.update(ctx, sb.ID, func(b *caisson.Sandbox) error {
		b.Announced = append(slices.DeleteFunc(b.Announced, func(t time.Time) bool { return !isDeadline(b, t) }), s.until)
		return nil
	})
	if err == nil {
		e.states.event(ctx, sb, "sandbox.expiring", map[string]string{"limit": limit, "at": at.Format(time.RFC3339Nano)})
	}
	return sb, err
}

// isDeadline reports whether t is still the time at which a sandbox is paused or removed.
func isDeadline(sb *caisson.Sandbox, t time.Time) bool {
	return sb.PauseAt != nil && sb.PauseAt.Equal(t) || sb.RemoveAt != nil && sb.RemoveAt.Equal(t)
}

// wake wakes a suspended sandbox, or resumes a paused one, at its WakeAt, and clears WakeAt.
func (e *expiry) wake(ctx context.Context, sb *caisson.Sandbox) (*caisson.Sandbox, error) {
	var err error
	switch sb.State {
	case caisson.Suspended:
		_, err = e.changes.changeLocked(ctx, sb.ID, caisson.VerbWake, e.verbs.wake)
	case caisson.Paused:
		_, err = e.changes.changeLocked(ctx, sb.ID, caisson.VerbResume, e.verbs.resume)
	}
	if err != nil {
		return nil, err
	}
	return e.states.update(ctx, sb.ID, func(b *caisson.Sandbox) error {
		if b.WakeAt != nil && b.WakeAt.Equal(*sb.WakeAt) { // WakeAt may have been set again in the meantime.
			b.WakeAt = nil
		}
		return nil
	})
}

// autoPause suspends, pauses or stops a sandbox that is not in use. v is the verb for the change, and act carries the change out
// on the host. Returns errUsed if the sandbox is in use again.
func (e *expiry) autoPause(ctx context.Context, sb *caisson.Sandbox, s step, v caisson.Verb, act func(context.Context, *caisson.Sandbox) error,
) (*caisson.Sandbox, error) {
	return e.changes.changeLocked(ctx, sb.ID, v, func(ctx context.Context, b *caisson.Sandbox) error {
		if e.deadlines.activity.inUse(b.ID) { // A use that begins later reads the new state, which is stored already.
			return errUsed
		}
		if err := act(ctx, b); err != nil {
			return err
		}
		b.Reason = idleReason + s.limit.String()
		return nil
	})
}

// retryLater schedules a retry of a sandbox's step that has failed with err.
func (e *expiry) retryLater(ctx context.Context, id caisson.ID, err error) {
	if caisson.KindOf(err) == caisson.NotFound || ctx.Err() != nil {
		return // The sandbox was removed, or the daemon stops and the next one sets the timer.
	}
	e.log.ErrorContext(ctx, "a scheduled step of a sandbox failed; it is tried again", "sandbox", id, "err", err)
	again := now().Add(e.retry)
	sb, err := e.states.get(ctx, id)
	if err != nil {
		sb = &caisson.Sandbox{ID: id}
	}
	e.deadlines.armAfter(sb, again)
}
