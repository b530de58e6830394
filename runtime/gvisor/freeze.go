package gvisor

import (
	"context"
	"fmt"

	"gvisor.dev/gvisor/runsc/boot"

	"github.com/caisson-dev/caisson"
)

// freezer is what is known of whether a sandbox stands still. gVisor counts pauses, and panics at a resume too many, so each
// one has to be exact.
type freezer struct {
	// lock is held, by sending, for as long as a pause or resume takes: a channel, so that waiting for it ends with a
	// context.
	lock   chan struct{}
	known  bool // frozen is right; guarded by lock
	frozen bool // guarded by lock
}

func newFreezer() freezer { return freezer{lock: make(chan struct{}, 1)} }

// lockFrozen holds s.frozen's lock and returns whether the sandbox stands still. If that is not known, because an earlier
// daemon or a cancelled call may have changed it, the sandbox is asked.
func (s *sandbox) lockFrozen(ctx context.Context) (frozen bool, unlock func(), err error) {
	f := &s.frozen
	select {
	case f.lock <- struct{}{}:
	case <-ctx.Done():
		return false, nil, context.Cause(ctx)
	}
	unlock = func() { <-f.lock }
	if !f.known {
		// Init does nothing but sleep, and only a pause shows as uninterruptible sleep (SIGSTOP would not).
		state, err := s.processState(ctx, initPID)
		if err != nil {
			unlock()
			return false, nil, fmt.Errorf("ask whether the sandbox is frozen: %w", err)
		}
		f.frozen, f.known = state == 'D', true
	}
	return f.frozen, unlock, nil
}

// freeze reports whether it had to.
func (s *sandbox) freeze(ctx context.Context) (bool, error) {
	return s.setFrozen(ctx, true, boot.ContMgrPause)
}

// thaw reports whether it had to.
func (s *sandbox) thaw(ctx context.Context) (bool, error) {
	return s.setFrozen(ctx, false, boot.ContMgrResume)
}

func (s *sandbox) setFrozen(ctx context.Context, want bool, method string) (changed bool, err error) {
	frozen, unlock, err := s.lockFrozen(ctx)
	if err != nil {
		return false, err
	}
	defer unlock()
	if frozen == want {
		return false, nil
	}
	if err := s.call(ctx, method, nil, nil); err != nil {
		s.frozen.known = false // it may be under way
		return false, err
	}
	s.frozen.frozen = want
	return true, nil
}

// Freeze implements [caisson.Freezer].
func (r *Runtime) Freeze(ctx context.Context, id caisson.ID) error {
	s, err := r.getRunning(id)
	if err != nil {
		return err
	}
	if changed, err := s.freeze(ctx); err != nil || changed {
		return err
	}
	return caisson.Errorf(caisson.Conflict, "sandbox %s is frozen already", id)
}

// Thaw implements [caisson.Freezer].
func (r *Runtime) Thaw(ctx context.Context, id caisson.ID) error {
	s, err := r.getRunning(id)
	if err != nil {
		return err
	}
	if changed, err := s.thaw(ctx); err != nil || changed {
		return err
	}
	return caisson.Errorf(caisson.Conflict, "sandbox %s is not frozen", id)
}
