package sandboxes

import (
	"context"
	"log/slog"
	"sync"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/background"
)

// watches monitors running sandboxes: the output and the exit of their commands, their services, and their unexpected ends.
type watches struct {
	runtime interface {
		doneReporter
		WaitCommand(ctx context.Context, id caisson.ID) (caisson.ExitStatus, error)
	}
	ends       caisson.EndReporter // returns why a sandbox ended; nil: the reason is not known
	states     states              // stored records of sandboxes
	locks      *locks              // one lock for each sandbox
	processes  *processes          // starts and kills processes of sandboxes
	logs       *logs               // logs of commands
	services   *supervisors        // follows the services of sandboxes
	background *background.Group   // background goroutines of the core
	log        *slog.Logger

	mu    sync.Mutex
	stops map[caisson.ID]func() // functions that stop a sandbox's watch and wait until its log is complete; guarded by mu
}

// watch monitors a started sandbox: the output and exit of its command, and the end of the sandbox itself.
func (w *watches) watch(sb *caisson.Sandbox) {
	w.unwatch(sb.ID)
	ctx, cancel := context.WithCancel(w.background.Context())
	var collecting sync.WaitGroup
	w.mu.Lock()
	w.stops[sb.ID] = func() { cancel(); collecting.Wait() }
	w.mu.Unlock()
	if len(sb.Spec.Command) > 0 {
		collecting.Add(1)
		if !w.background.Start(func(context.Context) { defer collecting.Done(); w.logs.collect(ctx, sb.ID) }) {
			collecting.Done()
		}
		if sb.Exit == nil {
			w.background.Start(func(context.Context) { w.watchCommand(ctx, sb) })
		}
	}
	w.services.follow(sb)
	done := w.runtime.Done(sb.ID)
	w.background.Start(func(context.Context) {
		select {
		case <-ctx.Done():
		case <-done:
			w.recordDeath(w.background.Context(), ctx, sb.ID)
		}
	})
}

// ensureWatched starts the monitoring of a running or suspended sandbox unless the sandbox is already monitored.
func (w *watches) ensureWatched(sb *caisson.Sandbox) {
	w.mu.Lock()
	_, followed := w.stops[sb.ID]
	w.mu.Unlock()
	if !followed {
		w.watch(sb)
	}
}

// unwatch ends the monitoring of a sandbox before the sandbox is stopped intentionally.
func (w *watches) unwatch(id caisson.ID) {
	w.mu.Lock()
	end := w.stops[id]
	delete(w.stops, id)
	w.mu.Unlock()
	w.services.unfollow(id)
	if end != nil {
		end()
	}
}

// watchCommand waits for the end of the sandbox's command and stores its exit status.
func (w *watches) watchCommand(ctx context.Context, sb *caisson.Sandbox) {
	status, err := w.runtime.WaitCommand(ctx, sb.ID)
	if err != nil || status.Unknown || ctx.Err() != nil {
		return // The sandbox or its monitoring has ended.
	}
	_, err = w.states.update(ctx, sb.ID, func(s *caisson.Sandbox) error {
		s.Exit = &status
		return nil
	})
	if err != nil {
		w.log.WarnContext(ctx, "the end of a command could not be stored", "sandbox", sb.ID, "err", err)
		return
	}
	w.states.event(ctx, sb, "command.ended", map[string]string{"status": status.String()})
}

// recordDeath records the unexpected end of a sandbox, unless watch, the context of its monitoring, has ended. Files that were
// not saved are lost.
func (w *watches) recordDeath(ctx, watch context.Context, id caisson.ID) {
	release, err := w.locks.acquire(ctx, id)
	if err != nil {
		return
	}
	defer release()
	if watch.Err() != nil {
		return // The sandbox was stopped intentionally in the meantime.
	}
	reason := "the sandbox ended unexpectedly"
	if status, err := w.runtime.WaitCommand(ctx, id); err == nil && status.Reason != "" {
		reason = "the sandbox ended: " + status.Reason
	} else if w.ends != nil {
		reason = "the sandbox ended: " + w.ends.EndReason(id)
	}
	w.fail(ctx, id, reason)
}

// fail marks a running or suspended sandbox as failed, for a reason other than a user's request, and frees its resources on the
// host. The caller must hold the sandbox's lock.
func (w *watches) fail(ctx context.Context, id caisson.ID, reason string) {
	w.unwatch(id)
	sb, err := w.states.set(ctx, id, caisson.Failed, func(s *caisson.Sandbox) error {
		if s.State != caisson.Running && s.State != caisson.Suspended {
			return errUnchanged
		}
		s.Reason = reason
		return nil
	})
	if err != nil {
		return
	}
	if err := w.processes.halt(ctx, id); err != nil {
		w.log.ErrorContext(ctx, "the resources of a failed sandbox could not be freed", "sandbox", id, "err", err)
	}
	w.states.event(ctx, sb, "sandbox.failed", map[string]string{"reason": reason})
}
