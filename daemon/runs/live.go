package runs

import (
	"context"
	"errors"
	"sync"

	"github.com/caisson-dev/caisson"
)

// errClosing is the cause of the cancellation when work stops because the daemon stops. The next daemon reconciles that work.
var errClosing = errors.New("the daemon is shutting down")

// errCancelled is the cause of the cancellation when an attempt is cancelled; message says why.
type errCancelled struct{ message string }

func (e errCancelled) Error() string { return e.message }

// live contains the attempts of runs that are queued or running, and those that are being cleaned up.
type live struct {
	mu       sync.Mutex
	attempts map[caisson.ID]*liveAttempt  // queued and running attempts; guarded by mu
	cleanups map[caisson.ID]chan struct{} // channels by run, each closed when the last attempt is cleaned up; guarded by mu
	closed   bool                         // no attempts can be added; guarded by mu
}

// liveAttempt is a queued or running attempt.
type liveAttempt struct {
	cancel context.CancelCauseFunc // cancels the attempt
	rec    *recorder               // records the run's events; nil before the attempt has begun; guarded by live.mu
	done   chan struct{}           // closed when the attempt has ended, its result is stored, and its queue slot is free
}

// newLive returns a [live] that contains no attempts yet.
func newLive() *live {
	return &live{attempts: map[caisson.ID]*liveAttempt{}, cleanups: map[caisson.ID]chan struct{}{}}
}

// add adds the attempt of a run, and returns nil if l is closed. The caller must call remove.
func (l *live) add(run caisson.ID, cancel context.CancelCauseFunc) *liveAttempt {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	a := &liveAttempt{cancel: cancel, done: make(chan struct{})}
	l.attempts[run] = a
	return a
}

// remove removes the attempt of a run, which has ended.
func (l *live) remove(run caisson.ID, a *liveAttempt) {
	l.mu.Lock()
	delete(l.attempts, run)
	l.mu.Unlock()
	close(a.done)
}

// get returns the attempt of a run; nil if none is queued or running.
func (l *live) get(run caisson.ID) *liveAttempt {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.attempts[run]
}

// begin sets the recorder of an attempt that begins.
func (l *live) begin(a *liveAttempt, rec *recorder) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a.rec = rec
}

// record adds an event to the events of a run's attempt, if the attempt has begun and not ended.
func (l *live) record(run caisson.ID, e caisson.RunEvent) {
	var rec *recorder
	l.mu.Lock()
	if a := l.attempts[run]; a != nil {
		rec = a.rec
	}
	l.mu.Unlock()
	if rec != nil {
		rec.add(e)
	}
}

// cancel cancels the queued and running attempts of runs, and returns these attempts.
func (l *live) cancel(cause error, runs ...caisson.ID) (cancelled []*liveAttempt) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range runs {
		if a := l.attempts[id]; a != nil {
			a.cancel(cause)
			cancelled = append(cancelled, a)
		}
	}
	return cancelled
}

// close cancels all attempts because the daemon stops. No attempt can be added afterwards.
func (l *live) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for _, a := range l.attempts {
		a.cancel(errClosing)
	}
}

// any reports whether an attempt is queued or running.
func (l *live) any() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.attempts) > 0
}

// cleaning records that the last attempt of a run is being cleaned up, until the returned function is called.
func (l *live) cleaning(run caisson.ID) (done func()) {
	gone := make(chan struct{})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cleanups[run] = gone
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.cleanups, run)
		close(gone)
	}
}

// anyCleaning reports whether an attempt is being cleaned up.
func (l *live) anyCleaning() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.cleanups) > 0
}

// awaitCleanup waits until the last attempt of a run has ended and is cleaned up.
func (l *live) awaitCleanup(ctx context.Context, run caisson.ID) error {
	for {
		l.mu.Lock()
		a, wait := l.attempts[run], l.cleanups[run]
		l.mu.Unlock()
		if a != nil {
			wait = a.done
		}
		if wait == nil {
			return nil
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// subRuns cancels runs together with the runs that their agents have started.
type subRuns struct {
	runs caisson.RunStore
	live *live // queued and running attempts
}

// cancelTree cancels a run and its sub-runs, and waits until they have ended. by is the error message of their results.
func (s *subRuns) cancelTree(ctx context.Context, r *caisson.Run, by string) error {
	under, err := s.unended(ctx, r)
	if err != nil {
		return err
	}
	for _, l := range s.live.cancel(errCancelled{by}, append([]caisson.ID{r.ID}, under...)...) {
		select {
		case <-l.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// unended returns the sub-runs of r, at any depth, that have not ended.
func (s *subRuns) unended(ctx context.Context, r *caisson.Run) ([]caisson.ID, error) {
	if r.Children == 0 && r.State.Ended() {
		return nil, nil
	}
	f := caisson.RunFilter{Under: r.ID, States: []caisson.RunState{caisson.RunQueued, caisson.RunStarting, caisson.RunRunning}, Limit: 1000}
	list, _, err := s.runs.List(ctx, caisson.In(r.Account), f)
	var ids []caisson.ID
	for _, o := range list {
		if o.ID != r.ID {
			ids = append(ids, o.ID)
		}
	}
	return ids, err
}

// errOrphaned is the cause of the cancellation when a run ends because its parent has ended.
var errOrphaned = errCancelled{"the run that started it has ended"}

// orphaned reports whether the parent of a run has ended. If the parent ends later, it cancels its queued and running sub-runs.
func (s *subRuns) orphaned(ctx context.Context, r *caisson.Run) bool {
	if r.Parent == "" {
		return false
	}
	p, err := s.runs.Get(ctx, caisson.In(r.Account), r.Parent)
	return caisson.KindOf(err) == caisson.NotFound || err == nil && p.State.Ended()
}

// cancel cancels the sub-runs of r, and waits until they have ended.
func (s *subRuns) cancel(ctx context.Context, r *caisson.Run) error {
	stored, err := s.runs.Get(ctx, caisson.In(r.Account), r.ID)
	if err != nil || stored.Children == 0 {
		return err
	}
	under, err := s.unended(ctx, stored)
	if err != nil {
		return err
	}
	for _, l := range s.live.cancel(errOrphaned, under...) {
		<-l.done
	}
	return nil
}
