package sandboxes

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// change performs one change of a sandbox: it stores the transient state, calls act, and stores the outcome. If act
// fails, the previous state is stored, or the state in act's error (see [stateError]).
func (l *Lifecycle) change(ctx context.Context, ref string, v caisson.Verb, act func(context.Context, *caisson.Sandbox) error) (*caisson.Sandbox, error) {
	sb, err := l.c.find(ctx, ref)
	if err != nil {
		return nil, err
	}
	if !sb.State.Transient() { // In a transient state, tryAcquire returns a better error: that a change is under way.
		if err := l.c.allow(sb, v); err != nil {
			return nil, err
		}
	}
	release, err := l.c.locks.tryAcquire(sb.ID)
	if err != nil && !sb.State.Transient() {
		release, err = l.c.locks.acquireSoon(ctx, sb.ID)
	}
	if err != nil {
		return nil, err
	}
	defer release()
	if l.c.unresolved.has(sb.ID) {
		if err := (&reconciler{l.c}).resolve(ctx, sb.ID); err != nil {
			return nil, err
		}
	}
	return l.changeLocked(ctx, sb.ID, v, act)
}

// changeLocked is like change, but the caller must already hold the sandbox's lock.
func (l *Lifecycle) changeLocked(ctx context.Context, id caisson.ID, v caisson.Verb, act func(context.Context, *caisson.Sandbox) error) (*caisson.Sandbox, error) {
	via, to := v.Transition()
	var before caisson.State
	sb, err := l.c.setState(ctx, id, via, func(s *caisson.Sandbox) error {
		before = s.State
		return l.c.allow(s, v)
	})
	if err != nil {
		return nil, err
	}
	old := *sb
	old.State = before
	// From here on, the outcome is stored even if the request has been cancelled.
	clean := context.WithoutCancel(ctx)
	l.c.disconnect(clean, id, v)
	if err := act(ctx, &old); err != nil {
		became := before
		var b stateError
		if errors.As(err, &b) {
			became = b.state
		}
		failed, serr := l.c.setState(clean, id, became, func(s *caisson.Sandbox) error {
			if became == caisson.Failed {
				s.Reason = caisson.MessageOf(err)
			}
			return nil
		})
		if serr == nil {
			if became == caisson.Running {
				l.c.watches.ensureWatched(failed)
			}
			l.c.event(clean, failed, "sandbox."+string(became), map[string]string{"failed": string(v), "reason": caisson.MessageOf(err)})
		}
		l.c.unresolved.set(id, serr != nil)
		return nil, errors.Join(err, serr)
	}
	begins := to == caisson.Running && v != caisson.VerbWake // a sandbox that is woken has been watched all the time
	done, err := l.c.setState(clean, id, to, func(s *caisson.Sandbox) error {
		s.Reason = old.Reason
		if begins {
			s.Build, s.Exit, s.PauseAt = old.Build, old.Exit, deadline(s.Spec.TTL)
			s.SharedRandomness = old.SharedRandomness
		}
		return nil
	})
	if err != nil {
		l.c.unresolved.set(id, true)
		return nil, err
	}
	l.c.event(clean, done, "sandbox."+string(to), reasonData(done))
	if begins {
		if err := l.c.dropSaved(id, pauseDir, filesTar); err != nil {
			l.c.Log.ErrorContext(clean, "the saved state of a sandbox could not be removed after its start", "sandbox", id, "err", err)
		}
		l.c.watches.watch(done)
	}
	l.c.deadlines.arm(done)
	return done, nil
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
	state caisson.State
}

func (b stateError) Unwrap() error { return b.error }

// Start implements [caisson.Sandboxes].
func (l *Lifecycle) Start(ctx context.Context, ref string) (*caisson.Sandbox, error) {
	c := l.c
	return c.Sandboxes().change(ctx, ref, caisson.VerbStart, func(ctx context.Context, sb *caisson.Sandbox) error {
		admitted, err := c.processes.admit(ctx, sb.ID, 0)
		if err != nil {
			return err
		}
		defer admitted()
		sb.Build, sb.Exit, sb.Reason, sb.SharedRandomness = c.Build, nil, "", nil
		return c.processes.run(ctx, sb, source{files: pathIfExists(c.inDir(sb.ID, filesTar))})
	})
}

// pathIfExists returns path, or "" if there is no file at path.
func pathIfExists(path string) string {
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	return path
}

// Stop implements [caisson.Sandboxes].
func (l *Lifecycle) Stop(ctx context.Context, ref string, grace time.Duration) (*caisson.Sandbox, error) {
	c := l.c
	return c.Sandboxes().change(ctx, ref, caisson.VerbStop, func(ctx context.Context, sb *caisson.Sandbox) error {
		sb.Reason = ""
		if sb.State == caisson.Paused {
			return c.Sandboxes().stopPaused(sb)
		}
		if sb.State == caisson.Suspended { // A suspended sandbox has to be thawed to terminate.
			if err := c.processes.thaw(ctx, sb.ID); err != nil {
				return err
			}
		}
		err := c.Sandboxes().shutDown(ctx, sb.ID, grace)
		if b := (stateError{}); err == nil || errors.As(err, &b) {
			return err
		}
		return stateError{err, caisson.Running} // even if it was suspended before, because it has been thawed
	})
}

// shutDown terminates the processes of a running sandbox, saves its files, and frees its other resources.
func (l *Lifecycle) shutDown(ctx context.Context, id caisson.ID, grace time.Duration) error {
	if err := l.terminate(ctx, id, grace); err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx) // No process runs any longer, so the stop cannot be rolled back.
	tar := l.c.inDir(id, filesTar)
	if err := writeFile(tar, func(f *os.File) error { return l.c.Runtime.SaveFiles(ctx, id, f) }); err != nil {
		return err
	}
	l.c.watches.unwatch(id)
	err := l.c.processes.halt(ctx, id)
	if err != nil && l.c.processes.ended(id) {
		return stateError{err, caisson.Stopped} // The files are saved; the next start frees the sandbox's other resources.
	}
	return err
}

// stopPaused keeps the files of a paused sandbox and removes its memory.
func (l *Lifecycle) stopPaused(sb *caisson.Sandbox) error {
	if err := os.Rename(l.c.inDir(sb.ID, pauseDir+"/"+filesTar), l.c.inDir(sb.ID, filesTar)); err != nil {
		return err
	}
	return l.c.dropSaved(sb.ID, pauseDir)
}

// terminate sends SIGTERM to every process, and SIGKILL after grace. If ctx ends within grace, terminate returns
// without sending SIGKILL.
func (l *Lifecycle) terminate(ctx context.Context, id caisson.ID, grace time.Duration) error {
	if grace > 0 && l.c.Runtime.Signal(ctx, id, -1, int(unix.SIGTERM)) == nil {
		deadline := time.NewTimer(grace)
		defer deadline.Stop()
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for l.busy(ctx, id) {
			select {
			case <-tick.C:
				continue
			case <-deadline.C:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			break
		}
	}
	// An error is ignored: if a process survives, destroying the sandbox returns an error.
	_ = l.c.Runtime.Signal(ctx, id, -1, int(unix.SIGKILL))
	return nil
}

// busy reports whether the sandbox runs any process other than its init. The command's zombie, which init keeps for its
// exit status, does not count.
func (l *Lifecycle) busy(ctx context.Context, id caisson.ID) bool {
	list, err := l.c.Runtime.Processes(ctx, id)
	if err != nil {
		return false
	}
	for _, p := range list {
		if p.PID == 1 {
			continue
		}
		if p.PID == 2 && l.commandEnded(ctx, id) {
			continue
		}
		return true
	}
	return false
}

// commandEnded reports whether the exit status of the sandbox's command is stored.
func (l *Lifecycle) commandEnded(ctx context.Context, id caisson.ID) bool {
	sb, err := l.c.Store.Sandboxes().Get(ctx, caisson.AllAccounts(), string(id))
	return err == nil && sb.Exit != nil
}

// Pause implements [caisson.Sandboxes].
func (l *Lifecycle) Pause(ctx context.Context, ref string) (*caisson.Sandbox, error) {
	return l.change(ctx, ref, caisson.VerbPause, l.pause)
}

// pause writes the sandbox's memory and files to its pauseDir and kills its processes. It is the act of a change.
func (l *Lifecycle) pause(ctx context.Context, sb *caisson.Sandbox) error {
	err := writeDir(l.c.inDir(sb.ID, pauseDir), func(dir string) error {
		l.c.fileClients.drop(sb.ID)
		if err := l.c.Runtime.Checkpoint(ctx, sb.ID, dir, false); err != nil {
			return err
		}
		return copyDepends(l.c.sandboxDir(sb.ID), dir)
	})
	if err != nil {
		if sb.State != caisson.Suspended {
			// The sandbox is frozen if the checkpoint was, or may have been, written.
			return l.c.processes.thawAfter(ctx, sb.ID, err)
		}
		return err
	}
	l.c.watches.unwatch(sb.ID)
	if err := l.c.processes.halt(context.WithoutCancel(ctx), sb.ID); err != nil {
		// The state is saved, and the remaining processes are frozen; the next resume kills them first.
		return stateError{err, caisson.Paused}
	}
	return nil
}

// Resume implements [caisson.Sandboxes].
func (l *Lifecycle) Resume(ctx context.Context, ref string) (*caisson.Sandbox, error) {
	return l.change(ctx, ref, caisson.VerbResume, l.resume)
}

// resume starts a paused sandbox from its pauseDir. It is the act of a change.
func (l *Lifecycle) resume(ctx context.Context, sb *caisson.Sandbox) error {
	dir := l.c.inDir(sb.ID, pauseDir)
	admitted, err := l.c.processes.admit(ctx, sb.ID, memoryOf(dir))
	if err != nil {
		return err
	}
	defer admitted()
	sb.Reason = ""
	filesOnly, err := l.c.processes.runFrom(ctx, sb, dir, sb.Spec.Randomness)
	if err != nil {
		return err
	}
	if filesOnly != "" {
		sb.Reason, sb.Exit, sb.SharedRandomness = filesOnly, nil, nil
	}
	sb.Build = l.c.Build
	return nil
}

// runFrom starts a sandbox from the checkpoint in dir: with its memory if that can be restored on this host, otherwise
// with its files only; then filesOnly is the reason. randomness is as in [source].
func (h *processes) runFrom(ctx context.Context, sb *caisson.Sandbox, dir, randomness string) (filesOnly string, err error) {
	had, err := readDepends(dir)
	if err != nil {
		return "", err
	}
	have, err := h.dependencies(ctx, sb)
	if err != nil {
		return "", err
	}
	if why := mismatch(had, have); why != "" {
		return "memory could not be restored because " + why + "; files only", h.run(ctx, sb, source{files: filepath.Join(dir, filesTar), depends: &have})
	}
	return "", h.run(ctx, sb, source{checkpoint: dir, depends: &have, randomness: randomness})
}

// Extend implements [caisson.Sandboxes].
func (l *Lifecycle) Extend(ctx context.Context, ref string, ttl, hardTTL *caisson.Duration) (*caisson.Sandbox, error) {
	in, _, err := scope(ctx)
	if err != nil {
		return nil, err
	}
	if err := validateTTLs(ttl, hardTTL); err != nil {
		return nil, err
	}
	sb, err := l.c.Store.Sandboxes().Update(ctx, in, ref, func(s *caisson.Sandbox) error {
		if s.State == caisson.Removing {
			return caisson.Errorf(caisson.Conflict, "the sandbox is being removed")
		}
		if ttl != nil {
			s.Spec.TTL = *ttl
			if s.State.Live() {
				s.PauseAt = deadline(*ttl)
			}
		}
		if hardTTL != nil {
			s.Spec.HardTTL = *hardTTL
			s.RemoveAt = deadline(*hardTTL)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	l.c.deadlines.arm(sb)
	return sb, nil
}

// Remove implements [caisson.Sandboxes].
func (l *Lifecycle) Remove(ctx context.Context, ref string) error {
	sb, err := l.c.find(ctx, ref)
	if err != nil {
		return err
	}
	release, err := l.lockForRemoval(ctx, sb.ID)
	if err != nil {
		return err
	}
	defer release()
	return l.remove(ctx, sb.ID, "")
}

// removeWait is how long a removal waits for a change in progress before it kills the sandbox's processes.
const removeWait = 2 * time.Second

// lockForRemoval acquires a sandbox's lock for its removal. If a change does not end because the sandbox does not respond,
// lockForRemoval kills the sandbox's processes, which ends the change.
func (l *Lifecycle) lockForRemoval(ctx context.Context, id caisson.ID) (release func(), err error) {
	wait, cancel := context.WithTimeout(ctx, removeWait)
	defer cancel()
	if release, err = l.c.locks.acquire(wait, id); err == nil || ctx.Err() != nil {
		return release, err
	}
	l.c.workspaces.keepWriters(context.WithoutCancel(ctx), id)
	if err := l.c.Runtime.Destroy(context.WithoutCancel(ctx), id); err != nil {
		return nil, err
	}
	return l.c.locks.acquire(ctx, id)
}

// remove deletes a sandbox and all its data. The caller must hold its lock. reason is recorded in the event.
func (l *Lifecycle) remove(ctx context.Context, id caisson.ID, reason string) error {
	sb, err := l.c.setState(ctx, id, caisson.Removing, nil)
	if err != nil {
		return err
	}
	// A removal that has begun is completed even if the request has been cancelled.
	ctx = context.WithoutCancel(ctx)
	l.c.watches.unwatch(id)
	l.c.deadlines.disarm(id)
	if err := l.c.processes.halt(ctx, id); err != nil {
		return err
	}
	if err := l.c.workspaces.release(ctx, sb); err != nil {
		return err
	}
	if err := l.c.removeSandboxDir(ctx, id); err != nil {
		return err
	}
	if err := l.c.network.deleteBudget(ctx, sb); err != nil {
		return err
	}
	if err := l.c.Store.Sandboxes().Delete(ctx, caisson.AllAccounts(), string(id)); err != nil {
		return err
	}
	l.c.unresolved.set(id, false)
	sb.Reason = reason
	l.c.event(ctx, sb, "sandbox.removed", reasonData(sb))
	return nil
}
