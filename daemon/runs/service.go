package runs

import (
	"context"
	"errors"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/keylock"
)

// service implements [caisson.Runs]: the requests of callers about runs and sessions.
type service struct {
	runs       caisson.RunStore
	planner    *planner     // resolves requests into plans
	admission  *admission   // stores runs and queues attempts
	sessions   *sessions    // sessions and their sandboxes
	subRuns    *subRuns     // cancels sub-runs
	streams    *streams     // sends events to watchers
	live       *live        // queued and running attempts
	dirs       *directories // directories of runs
	logs       *runLogs     // reads the logs of runs
	events     caisson.Publisher
	retryLocks keylock.Locks // held by RetryRun while it starts another attempt, by run
}

// StartRun implements [caisson.Runs].
func (s *service) StartRun(ctx context.Context, req caisson.RunRequest) (*caisson.Run, error) {
	if req.Directory != nil {
		defer req.Directory.Close()
	}
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	r, err := s.planner.plan(ctx, caller, req)
	if err != nil {
		return nil, err
	}
	return s.admission.submit(ctx, r)
}

// GetRun implements [caisson.Runs].
func (s *service) GetRun(ctx context.Context, id caisson.ID) (*caisson.Run, error) {
	in, _, err := caisson.ScopeOf(ctx)
	if err != nil {
		return nil, err
	}
	return s.runs.Get(ctx, in, id)
}

// ListRuns implements [caisson.Runs].
func (s *service) ListRuns(ctx context.Context, f caisson.RunFilter) ([]*caisson.Run, bool, error) {
	in, _, err := caisson.ScopeOf(ctx)
	if err != nil {
		return nil, false, err
	}
	return s.runs.List(ctx, in, f)
}

// CancelRun implements [caisson.Runs].
func (s *service) CancelRun(ctx context.Context, id caisson.ID) (*caisson.Run, error) {
	r, err := s.GetRun(ctx, id)
	if err != nil {
		return nil, err
	}
	by := "it was cancelled"
	if actor := caisson.ActorOf(ctx); actor != "" {
		by += " by " + actor
	}
	if err := s.subRuns.cancelTree(ctx, r, by); err != nil {
		return nil, err
	}
	return s.GetRun(ctx, id)
}

// RetryRun implements [caisson.Runs].
func (s *service) RetryRun(ctx context.Context, id caisson.ID) (*caisson.Run, error) {
	in, caller, err := caisson.ScopeOf(ctx)
	if err != nil {
		return nil, err
	}
	r, err := s.GetRun(ctx, id)
	if err != nil {
		return nil, err
	}
	if len(r.Lineage) > 0 {
		return nil, caisson.Errorf(caisson.Conflict, "run %s is a sub-run of run %s; retry that run", id, r.Lineage[0])
	}
	if r.Local && !caller.Local {
		return nil, caisson.Errorf(caisson.Denied, "run %s was started over the unix socket and can only be retried there", id)
	}
	release, err := s.retryLocks.Acquire(ctx, string(id))
	if err != nil {
		return nil, err
	}
	defer release()
	// The previous attempt must be cleaned up completely, because the next attempt has the same budget key and the same session.
	if r, err = s.getCleanedUp(ctx, id); err != nil {
		return nil, err
	}
	if r.State != caisson.RunFailed {
		return nil, caisson.Errorf(caisson.Conflict, "only a run that has failed can be retried; the state of this one is %s", r.State)
	}
	if err := s.storeEnd(ctx, r); err != nil {
		return nil, err
	}
	var session *caisson.Session
	if r.Request.Session != "" {
		if session, _, err = s.sessions.acquire(ctx, r); err != nil {
			return nil, err
		}
	}
	r, err = s.runs.Update(ctx, in, id, func(r *caisson.Run) error {
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
			err = errors.Join(err, s.sessions.release(context.WithoutCancel(ctx), &caisson.Run{ID: id, Session: session.ID, Account: session.Account}, nil))
		}
		return nil, err
	}
	s.events.Publish(ctx, r.Account, "run.retried", string(r.ID), map[string]string{"attempt": strconv.Itoa(r.Attempt), "trace": r.Trace})
	return r, s.admission.queueAttempt(r)
}

// getCleanedUp returns a run. If the run has ended, it first waits until the last attempt of the run is cleaned up.
func (s *service) getCleanedUp(ctx context.Context, id caisson.ID) (*caisson.Run, error) {
	r, err := s.GetRun(ctx, id)
	if err != nil || !r.State.Ended() {
		return r, err
	}
	if err := s.live.awaitCleanup(ctx, id); err != nil {
		return nil, err
	}
	return s.GetRun(ctx, id)
}

// maxPrevious is the maximum number of results of earlier attempts that are stored with a run.
const maxPrevious = 20

// RemoveRun implements [caisson.Runs].
func (s *service) RemoveRun(ctx context.Context, id caisson.ID) error {
	in, _, err := caisson.ScopeOf(ctx)
	if err != nil {
		return err
	}
	r, err := s.getCleanedUp(ctx, id)
	if err != nil {
		return err
	}
	if !r.State.Ended() {
		return caisson.Errorf(caisson.Conflict, "run %s is %s; cancel it first", id, r.State)
	}
	// The run is deleted from the store before its directory is removed: a directory without a run in the store is removed as
	// garbage, but a run in the store must have its directory.
	if err := s.runs.Delete(ctx, in, id); err != nil {
		return err
	}
	s.events.Publish(ctx, r.Account, "run.removed", string(id), nil)
	return s.dirs.removeDir(id)
}

// ListSessions implements [caisson.Runs].
func (s *service) ListSessions(ctx context.Context, f caisson.SessionFilter) ([]*caisson.Session, error) {
	in, _, err := caisson.ScopeOf(ctx)
	if err != nil {
		return nil, err
	}
	list := []*caisson.Session{}
	err = s.sessions.each(ctx, in, func(o *caisson.Session) error {
		if (f.Agent == "" || f.Agent == o.Agent) && (f.User == "" || f.User == o.User) && (f.Key == "" || f.Key == o.Key) {
			list = append(list, o)
		}
		return nil
	})
	return list, err
}

// RemoveSession implements [caisson.Runs].
func (s *service) RemoveSession(ctx context.Context, id caisson.ID) error {
	in, _, err := caisson.ScopeOf(ctx)
	if err != nil {
		return err
	}
	return s.sessions.remove(ctx, in, id)
}

// WatchRun implements [caisson.Runs].
func (s *service) WatchRun(ctx context.Context, id caisson.ID, after int64) (<-chan caisson.RunEvent, error) {
	in, _, err := caisson.ScopeOf(ctx)
	if err != nil {
		return nil, err
	}
	if after < 0 {
		return nil, caisson.Invalidf("after", "is negative")
	}
	r, err := s.runs.Get(ctx, in, id)
	if err != nil {
		return nil, err
	}
	if err := s.storeEnd(ctx, r); err != nil {
		return nil, err
	}
	return s.streams.watch(ctx, in, id, after), nil
}

// storeEnd stores the last events of a run that has ended, if the daemon stopped before it could store them. The events are
// derived from the result.
func (s *service) storeEnd(ctx context.Context, r *caisson.Run) error {
	if s.live.get(r.ID) != nil || !r.State.Ended() || r.Result == nil {
		return nil
	}
	seq, told, err := s.streams.lastEvent(ctx, r)
	if err != nil || told {
		return err
	}
	// The recorder numbers the events after the last stored event. If another call has stored them in the meantime, the store
	// rejects them.
	rec := &recorder{streams: s.streams, run: r.ID, account: r.Account, attempt: r.Attempt, seq: seq}
	err = rec.end(ctx, endEvents(r.Result))
	if caisson.KindOf(err) == caisson.Conflict {
		return nil // another call has just stored the events
	}
	return err
}

// RunLog implements [caisson.Runs].
func (s *service) RunLog(ctx context.Context, id caisson.ID, stream string) (io.ReadCloser, error) {
	r, err := s.GetRun(ctx, id)
	if err != nil {
		return nil, err
	}
	return s.logs.open(ctx, r, stream)
}
