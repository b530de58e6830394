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
	known  bool // the value of frozen is certain; guarded by lock
	frozen bool // the sandbox is frozen; guarded by lock
}

// newFreezer returns a freezer that does not know yet whether the sandbox is frozen.
func newFreezer() freezer { return freezer{lock: make(chan struct{}, 1)} }

// lockFrozen acquires the lock of s.freezer and returns whether the sandbox is frozen. If that is not known, because a previous
// daemon or a call that timed out may have frozen or thawed the sandbox, lockFrozen determines it from the state of the sandbox's
// init.
func (s *sandbox) lockFrozen(ctx context.Context) (frozen bool, unlock func(), err error) {
	f := &s.freezer
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

// setFrozen freezes the sandbox if want is set, and otherwise thaws it. changed is false if the sandbox was frozen, or thawed,
// already.
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

// freezeOrThaw freezes the sandbox with gVisor's Pause if freeze is set, and otherwise thaws it with gVisor's Resume. The caller
// must hold the lock of s.freezer. The sandbox must not be frozen, or thawed, already.
func (s *sandbox) freezeOrThaw(ctx context.Context, freeze bool) error {
	method := protocol.MethodResume
	if freeze {
		method = protocol.MethodPause
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), freezeTimeout)
	defer cancel()
	err := s.call(ctx, method, nil, nil)
	s.freezer.frozen, s.freezer.known = freeze, err == nil // after an error, the call may still take effect
	return err
}

// whileFrozen calls do while the sandbox is frozen, and afterwards thaws the sandbox if it was not frozen before. If keepFrozen
// is set and do succeeds, the sandbox is left frozen. [Runtime.Exec] blocks until whileFrozen returns.
func (s *sandbox) whileFrozen(ctx context.Context, keepFrozen bool, do func() error) (err error) {
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
	case keepFrozen && err == nil:
		return nil
	case !s.freezer.known:
		return errors.Join(err, thawAfterFailedFreeze(ctx, s))
	}
	return errors.Join(err, s.freezeOrThaw(ctx, false))
}

// thawAfterFailedFreeze thaws a sandbox if it is frozen although the call that should freeze it has failed. The caller must hold
// the lock of s.freezer.
func thawAfterFailedFreeze(ctx context.Context, s *sandbox) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), freezeTimeout)
	defer cancel()
	state, err := s.processState(ctx, initPID)
	if err != nil || state != 'D' {
		return nil // the caller returns the error of the failed freeze, which is more useful
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
