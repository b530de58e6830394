package runs

import (
	"context"
	"errors"
	"time"

	"github.com/caisson-dev/caisson"
)

// claim finds or creates the session of a run, and reserves it for the run: a session has one run at a time. fresh
// means that it was created.
func (c sessions) claim(ctx context.Context, r *caisson.Run) (s *caisson.Session, fresh bool, err error) {
	in := caisson.In(r.Account)
	name := caisson.SessionName(r.Agent, r.Request.User, r.Request.Session)
	var ended caisson.ID // the previous run, which has ended but not released the session yet
	take := func(s *caisson.Session) error {
		switch s.Run {
		case "", r.ID, ended:
			s.Run = r.ID
			return nil
		case removing:
			return caisson.Errorf(caisson.Conflict, "this session is being removed; try again when it is gone")
		}
		return busy{s.Run, caisson.Errorf(caisson.Conflict, "run %s of this session is under way; wait for it or cancel it", s.Run)}
	}
	for {
		release, err := c.sessionLocks.Acquire(ctx, r.Account+name)
		if err != nil {
			return nil, false, err
		}
		s, err := c.Store.Sessions().Update(ctx, in, name, take)
		release()
		if b, ok := errors.AsType[busy](err); ok {
			if h, herr := c.Store.Runs().Get(ctx, in, b.run); herr != nil || !h.State.Ended() {
				return nil, false, b.error
			}
			c.mu.Lock()
			l := c.live[b.run]
			c.mu.Unlock()
			if l != nil {
				select {
				case <-l.done:
				case <-ctx.Done():
					return nil, false, ctx.Err()
				}
			}
			ended = b.run
			continue
		}
		if caisson.KindOf(err) != caisson.NotFound {
			return s, false, err
		}
		s = &caisson.Session{
			ID: caisson.NewID(caisson.SessionPrefix), Account: r.Account, Agent: r.Agent, User: r.Request.User, Key: r.Request.Session,
			Run: r.ID, CreatedAt: now(), UsedAt: now(),
		}
		if err := c.Store.Sessions().Insert(ctx, s); caisson.KindOf(err) != caisson.Conflict {
			return s, true, err
		}
		// Another run has just created it; try again.
	}
}

// busy is the error that another run has claimed the session.
type busy struct {
	run caisson.ID // the run that has claimed it
	error
}

// unclaim releases a run's session. box, if not nil, is the session's sandbox from now on.
func (c sessions) unclaim(ctx context.Context, r *caisson.Run, box *caisson.Sandbox) error {
	if r.Session == "" {
		return nil
	}
	_, err := c.Store.Sessions().Update(ctx, caisson.In(r.Account), string(r.Session), func(s *caisson.Session) error {
		if s.Run != r.ID {
			return nil
		}
		s.Run, s.UsedAt = "", now()
		if box != nil {
			s.Sandbox, s.Volume = box.ID, ""
			if box.Spec.Volume != nil {
				s.Volume = box.Spec.Volume.ID
			}
			s.Runs++
		}
		return nil
	})
	if caisson.KindOf(err) == caisson.NotFound {
		return nil // the session was removed in the meantime
	}
	return err
}

// openSession wakes the sandbox of the run's session and assigns it to the run. It returns false if the session has no
// usable sandbox.
func (x provisioner) openSession(ctx context.Context) (ok bool, err error) {
	s, err := x.c.Store.Sessions().Get(ctx, caisson.In(x.r.Account), string(x.r.Session))
	if err != nil {
		return false, err
	}
	x.volume = s.Volume
	if s.Sandbox == "" {
		return false, nil
	}
	if err := x.checkWorkspace(ctx, s.Sandbox); err != nil {
		return false, err
	}
	err = x.wakeAndAssign(ctx, s.Sandbox)
	clean := context.WithoutCancel(ctx)
	if err != nil && caisson.KindOf(err) == caisson.Internal && ctx.Err() == nil {
		// Its memory may be lost, but its files are not.
		x.warn(ctx, "the session's sandbox did not wake; it goes on with its files", err)
		x.giveBack(clean, s.Sandbox)
		err = x.wakeAndAssign(ctx, s.Sandbox)
	}
	if err == nil {
		x.prompted = true
		x.version(map[string]string{"digest": x.sandbox.Spec.Digest})
		return true, nil
	}
	x.sandbox = nil
	// A temporary error must not lose the session's sandbox.
	if caisson.KindOf(err) != caisson.NotFound || ctx.Err() != nil {
		x.giveBack(clean, s.Sandbox)
		if caisson.KindOf(err) == caisson.Conflict || caisson.KindOf(err) == caisson.Internal {
			err = &failure{code: caisson.RunInternal, msg: "the session's sandbox cannot be used at present; try again", err: err}
		}
		return false, err
	}
	x.warn(ctx, "the session's sandbox cannot be taken up again; it begins anew with the messages so far", err)
	if err := x.c.Sandboxes.Lifecycle.Remove(clean, string(s.Sandbox)); err != nil && caisson.KindOf(err) != caisson.NotFound {
		return false, err
	}
	_, err = x.c.Store.Sessions().Update(ctx, caisson.In(x.r.Account), string(s.ID), func(s *caisson.Session) error {
		s.Sandbox = ""
		return nil
	})
	return false, err
}

// checkWorkspace returns an error if a session's sandbox does not have the workspace that the run requests, before the sandbox is
// changed. Sandboxes that have failed or no longer exist are not checked.
func (x provisioner) checkWorkspace(ctx context.Context, id caisson.ID) (err error) {
	x.sandbox, err = x.c.Sandboxes.Lifecycle.Get(ctx, string(id))
	defer func() { x.sandbox = nil }()
	if caisson.KindOf(err) == caisson.NotFound && err != nil {
		return nil
	}
	if err != nil || x.sandbox.State == caisson.Failed || x.sandbox.State == caisson.Removing {
		return err
	}
	return x.sameWorkspace(ctx)
}

// wakeAndAssign wakes a session's sandbox and assigns it to the run. Returns NotFound if the sandbox is no longer usable.
func (x provisioner) wakeAndAssign(ctx context.Context, id caisson.ID) error {
	sb, started, err := x.wake(ctx, id)
	if err != nil {
		return err
	}
	x.sandbox, err = x.c.Sandboxes.Assign(ctx, sb.ID, x.assignment())
	x.phase("wire")
	if err == nil {
		err = x.setPolicy(ctx)
	}
	if err == nil && started {
		err = x.serve(ctx)
		x.phase("resume")
	}
	return err
}

// setPolicy sets the run's policy on a session's sandbox. It may allow less or more than that of the previous run.
func (x provisioner) setPolicy(ctx context.Context) error {
	if x.r.Request.Image != "" {
		return caisson.Invalidf("image", "a session goes on in the sandbox that it has; leave the image out, or begin another session")
	}
	_, err := x.c.Sandboxes.Policies.SetPolicy(x.asOwner(ctx), string(x.sandbox.ID), *x.policy())
	return err
}

// busyTimeout is how long an operation is retried while another operation changes the sandbox, or a part of the host
// restarts.
const busyTimeout = 10 * time.Second

// retryWhileBusy retries f while it fails for a temporary reason.
func (x provisioner) retryWhileBusy(ctx context.Context, f func() error) error {
	end := time.Now().Add(busyTimeout)
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		err := x.retryWhileFull(ctx, f)
		if kind := caisson.KindOf(err); kind != caisson.Conflict && kind != caisson.Unavailable || time.Now().After(end) {
			return err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return err
		}
	}
}

// giveBack leaves a session's sandbox that the run could not use to the next run: without an assignment, and stopped if
// its service may not be running, so that the next run starts it.
func (x provisioner) giveBack(ctx context.Context, id caisson.ID) {
	_, err := x.c.Sandboxes.Assign(ctx, id, nil)
	if sb, gerr := x.c.Sandboxes.Lifecycle.Get(ctx, string(id)); err == nil && gerr == nil && sb.State == caisson.Running {
		_, err = x.c.Sandboxes.Lifecycle.Stop(ctx, string(id), 0)
	}
	if err != nil {
		x.log.WarnContext(ctx, "the sandbox of a session could not be released", "sandbox", id, "err", err)
	}
}

// wake gets a session's sandbox running, from any state. started means that no process, and thus no service, runs in it
// yet.
func (x provisioner) wake(ctx context.Context, id caisson.ID) (sb *caisson.Sandbox, started bool, err error) {
	defer x.phase("resume")
	err = x.retryWhileBusy(ctx, func() (err error) {
		if sb, err = x.c.Sandboxes.Lifecycle.Get(ctx, string(id)); err != nil {
			return err
		}
		// A sandbox that another build started can only be stopped and started again; its files are kept.
		if foreign := sb.Build != x.c.Build; foreign && (sb.State == caisson.Suspended || sb.State == caisson.Running) {
			if sb, err = x.c.Sandboxes.Lifecycle.Stop(ctx, string(id), 0); err != nil {
				return err
			}
		}
		switch sb.State {
		case caisson.Suspended:
			sb, err = x.c.Sandboxes.Lifecycle.Wake(ctx, string(id))
		case caisson.Paused:
			sb, err = x.c.Sandboxes.Lifecycle.Resume(ctx, string(id))
			started = err == nil && sb.Reason != "" // its memory is lost
		case caisson.Stopped, caisson.Created:
			sb, err = x.c.Sandboxes.Lifecycle.Start(ctx, string(id))
			started = true
		case caisson.Running:
		default:
			kind := caisson.Conflict
			if sb.State == caisson.Failed || sb.State == caisson.Removing {
				kind = caisson.NotFound // the sandbox is no longer usable
			}
			err = caisson.Errorf(kind, "the sandbox is %s: %s", sb.State, sb.Reason)
		}
		return err
	})
	return sb, started, err
}

// Limits of the messages before a prompt, in bytes and in number.
const (
	maxHistory      = 256 << 10
	maxHistoryCount = 200
)

// history returns the messages of the run's session before this run, oldest first, up to the limits.
func (c sessions) history(ctx context.Context, r *caisson.Run) ([]caisson.Message, error) {
	if r.Session == "" {
		return r.Request.History, nil
	}
	list, _, err := c.Store.Runs().List(ctx, caisson.In(r.Account), caisson.RunFilter{
		Session: r.Session, States: []caisson.RunState{caisson.RunSucceeded, caisson.RunFailed}, Limit: maxHistoryCount / 2,
	})
	if err != nil {
		return nil, err
	}
	var msgs []caisson.Message // newest first
	size := 0
	for _, o := range list {
		if o.ID == r.ID || o.Result == nil {
			continue
		}
		size += len(o.Request.Prompt) + len(o.Result.Answer)
		if size > maxHistory {
			break
		}
		if o.Result.Answer != "" {
			msgs = append(msgs, caisson.Message{Role: "assistant", Content: o.Result.Answer})
		}
		msgs = append(msgs, caisson.Message{Role: "user", Content: o.Request.Prompt})
	}
	for i, j := 0, len(msgs)-1; i < j; i, j = i+1, j-1 {
		msgs[i], msgs[j] = msgs[j], msgs[i]
	}
	return append(append([]caisson.Message{}, r.Request.History...), msgs...), nil
}

// ListSessions implements [caisson.Runs].
func (c runs) ListSessions(ctx context.Context, f caisson.SessionFilter) ([]*caisson.Session, error) {
	in, _, err := scope(ctx)
	if err != nil {
		return nil, err
	}
	list := []*caisson.Session{}
	err = c.sessions.eachSession(ctx, in, func(s *caisson.Session) error {
		if (f.Agent == "" || f.Agent == s.Agent) && (f.User == "" || f.User == s.User) && (f.Key == "" || f.Key == s.Key) {
			list = append(list, s)
		}
		return nil
	})
	return list, err
}

// eachSession calls do for every session in a scope, until do returns an error.
func (c sessions) eachSession(ctx context.Context, in caisson.Scope, do func(*caisson.Session) error) error {
	f := caisson.Filter{Limit: 1000}
	for {
		list, more, err := c.Store.Sessions().List(ctx, in, f)
		if err != nil {
			return err
		}
		for _, s := range list {
			f.After = s.ID
			if err := do(s); err != nil {
				return err
			}
		}
		if !more {
			return nil
		}
	}
}

// RemoveSession implements [caisson.Runs].
func (c runs) RemoveSession(ctx context.Context, id caisson.ID) error {
	in, _, err := scope(ctx)
	if err != nil {
		return err
	}
	s, err := c.Store.Sessions().Update(ctx, in, string(id), func(s *caisson.Session) error {
		if s.Run == removing {
			return caisson.Errorf(caisson.Conflict, "this session is being removed already")
		}
		if s.Run != "" {
			return caisson.Errorf(caisson.Conflict, "run %s of this session is under way; cancel it first", s.Run)
		}
		s.Run = removing // no run can claim it from now on
		return nil
	})
	if err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx) // a partly removed session would be unusable
	if s.Sandbox != "" {
		if err := c.Sandboxes.Lifecycle.Remove(ctx, string(s.Sandbox)); err != nil && caisson.KindOf(err) != caisson.NotFound {
			_, uerr := c.Store.Sessions().Update(ctx, in, string(id), func(s *caisson.Session) error {
				s.Run = ""
				return nil
			})
			return errors.Join(err, uerr)
		}
	}
	c.Events.Publish(ctx, s.Account, "session.removed", string(s.ID), nil)
	return c.Store.Sessions().Delete(ctx, in, string(s.ID))
}

// removing is stored as the run of a session that is being removed.
const removing caisson.ID = "removing"

// pauseIdle frees resources of idle sessions: their memory is moved to disk, and later only their files are kept.
func (c sessions) pauseIdle(ctx context.Context, at time.Time) error {
	return c.eachSession(ctx, caisson.AllAccounts(), func(s *caisson.Session) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if s.Run != "" || s.Sandbox == "" || at.Sub(s.UsedAt) < time.Duration(c.Limits.SessionIdle) {
			return nil
		}
		if err := c.pauseOrStop(ctx, s, at); err != nil && ctx.Err() == nil {
			c.Log.WarnContext(ctx, "a session could not be put to rest", "session", s.ID, "sandbox", s.Sandbox, "err", err)
		}
		return nil
	})
}

// pauseOldest pauses the session in memory that has been idle for longest, and reports whether there was one.
func (c sessions) pauseOldest(ctx context.Context) bool {
	var oldest *caisson.Session
	err := c.eachSession(ctx, caisson.AllAccounts(), func(s *caisson.Session) error {
		if s.Run != "" || s.Sandbox == "" || oldest != nil && oldest.UsedAt.Before(s.UsedAt) {
			return ctx.Err()
		}
		if sb, err := c.Store.Sandboxes().Get(ctx, caisson.In(s.Account), string(s.Sandbox)); err == nil && sb.State == caisson.Suspended {
			oldest = s
		}
		return ctx.Err()
	})
	if err != nil || oldest == nil {
		return false
	}
	if err := c.pauseOrStop(ctx, oldest, oldest.UsedAt.Add(time.Duration(c.Limits.SessionIdle))); err != nil {
		c.Log.WarnContext(ctx, "a session could not be paused to free memory", "session", oldest.ID, "err", err)
		return false
	}
	return true
}

// expire removes the sessions that have not been used since before, with their sandboxes.
func (c sessions) expire(ctx context.Context, before time.Time) error {
	return c.eachSession(ctx, caisson.AllAccounts(), func(s *caisson.Session) error {
		if s.Run != "" || s.UsedAt.After(before) {
			return ctx.Err()
		}
		actx := caisson.WithCaller(ctx, caisson.DaemonCaller(s.Account, "remove an old session"))
		if err := c.runs.RemoveSession(actx, s.ID); err != nil && caisson.KindOf(err) != caisson.NotFound {
			c.Log.WarnContext(ctx, "an old session could not be removed", "session", s.ID, "err", err)
		}
		return ctx.Err()
	})
}

// pauseOrStop pauses or stops the sandbox of an idle session, unless a run uses the session by now. A run that is to use it
// waits until pauseOrStop has returned.
func (c sessions) pauseOrStop(ctx context.Context, s *caisson.Session, at time.Time) error {
	release, err := c.sessionLocks.Acquire(ctx, s.Account+caisson.SessionName(s.Agent, s.User, s.Key))
	if err != nil {
		return err
	}
	defer release()
	s, err = c.Store.Sessions().Get(ctx, caisson.In(s.Account), string(s.ID))
	if caisson.KindOf(err) == caisson.NotFound || err == nil && s.Run != "" {
		return nil
	}
	if err != nil {
		return err
	}
	ctx = caisson.WithCaller(ctx, caisson.DaemonCaller(s.Account, "put a session to rest"))
	sb, err := c.Sandboxes.Lifecycle.Get(ctx, string(s.Sandbox))
	if err != nil {
		return nil // the next run detects that the sandbox is gone
	}
	awake := sb.State == caisson.Suspended || sb.State == caisson.Running
	switch idle := caisson.Duration(at.Sub(s.UsedAt)); {
	case idle >= c.Limits.SessionFiles && (awake || sb.State == caisson.Paused):
		_, err = c.Sandboxes.Lifecycle.Stop(ctx, string(sb.ID), 0)
	case idle >= c.Limits.SessionIdle && awake:
		_, err = c.Sandboxes.Lifecycle.Pause(ctx, string(sb.ID))
	}
	return err
}
