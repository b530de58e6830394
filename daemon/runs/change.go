package runs

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/caisson-dev/caisson"
)

// GetRun implements [caisson.Runs].
func (c runs) GetRun(ctx context.Context, id caisson.ID) (*caisson.Run, error) {
	in, _, err := scope(ctx)
	if err != nil {
		return nil, err
	}
	return c.Store.Runs().Get(ctx, in, id)
}

// ListRuns implements [caisson.Runs].
func (c runs) ListRuns(ctx context.Context, f caisson.RunFilter) ([]*caisson.Run, bool, error) {
	in, _, err := scope(ctx)
	if err != nil {
		return nil, false, err
	}
	return c.Store.Runs().List(ctx, in, f)
}

// errCancelled is the cause when an attempt is cancelled; by is its message.
type errCancelled struct{ message string }

func (e errCancelled) Error() string { return e.message }

// CancelRun implements [caisson.Runs].
func (c runs) CancelRun(ctx context.Context, id caisson.ID) (*caisson.Run, error) {
	r, err := c.GetRun(ctx, id)
	if err != nil {
		return nil, err
	}
	by := "it was cancelled"
	if actor := caisson.ActorOf(ctx); actor != "" {
		by += " by " + actor
	}
	if err := c.cancelTree(ctx, r, by); err != nil {
		return nil, err
	}
	return c.GetRun(ctx, id)
}

// cancelTree cancels a run and its sub-runs, and waits until they have ended.
func (c runs) cancelTree(ctx context.Context, r *caisson.Run, by string) error {
	under, err := c.liveSubRuns(ctx, r)
	if err != nil {
		return err
	}
	var wait []*liveAttempt
	c.mu.Lock()
	for _, id := range append([]caisson.ID{r.ID}, under...) {
		if l := c.live[id]; l != nil {
			l.cancel(errCancelled{by})
			wait = append(wait, l)
		}
	}
	c.mu.Unlock()
	for _, l := range wait {
		select {
		case <-l.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// liveSubRuns returns the sub-runs of r, at any depth, that have not ended.
func (c runs) liveSubRuns(ctx context.Context, r *caisson.Run) ([]caisson.ID, error) {
	if r.Children == 0 && r.State.Ended() {
		return nil, nil
	}
	f := caisson.RunFilter{Under: r.ID, States: []caisson.RunState{caisson.RunQueued, caisson.RunStarting, caisson.RunRunning}, Limit: 1000}
	list, _, err := c.Store.Runs().List(ctx, caisson.In(r.Account), f)
	var ids []caisson.ID
	for _, o := range list {
		if o.ID != r.ID {
			ids = append(ids, o.ID)
		}
	}
	return ids, err
}

// RetryRun implements [caisson.Runs].
func (c runs) RetryRun(ctx context.Context, id caisson.ID) (*caisson.Run, error) {
	in, caller, err := scope(ctx)
	if err != nil {
		return nil, err
	}
	r, err := c.GetRun(ctx, id)
	if err != nil {
		return nil, err
	}
	if len(r.Lineage) > 0 {
		return nil, caisson.Errorf(caisson.Conflict, "run %s is a sub-run of run %s; retry that run", id, r.Lineage[0])
	}
	if r.Local && !caller.Local {
		return nil, caisson.Errorf(caisson.Denied, "run %s was started over the unix socket and can only be retried there", id)
	}
	release, err := c.retryLocks.Acquire(ctx, string(id))
	if err != nil {
		return nil, err
	}
	defer release()
	// The previous attempt must be cleaned up completely: its budget and its claim of the session have the same keys.
	if r, err = c.ended(ctx, id); err != nil {
		return nil, err
	}
	if r.State != caisson.RunFailed {
		return nil, caisson.Errorf(caisson.Conflict, "only a run that has failed can be retried; this one is %s", r.State)
	}
	if err := c.storeEnd(ctx, r); err != nil {
		return nil, err
	}
	var session *caisson.Session
	if r.Request.Session != "" {
		if session, _, err = c.sessions.claim(ctx, r); err != nil {
			return nil, err
		}
	}
	r, err = c.Store.Runs().Update(ctx, in, id, func(r *caisson.Run) error {
		if r.Result != nil {
			r.Previous = append(r.Previous, *r.Result)
			r.Previous = slices.Delete(r.Previous, 0, max(0, len(r.Previous)-maxPrevious))
		}
		r.Attempt++
		r.State, r.Result, r.Trace, r.Children = caisson.RunQueued, nil, newTrace(), 0
		r.StartedAt, r.EndedAt, r.Deadline, r.Sandbox = time.Time{}, time.Time{}, time.Time{}, ""
		if session != nil {
			r.Session = session.ID
		}
		return nil
	})
	if err != nil {
		if session != nil {
			err = errors.Join(err, c.sessions.unclaim(context.WithoutCancel(ctx), &caisson.Run{ID: id, Session: session.ID, Account: session.Account}, nil))
		}
		return nil, err
	}
	c.Events.Publish(ctx, r.Account, "run.retried", string(r.ID), map[string]string{"attempt": strconv.Itoa(r.Attempt), "trace": r.Trace})
	return r, c.admission.queueAttempt(r)
}

// ended returns a run. If the run has ended, ended first waits until its attempt is cleaned up.
func (c runs) ended(ctx context.Context, id caisson.ID) (*caisson.Run, error) {
	r, err := c.GetRun(ctx, id)
	if err != nil || !r.State.Ended() {
		return r, err
	}
	if err := c.awaitCleanup(ctx, id); err != nil {
		return nil, err
	}
	return c.GetRun(ctx, id)
}

// maxPrevious is the maximum number of results of earlier attempts that a run keeps.
const maxPrevious = 20

// RemoveRun implements [caisson.Runs].
func (c runs) RemoveRun(ctx context.Context, id caisson.ID) error {
	in, _, err := scope(ctx)
	if err != nil {
		return err
	}
	r, err := c.ended(ctx, id)
	if err != nil {
		return err
	}
	if !r.State.Ended() {
		return caisson.Errorf(caisson.Conflict, "run %s is %s; cancel it first", id, r.State)
	}
	// The record is deleted first: a directory without a record is removed as garbage, but a record without a directory
	// would be wrong.
	if err := c.Store.Runs().Delete(ctx, in, id); err != nil {
		return err
	}
	c.Events.Publish(ctx, r.Account, "run.removed", string(id), nil)
	return c.admission.removeDir(id)
}
