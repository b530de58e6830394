package runs

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/keylock"
)

// sessions manages sessions, and their sandboxes between runs.
type sessions struct {
	table     caisson.Table[caisson.Session] // sessions in the store
	runs      caisson.RunStore
	sandboxes caisson.Table[caisson.Sandbox]
	lifecycle caisson.Sandboxes // creates, changes and removes sandboxes
	live      *live             // queued and running attempts
	locks     keylock.Locks     // held while a run acquires a session, or the session is paused or stopped; by account and name
	limits    Limits            // limits of runs and sessions
	events    caisson.Publisher
	log       *slog.Logger
}

// acquire finds or creates the session of a run, and marks it as used by the run: a session has one run at a time. fresh means
// that the session was created.
func (c *sessions) acquire(ctx context.Context, r *caisson.Run) (s *caisson.Session, fresh bool, err error) {
	in := caisson.In(r.Account)
	name := caisson.SessionName(r.Agent, r.Request.User, r.Request.Session)
	var ended caisson.ID // a run that has ended, but has not released the session yet
	take := func(s *caisson.Session) error {
		switch s.Run {
		case "", r.ID, ended:
			s.Run = r.ID
			return nil
		case removing:
			return caisson.Errorf(caisson.Conflict, "this session is being removed; try again when it is gone")
		}
		return busyError{s.Run, caisson.Errorf(caisson.Conflict, "run %s of this session is under way; wait for it or cancel it", s.Run)}
	}
	for {
		release, err := c.locks.Acquire(ctx, r.Account+name)
		if err != nil {
			return nil, false, err
		}
		s, err := c.table.Update(ctx, in, name, take)
		release()
		if b, ok := errors.AsType[busyError](err); ok {
			if h, herr := c.runs.Get(ctx, in, b.run); herr != nil || !h.State.Ended() {
				return nil, false, b.error
			}
			if a := c.live.get(b.run); a != nil {
				select {
				case <-a.done:
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
		if err := c.table.Insert(ctx, s); caisson.KindOf(err) != caisson.Conflict {
			return s, true, err
		}
		// Another run has just created the session.
	}
}

// busyError is the error that another run uses the session.
type busyError struct {
	run caisson.ID // the run that uses the session
	error
}

// forget deletes a session that was created for a run which is not stored.
func (c *sessions) forget(ctx context.Context, s *caisson.Session) error {
	return c.table.Delete(ctx, caisson.In(s.Account), string(s.ID))
}

// release marks a session as no longer used by the run r. box, if not nil, is the sandbox that the session uses from now on.
func (c *sessions) release(ctx context.Context, r *caisson.Run, box *caisson.Sandbox) error {
	if r.Session == "" {
		return nil
	}
	_, err := c.table.Update(ctx, caisson.In(r.Account), string(r.Session), func(s *caisson.Session) error {
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
	return caisson.IgnoreNotFound(err) // the session may have been removed in the meantime
}

// Limits of the messages of earlier runs that an agent gets before a prompt of a session: maxHistory is their total size in
// bytes, maxHistoryCount their number.
const (
	maxHistory      = 256 << 10 // maximum bytes of earlier messages that an agent gets
	maxHistoryCount = 200       // maximum number of earlier messages that an agent gets
)

// history returns the messages before the prompt, oldest first: those of the request, and the last ones of the run's session.
func (c *sessions) history(ctx context.Context, r *caisson.Run) ([]caisson.Message, error) {
	if r.Session == "" {
		return r.Request.History, nil
	}
	list, _, err := c.runs.List(ctx, caisson.In(r.Account), caisson.RunFilter{
		Session: r.Session, States: []caisson.RunState{caisson.RunSucceeded, caisson.RunFailed}, Limit: maxHistoryCount / 2,
	})
	if err != nil {
		return nil, err
	}
	var msgs []caisson.Message // messages, newest first
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
	slices.Reverse(msgs)
	return slices.Concat(r.Request.History, msgs), nil
}

// each calls do for every session in a scope, until do returns an error.
func (c *sessions) each(ctx context.Context, in caisson.Scope, do func(*caisson.Session) error) error {
	f := caisson.Filter{Limit: 1000}
	for s, err := range caisson.All(ctx, c.table.List, in, f, func(f *caisson.Filter, s *caisson.Session) { f.After = s.ID }) {
		if err == nil {
			err = do(s)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// remove removes a session that no run uses, and its sandbox.
func (c *sessions) remove(ctx context.Context, in caisson.Scope, id caisson.ID) error {
	s, err := c.table.Update(ctx, in, string(id), func(s *caisson.Session) error {
		if s.Run == removing {
			return caisson.Errorf(caisson.Conflict, "this session is being removed already")
		}
		if s.Run != "" {
			return caisson.Errorf(caisson.Conflict, "run %s of this session is under way; cancel it first", s.Run)
		}
		s.Run = removing // no run can acquire the session from now on
		return nil
	})
	if err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx) // a partly removed session would be unusable
	if s.Sandbox != "" {
		if err := caisson.IgnoreNotFound(c.lifecycle.Remove(ctx, string(s.Sandbox))); err != nil {
			_, uerr := c.table.Update(ctx, in, string(id), func(s *caisson.Session) error {
				s.Run = ""
				return nil
			})
			return errors.Join(err, uerr)
		}
	}
	c.events.Publish(ctx, s.Account, "session.removed", string(s.ID), nil)
	return c.table.Delete(ctx, in, string(s.ID))
}

// removing is stored as the run of a session that is being removed, so that no run acquires the session.
const removing caisson.ID = "removing"

// pauseIdle frees resources of idle sessions: it moves the memory of their sandboxes to disk, and later keeps only the files.
func (c *sessions) pauseIdle(ctx context.Context, at time.Time) error {
	return c.each(ctx, caisson.AllAccounts(), func(s *caisson.Session) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if s.Run != "" || s.Sandbox == "" || at.Sub(s.UsedAt) < time.Duration(c.limits.SessionIdle) {
			return nil
		}
		if err := c.pauseOrStop(ctx, s, at); err != nil && ctx.Err() == nil {
			c.log.WarnContext(ctx, "a session could not be put to rest", "session", s.ID, "sandbox", s.Sandbox, "err", err)
		}
		return nil
	})
}

// pauseOldest pauses the session with a suspended sandbox that has been idle for longest, and reports whether it has paused one.
func (c *sessions) pauseOldest(ctx context.Context) bool {
	var oldest *caisson.Session
	err := c.each(ctx, caisson.AllAccounts(), func(s *caisson.Session) error {
		if s.Run != "" || s.Sandbox == "" || oldest != nil && oldest.UsedAt.Before(s.UsedAt) {
			return ctx.Err()
		}
		if sb, err := c.sandboxes.Get(ctx, caisson.In(s.Account), string(s.Sandbox)); err == nil && sb.State == caisson.Suspended {
			oldest = s
		}
		return ctx.Err()
	})
	if err != nil || oldest == nil {
		return false
	}
	if err := c.pauseOrStop(ctx, oldest, oldest.UsedAt.Add(time.Duration(c.limits.SessionIdle))); err != nil {
		c.log.WarnContext(ctx, "a session could not be paused to free memory", "session", oldest.ID, "err", err)
		return false
	}
	return true
}

// expire removes the sessions whose last use was before the given time, and their sandboxes.
func (c *sessions) expire(ctx context.Context, before time.Time) error {
	return c.each(ctx, caisson.AllAccounts(), func(s *caisson.Session) error {
		if s.Run != "" || s.UsedAt.After(before) {
			return ctx.Err()
		}
		actx := caisson.WithCaller(ctx, caisson.DaemonCaller(s.Account, "remove an old session"))
		if err := caisson.IgnoreNotFound(c.remove(actx, caisson.In(s.Account), s.ID)); err != nil {
			c.log.WarnContext(ctx, "an old session could not be removed", "session", s.ID, "err", err)
		}
		return ctx.Err()
	})
}

// pauseOrStop pauses or stops the sandbox of an idle session, depending on the time between the session's last use and at,
// unless a run uses the session by now. A run that acquires the session waits until pauseOrStop has returned.
func (c *sessions) pauseOrStop(ctx context.Context, s *caisson.Session, at time.Time) error {
	release, err := c.locks.Acquire(ctx, s.Account+caisson.SessionName(s.Agent, s.User, s.Key))
	if err != nil {
		return err
	}
	defer release()
	s, err = c.table.Get(ctx, caisson.In(s.Account), string(s.ID))
	if caisson.KindOf(err) == caisson.NotFound || err == nil && s.Run != "" {
		return nil
	}
	if err != nil {
		return err
	}
	ctx = caisson.WithCaller(ctx, caisson.DaemonCaller(s.Account, "put a session to rest"))
	sb, err := c.lifecycle.Get(ctx, string(s.Sandbox))
	if err != nil {
		return nil // the next run of the session detects that the sandbox is gone
	}
	awake := sb.State == caisson.Suspended || sb.State == caisson.Running
	switch idle := caisson.Duration(at.Sub(s.UsedAt)); {
	case idle >= c.limits.SessionFiles && (awake || sb.State == caisson.Paused):
		_, err = c.lifecycle.Stop(ctx, string(sb.ID), 0)
	case idle >= c.limits.SessionIdle && awake:
		_, err = c.lifecycle.Pause(ctx, string(sb.ID))
	}
	return err
}
