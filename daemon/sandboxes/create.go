package sandboxes

import (
	"context"
	"reflect"
	"time"

	"github.com/caisson-dev/caisson"
)

// Lifecycle implements [caisson.Sandboxes].
type Lifecycle struct {
	finder    finder // finds sandboxes of the caller's account
	sandboxes caisson.Table[caisson.Sandbox]
	planner   *planner   // resolves requests into plans
	creator   *creator   // executes plans
	pools     *pools     // manages pools of sandboxes
	changes   *changes   // changes the states of sandboxes, one change at a time for each
	verbs     *verbs     // carries out changes of states on the host
	remover   *remover   // removes sandboxes
	deadlines *deadlines // timers for TTLs and autoPause
	writers   *writers   // records which process was the last to change each file of a workspace
}

var _ caisson.Sandboxes = (*Lifecycle)(nil)

// Get implements [caisson.Sandboxes].
func (l *Lifecycle) Get(ctx context.Context, ref string) (*caisson.Sandbox, error) {
	return l.finder.find(ctx, ref)
}

// List implements [caisson.Sandboxes].
func (l *Lifecycle) List(ctx context.Context, f caisson.Filter) ([]*caisson.Sandbox, bool, error) {
	in, _, err := caisson.ScopeOf(ctx)
	if err != nil {
		return nil, false, err
	}
	return l.sandboxes.List(ctx, in, f)
}

// Create implements [caisson.Sandboxes].
func (l *Lifecycle) Create(ctx context.Context, req caisson.CreateRequest) (*caisson.Sandbox, error) {
	defer func() {
		for _, d := range req.Directories {
			d.Close()
		}
	}()
	var release func()
	req.Workspace, release = closeOnce(req.Workspace)
	defer release()
	p, unprotect, err := l.planner.create(ctx, &req)
	if err != nil {
		return nil, err
	}
	defer unprotect()
	if claimed, err := l.pools.create(ctx, p, &req); claimed != nil || err != nil {
		return claimed, err
	}
	return l.creator.execute(ctx, p)
}

// Start implements [caisson.Sandboxes].
func (l *Lifecycle) Start(ctx context.Context, ref string) (*caisson.Sandbox, error) {
	return l.changes.change(ctx, ref, caisson.VerbStart, l.verbs.start)
}

// Stop implements [caisson.Sandboxes].
func (l *Lifecycle) Stop(ctx context.Context, ref string, grace time.Duration) (*caisson.Sandbox, error) {
	return l.changes.change(ctx, ref, caisson.VerbStop, func(ctx context.Context, sb *caisson.Sandbox) error {
		return l.verbs.stop(ctx, sb, grace)
	})
}

// Pause implements [caisson.Sandboxes].
func (l *Lifecycle) Pause(ctx context.Context, ref string) (*caisson.Sandbox, error) {
	return l.changes.change(ctx, ref, caisson.VerbPause, l.verbs.pause)
}

// Resume implements [caisson.Sandboxes].
func (l *Lifecycle) Resume(ctx context.Context, ref string) (*caisson.Sandbox, error) {
	return l.changes.change(ctx, ref, caisson.VerbResume, l.verbs.resume)
}

// Suspend implements [caisson.Sandboxes].
func (l *Lifecycle) Suspend(ctx context.Context, ref string) (*caisson.Sandbox, error) {
	return l.changes.change(ctx, ref, caisson.VerbSuspend, l.verbs.suspend)
}

// Wake implements [caisson.Sandboxes].
func (l *Lifecycle) Wake(ctx context.Context, ref string) (*caisson.Sandbox, error) {
	return l.changes.change(ctx, ref, caisson.VerbWake, l.verbs.wake)
}

// Extend implements [caisson.Sandboxes]: it changes the TTLs, the AutoPause and the wake time of a sandbox.
func (l *Lifecycle) Extend(ctx context.Context, ref string, req caisson.ExtendRequest) (*caisson.Sandbox, error) {
	in, _, err := caisson.ScopeOf(ctx)
	if err != nil {
		return nil, err
	}
	if err := validateTimes(req.TTL, req.HardTTL, req.AutoPause); err != nil {
		return nil, err
	}
	sb, err := l.sandboxes.Update(ctx, in, ref, func(s *caisson.Sandbox) error {
		if s.State == caisson.Removing {
			return caisson.Errorf(caisson.Conflict, "the sandbox is being removed")
		}
		if req.TTL != nil {
			s.Spec.TTL = *req.TTL
			if s.State.Live() {
				s.PauseAt = deadline(*req.TTL)
			}
		}
		if req.HardTTL != nil {
			s.Spec.HardTTL = *req.HardTTL
			s.RemoveAt = deadline(*req.HardTTL)
		}
		if req.AutoPause != nil {
			setAutoPause(s, *req.AutoPause)
		}
		if req.WakeAt != nil {
			return setWakeAt(s, *req.WakeAt)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	l.armChanging(ctx, sb)
	return sb, nil
}

// setAutoPause sets the AutoPause of a sandbox, which determines when it is suspended, paused and stopped while it is not in use.
func setAutoPause(sb *caisson.Sandbox, p caisson.AutoPause) {
	sb.Spec.AutoPause = p
	setIdleSince(sb, sb.State, now())
}

// setWakeAt sets the time at which a suspended or paused sandbox is woken or resumed; the zero time means never. Returns a
// Conflict error if the sandbox's state does not allow this.
func setWakeAt(sb *caisson.Sandbox, at time.Time) error {
	if at.IsZero() {
		sb.WakeAt = nil
		return nil
	}
	switch sb.State {
	case caisson.Created, caisson.Stopping, caisson.Stopped, caisson.Failed:
		return caisson.Errorf(caisson.Conflict, "a %s sandbox cannot be woken at a time: only one that runs or is suspended or paused", sb.State)
	}
	sb.WakeAt = new(at.UTC())
	return nil
}

// armChanging sets the timer for the next step of a sandbox whose lock is not held. Because another request may change the
// sandbox at the same time, it sets the timer again until the stored record equals the record that the timer was set from.
func (l *Lifecycle) armChanging(ctx context.Context, sb *caisson.Sandbox) {
	for {
		l.deadlines.arm(sb)
		current, err := l.sandboxes.Get(ctx, caisson.In(sb.Account), string(sb.ID))
		if err != nil || reflect.DeepEqual(current, sb) {
			return
		}
		sb = current
	}
}

// Remove implements [caisson.Sandboxes].
func (l *Lifecycle) Remove(ctx context.Context, ref string) error {
	sb, err := l.finder.find(ctx, ref)
	if err != nil {
		return err
	}
	return l.remover.forceRemove(ctx, sb.ID)
}

// Writers returns which process was the last to change each file in a sandbox's workspace since the workspace was created. If the
// sandbox's kernel has died, the changes since the last query are missing. Returns nil if the runtime does not record writers,
// and NotFound if there is no such sandbox. Writers is for the engine: it does not check the caller's account.
func (l *Lifecycle) Writers(ctx context.Context, id caisson.ID) (*caisson.Writers, error) {
	return l.writers.byID(ctx, id)
}
