package sandboxes

import (
	"context"
	"errors"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// verbs contains the functions that carry out changes of the states of sandboxes on the host. [changes] calls them.
type verbs struct {
	runtime interface {
		fileSaver
		doneReporter
		Checkpoint(ctx context.Context, id caisson.ID, dir string, keep bool) error
		Signal(ctx context.Context, id caisson.ID, pid, signal int) error
		Processes(ctx context.Context, id caisson.ID) ([]caisson.ProcessInfo, error)
	}
	states    states           // stored records of sandboxes
	admission *admission       // decides whether the host has room
	processes *processes       // starts and kills processes of sandboxes
	freezer   *freezer         // freezes and thaws sandboxes
	clients   *fileClients     // clients that access files in sandboxes
	watches   *watches         // monitors running sandboxes
	dirs      dirs             // paths and files in the data directory
	programs  caisson.Programs // sets of programs that this daemon supports
}

// start starts a sandbox that does not run, with its saved files.
func (v *verbs) start(ctx context.Context, sb *caisson.Sandbox) error {
	admitted, err := v.admission.admit(ctx, sb, 0)
	if err != nil {
		return err
	}
	defer admitted()
	sb.Build, sb.Exit, sb.Reason, sb.SharedRandomness = v.programs.Current, nil, "", nil
	return v.processes.run(ctx, sb, source{files: pathIfExists(v.dirs.sandboxPath(sb.ID, filesTar))})
}

// pathIfExists returns path, or "" if there is no file at path.
func pathIfExists(path string) string {
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	return path
}

// stop saves the files of a sandbox and ends its processes. grace is the time between SIGTERM and SIGKILL.
func (v *verbs) stop(ctx context.Context, sb *caisson.Sandbox, grace time.Duration) error {
	sb.Reason = ""
	if sb.State == caisson.Paused {
		return v.stopPaused(sb)
	}
	if sb.State == caisson.Suspended { // A suspended sandbox has to be thawed to terminate.
		if err := v.freezer.thaw(ctx, sb.ID); err != nil {
			return err
		}
	}
	err := v.shutDown(ctx, sb.ID, grace)
	if b := (stateError{}); err == nil || errors.As(err, &b) {
		return err
	}
	return stateError{err, caisson.Running} // also if the sandbox was suspended before, because it has been thawed
}

// suspend freezes a sandbox. Its wire stays attached, and keeps replies to the sandbox's requests until the sandbox is woken.
func (v *verbs) suspend(ctx context.Context, sb *caisson.Sandbox) error {
	v.clients.drop(sb.ID) // A frozen sandbox does not reply to its file client.
	if err := v.freezer.freeze(ctx, sb.ID); err != nil {
		return v.freezer.thawAfter(ctx, sb.ID, err)
	}
	return nil
}

// wake thaws a suspended sandbox.
func (v *verbs) wake(ctx context.Context, sb *caisson.Sandbox) error {
	if strings.HasPrefix(sb.Reason, idleReason) {
		sb.Reason = ""
	}
	return v.freezer.thaw(ctx, sb.ID)
}

// shutDown terminates the processes of a running sandbox, saves its files, and frees its other resources.
func (v *verbs) shutDown(ctx context.Context, id caisson.ID, grace time.Duration) error {
	if err := v.terminate(ctx, id, grace); err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx) // No process runs any longer, so the stop cannot be rolled back.
	tar := v.dirs.sandboxPath(id, filesTar)
	if err := writeFile(tar, func(f *os.File) error { return v.runtime.SaveFiles(ctx, id, f) }); err != nil {
		return err
	}
	v.watches.unwatch(id)
	err := v.processes.halt(ctx, id)
	if err != nil && ended(v.runtime, id) {
		return stateError{err, caisson.Stopped} // The files are saved; the next start frees the sandbox's other resources.
	}
	return err
}

// stopPaused stops a paused sandbox: it keeps the saved files and removes the saved memory.
func (v *verbs) stopPaused(sb *caisson.Sandbox) error {
	if err := os.Rename(v.dirs.sandboxPath(sb.ID, pauseDir+"/"+filesTar), v.dirs.sandboxPath(sb.ID, filesTar)); err != nil {
		return err
	}
	return v.dirs.dropSaved(sb.ID, pauseDir)
}

// terminate sends SIGTERM to every process of a sandbox, and SIGKILL after the time grace. If ctx ends before that, terminate
// returns without sending SIGKILL.
func (v *verbs) terminate(ctx context.Context, id caisson.ID, grace time.Duration) error {
	if grace > 0 && v.runtime.Signal(ctx, id, -1, int(unix.SIGTERM)) == nil {
		deadline := time.NewTimer(grace)
		defer deadline.Stop()
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for v.busy(ctx, id) {
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
	_ = v.runtime.Signal(ctx, id, -1, int(unix.SIGKILL))
	return nil
}

// busy reports whether a sandbox runs any process other than its init. The zombie of the sandbox's command, which init keeps for
// its exit status, does not count.
func (v *verbs) busy(ctx context.Context, id caisson.ID) bool {
	list, err := v.runtime.Processes(ctx, id)
	if err != nil {
		return false
	}
	for _, p := range list {
		if p.PID == 1 {
			continue
		}
		if p.PID == 2 && v.commandEnded(ctx, id) {
			continue
		}
		return true
	}
	return false
}

// commandEnded reports whether the exit status of the sandbox's command is stored.
func (v *verbs) commandEnded(ctx context.Context, id caisson.ID) bool {
	sb, err := v.states.get(ctx, id)
	return err == nil && sb.Exit != nil
}

// pause writes a checkpoint of a sandbox, with its memory and files, to the sandbox's directory, and kills its processes.
func (v *verbs) pause(ctx context.Context, sb *caisson.Sandbox) error {
	err := writeDir(v.dirs.sandboxPath(sb.ID, pauseDir), func(dir string) error {
		v.clients.drop(sb.ID)
		if err := v.runtime.Checkpoint(ctx, sb.ID, dir, false); err != nil {
			return err
		}
		return copyDepends(v.dirs.sandboxDir(sb.ID), dir)
	})
	if err != nil {
		if sb.State != caisson.Suspended {
			// The sandbox is frozen if the checkpoint was, or may have been, written.
			return v.freezer.thawAfter(ctx, sb.ID, err)
		}
		return err
	}
	v.watches.unwatch(sb.ID)
	if err := v.processes.halt(context.WithoutCancel(ctx), sb.ID); err != nil {
		// The state is saved, and the remaining processes are frozen; the next resume kills them first.
		return stateError{err, caisson.Paused}
	}
	return nil
}

// resume starts a paused sandbox from the checkpoint that the pause has written.
func (v *verbs) resume(ctx context.Context, sb *caisson.Sandbox) error {
	dir := v.dirs.sandboxPath(sb.ID, pauseDir)
	admitted, err := v.admission.admit(ctx, sb, checkpointMemory(dir))
	if err != nil {
		return err
	}
	defer admitted()
	sb.Reason = ""
	filesOnly, err := v.processes.runFrom(ctx, sb, dir, sb.Spec.Randomness)
	if err != nil {
		return err
	}
	if filesOnly != "" {
		sb.Reason, sb.Exit, sb.SharedRandomness = filesOnly, nil, nil
	}
	return nil
}
