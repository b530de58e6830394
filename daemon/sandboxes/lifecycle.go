package sandboxes

import (
	"context"
	"errors"
	"log/slog"

	"github.com/caisson-dev/caisson"
)

// changes performs changes of the states of sandboxes, at most one at a time for each sandbox.
type changes struct {
	finder     finder                                         // finds sandboxes of the caller's account
	states     states                                         // stored records of sandboxes
	locks      *locks                                         // one lock for each sandbox
	resolver   *resolver                                      // determines outcomes of interrupted changes
	watches    *watches                                       // monitors running sandboxes
	deadlines  *deadlines                                     // timers for TTLs and autoPause
	dirs       dirs                                           // paths and files in the data directory
	unresolved *idSet                                         // sandboxes whose last change has an outcome that is not stored
	disconnect func(ctx context.Context, id caisson.ID) error // closes connections from outside to a sandbox; nil: there are none
	log        *slog.Logger
}

// change performs the change of a sandbox that the verb v names: it stores the transient state, calls act, and stores the
// outcome. If act fails, it stores the previous state, or the state in act's error (see [stateError]).
func (c *changes) change(ctx context.Context, ref string, v caisson.Verb, act func(context.Context, *caisson.Sandbox) error) (*caisson.Sandbox, error) {
	sb, err := c.finder.find(ctx, ref)
	if err != nil {
		return nil, err
	}
	if !sb.State.Transient() { // In a transient state, tryAcquire returns a better error: that a change is under way.
		if err := c.finder.allow(sb, v); err != nil {
			return nil, err
		}
	}
	release, err := c.locks.tryAcquire(sb.ID)
	if err != nil && !sb.State.Transient() {
		release, err = c.locks.acquireSoon(ctx, sb.ID)
	}
	if err != nil {
		return nil, err
	}
	defer release()
	if err := c.resolvePrevious(ctx, sb.ID); err != nil {
		return nil, err
	}
	return c.changeLocked(ctx, sb.ID, v, act)
}

// resolvePrevious determines the outcome of the sandbox's previous change if that outcome could not be stored. The caller must
// hold the sandbox's lock.
func (c *changes) resolvePrevious(ctx context.Context, id caisson.ID) error {
	if !c.unresolved.has(id) {
		return nil
	}
	return c.resolver.resolve(ctx, id)
}

// changeLocked performs the change of a sandbox that v names, and stores the outcome. The caller must hold the sandbox's lock.
func (c *changes) changeLocked(ctx context.Context, id caisson.ID, v caisson.Verb, act func(context.Context, *caisson.Sandbox) error) (*caisson.Sandbox, error) {
	via, to := v.Transition()
	var before caisson.State
	sb, err := c.states.set(ctx, id, via, func(s *caisson.Sandbox) error {
		before = s.State
		return c.finder.allow(s, v)
	})
	if err != nil {
		return nil, err
	}
	old := *sb
	old.State = before
	// From here on, the outcome is stored even if the request has been cancelled.
	clean := context.WithoutCancel(ctx)
	c.disconnectFor(clean, id, v)
	if err := act(ctx, &old); err != nil {
		became := before
		var b stateError
		if errors.As(err, &b) {
			became = b.state
		}
		failed, serr := c.states.set(clean, id, became, func(s *caisson.Sandbox) error {
			if became == caisson.Failed {
				s.Reason = caisson.MessageOf(err)
			}
			return nil
		})
		if serr == nil {
			if became == caisson.Running {
				c.watches.ensureWatched(failed)
			}
			c.states.event(clean, failed, "sandbox."+string(became), map[string]string{"failed": string(v), "reason": caisson.MessageOf(err)})
		}
		c.unresolved.set(id, serr != nil)
		return nil, errors.Join(err, serr)
	}
	begins := to == caisson.Running && v != caisson.VerbWake // a sandbox that is woken was also watched while it was suspended
	used, _ := c.deadlines.activity.last(&old)
	done, err := c.states.set(clean, id, to, func(s *caisson.Sandbox) error {
		s.Reason = old.Reason
		setIdleSince(s, to, used)
		if begins {
			s.Build, s.Exit, s.PauseAt = old.Build, old.Exit, deadline(s.Spec.TTL)
			s.SharedRandomness = old.SharedRandomness
		}
		return nil
	})
	if err != nil {
		c.unresolved.set(id, true)
		return nil, err
	}
	c.states.event(clean, done, "sandbox."+string(to), reasonData(done))
	if begins {
		if err := c.dirs.dropSaved(id, pauseDir, filesTar); err != nil {
			c.log.ErrorContext(clean, "the saved state of a sandbox could not be removed after its start", "sandbox", id, "err", err)
		}
		c.watches.watch(done)
	} else if v == caisson.VerbWake {
		c.watches.services.ensureFollowed(done)
	}
	if to == caisson.Running {
		c.deadlines.activity.recordUse(id)
	}
	c.deadlines.arm(done)
	return done, nil
}

// disconnectFor closes the connections from outside to a sandbox before the change of the verb v freezes or ends its processes,
// so that no request waits for a frozen sandbox. The sandbox's transient state is stored already.
func (c *changes) disconnectFor(ctx context.Context, id caisson.ID, v caisson.Verb) {
	if c.disconnect == nil || v != caisson.VerbSuspend && v != caisson.VerbPause && v != caisson.VerbStop {
		return
	}
	if err := c.disconnect(ctx, id); err != nil {
		c.log.ErrorContext(ctx, "connections from outside to a sandbox could not be closed", "sandbox", id, "err", err)
	}
}

// reasonData returns the sandbox's reason as the data of an event; nil if it has none.
func reasonData(sb *caisson.Sandbox) map[string]string {
	if sb.Reason == "" {
		return nil
	}
	return map[string]string{"reason": sb.Reason}
}

// stateError is the error of a failed change that left the sandbox in another state than before.
type stateError struct {
	error
	state caisson.State // state of the sandbox after the failed change
}

// Unwrap returns the error of the change.
func (b stateError) Unwrap() error { return b.error }
