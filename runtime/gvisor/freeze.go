package gvisor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/runtime/gvisor/protocol"
)

// freezeTimeout limits each call of gVisor's Pause and Resume, which freeze and thaw a sandbox. Neither is cancelled with the
// caller's context, because after an interrupted call it is not known whether the sandbox is frozen.
const freezeTimeout = 5 * time.Second

// freezer records whether a sandbox is frozen. gVisor counts the calls of Pause and panics at a Resume without a Pause, so
// the record must be exact.
type freezer struct {
	// lock is a mutex that is locked by sending; it is held during a call of Pause or Resume. It is a channel, so that waiting
	// for it can be cancelled.
	lock   chan struct{}
	known  bool // whether frozen is valid; guarded by lock
	frozen bool // whether the sandbox is frozen; guarded by lock
}

func newFreezer() freezer { return freezer{lock: make(chan struct{}, 1)} }

// lockFrozen acquires s.frozen's lock and returns whether the sandbox is frozen. If that is not known, because a previous
// daemon or a call that timed out may have changed it, lockFrozen reads it from the sandbox.
func (s *sandbox) lockFrozen(ctx context.Context) (frozen bool, unlock func(), err error) {
	f := &s.frozen
	if ctx.Err() != nil {
		return false, nil, context.Cause(ctx)
	}
	select {
	case f.lock <- struct{}{}:
	case <-ctx.Done():
		return false, nil, context.Cause(ctx)
	}
	unlock = func() { <-f.lock }
	if !f.known {
		// Init only sleeps, in state S. It is in state D (uninterruptible sleep) only while gVisor has frozen the sandbox; after
		// SIGSTOP it is in state T.
		state, err := s.processState(ctx, initPID)
		if err != nil {
			unlock()
			return false, nil, fmt.Errorf("read whether the sandbox is frozen: %w", err)
		}
		f.frozen, f.known = state == 'D', true
	}
	return f.frozen, unlock, nil
}

// setFrozen freezes or thaws the sandbox. It reports false if the sandbox was in that state already.
func (s *sandbox) setFrozen(ctx context.Context, want bool) (changed bool, err error) {
	frozen, unlock, err := s.lockFrozen(ctx)
	if err != nil {
		return false, err
	}
	defer unlock()
	if frozen == want {
		return false, nil
	}
	return true, s.freezeOrThaw(ctx, want)
}

// freezeOrThaw freezes the sandbox with gVisor's Pause if stop is set, else thaws it with Resume. The caller must hold s.frozen's
// lock, and the sandbox must be in the other state.
func (s *sandbox) freezeOrThaw(ctx context.Context, stop bool) error {
	method := protocol.MethodResume
	if stop {
		method = protocol.MethodPause
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), freezeTimeout)
	defer cancel()
	err := s.call(ctx, method, nil, nil)
	s.frozen.frozen, s.frozen.known = stop, err == nil // after an error, the call may still take effect
	return err
}

// whileFrozen calls do while the sandbox is frozen, and then restores its previous state. If stay is set and do succeeds, the
// sandbox is left frozen. [Runtime.Exec] blocks until whileFrozen returns.
func (s *sandbox) whileFrozen(ctx context.Context, stay bool, do func() error) (err error) {
	frozen, unlock, err := s.lockFrozen(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if frozen {
		return do()
	}
	err = s.freezeOrThaw(ctx, true)
	if err == nil {
		err = do()
	}
	switch {
	case stay && err == nil:
		return nil
	case !s.frozen.known:
		return errors.Join(err, thawAfterFailedFreeze(ctx, s))
	}
	return errors.Join(err, s.freezeOrThaw(ctx, false))
}

// thawAfterFailedFreeze thaws a sandbox if it is frozen although the call that should freeze it has failed. The caller must
// hold s.frozen's lock.
func thawAfterFailedFreeze(ctx context.Context, s *sandbox) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), freezeTimeout)
	defer cancel()
	state, err := s.processState(ctx, initPID)
	if err != nil || state != 'D' {
		return nil // the caller returns the error of the pause, which is more useful
	}
	return s.freezeOrThaw(ctx, false)
}

// Freeze implements [caisson.Freezer].
func (r *Runtime) Freeze(ctx context.Context, id caisson.ID) error {
	s, err := r.getRunning(id)
	if err != nil {
		return err
	}
	if changed, err := s.setFrozen(ctx, true); err != nil || changed {
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
	if changed, err := s.setFrozen(ctx, false); err != nil || changed {
		return err
	}
	return caisson.Errorf(caisson.Conflict, "sandbox %s is not frozen", id)
}
