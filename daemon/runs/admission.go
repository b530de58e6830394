package runs

import (
	"context"
	"errors"
	"fmt"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/background"
	"github.com/caisson-dev/caisson/internal/undo"
)

// admission stores runs and queues their attempts.
type admission struct {
	runs       caisson.RunStore
	sessions   *sessions    // sessions and their sandboxes
	dirs       *directories // directories of runs
	queue      *queue       // decides which run starts next
	live       *live        // queued and running attempts
	subRuns    *subRuns     // cancels sub-runs
	executor   *executor    // executes attempts
	background *background.Group
	events     caisson.Publisher
	maxUnended int // maximum number of queued and running runs of one account, without sub-runs
}

// submit stores a run and queues its first attempt.
func (a *admission) submit(ctx context.Context, r *caisson.Run) (_ *caisson.Run, err error) {
	var back undo.Stack
	defer func() {
		if err != nil {
			err = errors.Join(err, back.Run())
		}
	}()
	clean := context.WithoutCancel(ctx)
	if r.Request.Session != "" {
		s, fresh, err := a.sessions.acquire(ctx, r)
		if err != nil {
			return nil, err
		}
		r.Session = s.ID
		back.Push(func() error {
			if fresh {
				return a.sessions.forget(clean, s)
			}
			return a.sessions.release(clean, r, nil)
		})
	}
	back.Push(func() error { return a.dirs.removeDir(r.ID) })
	if err := a.dirs.storeWorkspace(ctx, r); err != nil {
		return nil, err
	}
	r.HasWorkspace = r.Request.Directory != nil || r.Request.Workspace != nil
	r.Request.Directory, r.Request.Workspace = nil, nil
	if err := a.runs.Insert(ctx, r, a.maxUnended); err != nil {
		return nil, err
	}
	back.Release()
	a.events.Publish(ctx, r.Account, "run.queued", string(r.ID), map[string]string{"agent": r.Agent, "trace": r.Trace})
	if err := a.queueAttempt(r); err != nil {
		return nil, err
	}
	return r, nil
}

// queueAttempt queues an attempt and starts the goroutine that executes it. The attempt is queued before the goroutine starts,
// so that runs are queued in the order of their requests. The goroutine gets only the parts of the run that it needs before the
// run is admitted; it reads the other parts from the store when the attempt starts.
func (a *admission) queueAttempt(r *caisson.Run) error {
	caller := caisson.Caller{Account: r.Account, Local: r.Local}
	ctx, cancel := context.WithCancelCause(caisson.WithCaller(a.background.Context(), caller))
	closed := caisson.Errorf(caisson.Unavailable, "the daemon is shutting down; the run stays queued for the next one")
	l := a.live.add(r.ID, cancel)
	if l == nil {
		cancel(nil)
		return closed
	}
	copied := *r
	copied.Plan = nil
	copied.Request = caisson.RunRequest{Session: r.Request.Session, User: r.Request.User, Keep: r.Request.Keep}
	place := a.queue.enter(r.ID, r.Account, len(r.Lineage))
	leave := func() {
		a.queue.leave(place)
		a.live.remove(r.ID, l)
		cancel(nil)
	}
	if !a.background.Start(func(context.Context) {
		defer leave()
		a.runQueued(ctx, &copied, l, place)
	}) {
		leave()
		return closed
	}
	return nil
}

// runQueued waits until the run is admitted, and executes its attempt.
func (a *admission) runQueued(ctx context.Context, r *caisson.Run, l *liveAttempt, place *ticket) {
	x := a.executor.newAttempt(ctx, r)
	a.live.begin(l, x.rec)
	if a.subRuns.orphaned(ctx, r) {
		l.cancel(errOrphaned)
	}
	label := ""
	switch n, full := a.queue.ahead(place); {
	case n > 0:
		label = fmt.Sprintf("%d runs of the account are ahead of it", n)
	case full:
		label = "this host is full"
	}
	x.status("queued", label)
	select {
	case <-place.ready:
	case <-ctx.Done():
	}
	a.executor.run(ctx, x)
}
