package runs

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/agent"
	"github.com/caisson-dev/caisson/internal/undo"
)

// StartRun implements [caisson.Runs].
func (c runs) StartRun(ctx context.Context, req caisson.RunRequest) (*caisson.Run, error) {
	if req.Directory != nil {
		defer req.Directory.Close()
	}
	_, caller, err := scope(ctx)
	if err != nil {
		return nil, err
	}
	r, err := c.admission.plan(ctx, caller, req)
	if err != nil {
		return nil, err
	}
	return c.admission.submit(ctx, r)
}

// plan resolves a request into a run that is not stored yet.
func (c admission) plan(ctx context.Context, caller caisson.Caller, req caisson.RunRequest) (*caisson.Run, error) {
	if caller.Account == "" {
		return nil, caisson.Errorf(caisson.Unauthed, "this request carries no account")
	}
	a, err := c.Catalog.GetAgent(ctx, req.Agent)
	if err != nil {
		return nil, err
	}
	models, err := c.Models.ListModels(ctx)
	if err != nil {
		return nil, err
	}
	plan, err := agent.Resolve(a, req, c.defaults(models), caller)
	if err != nil {
		return nil, err
	}
	if err := checkInteractive(&req, a, &plan.Limits); err != nil {
		return nil, err
	}
	if err := c.planWorkspace(&req, a); err != nil {
		return nil, err
	}
	if err := c.planRepo(ctx, caller, &req); err != nil {
		return nil, err
	}
	for k := range req.Labels {
		if strings.HasPrefix(k, labelPrefix) {
			return nil, caisson.Invalidf("labels", "%.80q begins with %s, as only Caisson's own do", k, labelPrefix)
		}
	}
	return &caisson.Run{
		ID: caisson.NewID(caisson.RunPrefix), Account: caller.Account, Agent: a.ID, Request: req, State: caisson.RunQueued,
		Attempt: 1, Trace: newTrace(), Limits: plan.Limits, Model: plan.Model, Local: caller.Local, CreatedAt: now(),
	}, nil
}

// defaults returns the settings that apply where neither the run nor its agent has its own.
func (c admission) defaults(models []caisson.GatewayModel) agent.Defaults {
	d := agent.Defaults{Limits: caisson.DefaultAgentLimits().WithBudget(c.Budget)}
	for _, m := range models {
		if m.Problem == "" && m.Alias != WarmModel {
			d.Models = append(d.Models, m)
		}
	}
	return d
}

// newTrace returns a trace-id in the format of the W3C Trace Context.
func newTrace() string {
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// submit stores a run and queues its first attempt.
func (c admission) submit(ctx context.Context, r *caisson.Run) (_ *caisson.Run, err error) {
	var back undo.Stack
	defer func() {
		if err != nil {
			err = errors.Join(err, back.Run())
		}
	}()
	clean := context.WithoutCancel(ctx)
	if r.Request.Session != "" {
		s, fresh, err := c.sessions.claim(ctx, r)
		if err != nil {
			return nil, err
		}
		r.Session = s.ID
		back.Push(func() error {
			if fresh {
				return c.Store.Sessions().Delete(clean, caisson.In(r.Account), string(s.ID))
			}
			return c.sessions.unclaim(clean, r, nil)
		})
	}
	back.Push(func() error { return c.removeDir(r.ID) })
	if err := c.keepWorkspace(ctx, r); err != nil {
		return nil, err
	}
	r.HasWorkspace = r.Request.Directory != nil || r.Request.Workspace != nil
	r.Request.Directory, r.Request.Workspace = nil, nil
	if err := c.Store.Runs().Insert(ctx, r, c.Limits.Waiting); err != nil {
		return nil, err
	}
	back.Release()
	c.Events.Publish(ctx, r.Account, "run.queued", string(r.ID), map[string]string{"agent": r.Agent, "trace": r.Trace})
	if err := c.queueAttempt(r); err != nil {
		return nil, err
	}
	return r, nil
}

// queueAttempt queues an attempt and starts the goroutine that executes it. The attempt is queued before the goroutine
// starts, so that runs are queued in the order of their requests. The goroutine gets only the parts of the request that
// it needs before admission; the rest is read from the store when the attempt starts.
func (c admission) queueAttempt(r *caisson.Run) error {
	ctx, cancel := context.WithCancelCause(caisson.WithCaller(c.ctx, caisson.Caller{Account: r.Account, Local: r.Local}))
	l := &liveAttempt{cancel: cancel, done: make(chan struct{})}
	c.mu.Lock()
	if c.ctx.Err() != nil {
		c.mu.Unlock()
		cancel(nil)
		return caisson.Errorf(caisson.Unavailable, "the daemon is shutting down; the run stays queued for the next one")
	}
	c.live[r.ID] = l
	copied := *r
	copied.Request = caisson.RunRequest{Session: r.Request.Session, User: r.Request.User, Keep: r.Request.Keep}
	place := c.queue.enter(r.ID, r.Account, len(r.Lineage))
	c.wg.Go(func() {
		defer cancel(nil)
		c.runQueued(ctx, &copied, l, place)
	})
	c.mu.Unlock()
	return nil
}

// runQueued waits until the run is admitted, and executes the attempt.
func (c admission) runQueued(ctx context.Context, r *caisson.Run, l *liveAttempt, place *ticket) {
	defer func() {
		c.queue.leave(place)
		c.mu.Lock()
		delete(c.live, r.ID)
		c.mu.Unlock()
		close(l.done)
	}()
	x := c.newAttempt(ctx, r)
	c.mu.Lock()
	l.addEvents = x.rec.add
	c.mu.Unlock()
	if c.guests.orphaned(ctx, r) {
		l.cancel(errOrphaned)
	}
	x.recordQueuePosition(place)
	select {
	case <-place.ready:
	case <-ctx.Done():
	}
	x.run(ctx)
}
