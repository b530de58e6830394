package gvisor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"gvisor.dev/gvisor/runsc/boot"

	"github.com/caisson-dev/caisson"
)

// pauseTimeout bounds a pause or a resume, neither of which ends with its caller's context: half done they would leave a
// sandbox that stands still without anybody knowing.
const pauseTimeout = 5 * time.Second

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
// daemon or a call that timed out may have changed it, the sandbox is asked.
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

// setFrozen changes whether the sandbox stands still; it reports false if it was so already.
func (s *sandbox) setFrozen(ctx context.Context, want bool) (changed bool, err error) {
	frozen, unlock, err := s.lockFrozen(ctx)
	if err != nil {
		return false, err
	}
	defer unlock()
	if frozen == want {
		return false, nil
	}
	return true, s.pause(ctx, want)
}

// pause stops the sandbox or lets it go on. s.frozen's lock must be held, and the sandbox be in the other state.
func (s *sandbox) pause(ctx context.Context, stop bool) error {
	method := boot.ContMgrResume
	if stop {
		method = boot.ContMgrPause
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pauseTimeout)
	defer cancel()
	err := s.call(ctx, method, nil, nil)
	s.frozen.frozen, s.frozen.known = stop, err == nil // after a failure it may be under way
	return err
}

// whileFrozen calls do while the sandbox stands still, and leaves it as it was; but with stay, if do succeeds, frozen.
// Meanwhile [Runtime.Exec] waits.
func (s *sandbox) whileFrozen(ctx context.Context, stay bool, do func() error) (err error) {
	frozen, unlock, err := s.lockFrozen(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if frozen {
		return do()
	}
	err = s.pause(ctx, true)
	if err == nil {
		err = do()
	}
	switch {
	case stay && err == nil:
		return nil
	case !s.frozen.known:
		return errors.Join(err, goOn(ctx, s))
	}
	return errors.Join(err, s.pause(ctx, false))
}

// goOn lets a sandbox go on if it stands still after a pause that failed: nobody else knows of it. s.frozen's lock must be held.
func goOn(ctx context.Context, s *sandbox) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pauseTimeout)
	defer cancel()
	state, err := s.processState(ctx, initPID)
	if err != nil || state != 'D' {
		return nil // why the pause failed says more
	}
	return s.pause(ctx, false)
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
