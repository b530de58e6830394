package sandboxes

import (
	"context"
	"sync"

	"github.com/caisson-dev/caisson"
)

// watches follow running sandboxes.
type watches struct {
	c *Core

	mu   sync.Mutex
	ends map[caisson.ID]func() // end a sandbox's watch; guarded by mu
}

// watch follows a sandbox that has been started: its command's output and end, and its own.
func (w *watches) watch(sb *caisson.Sandbox) {
	ctx, cancel := context.WithCancel(w.c.ctx)
	w.mu.Lock()
	if end := w.ends[sb.ID]; end != nil {
		end()
	}
	w.ends[sb.ID] = cancel
	w.mu.Unlock()
	if len(sb.Spec.Command) > 0 {
		w.c.do(func(context.Context) { w.collect(ctx, sb.ID) })
		if sb.Exit == nil {
			w.c.do(func(context.Context) { w.watchCommand(ctx, sb) })
		}
	}
	done := w.c.Runtime.Done(sb.ID)
	w.c.do(func(context.Context) {
		select {
		case <-ctx.Done():
		case <-done:
			w.died(w.c.ctx, ctx, sb.ID)
		}
	})
}

// unwatch ends the watch before a sandbox is ended on purpose.
func (w *watches) unwatch(id caisson.ID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if end := w.ends[id]; end != nil {
		end()
		delete(w.ends, id)
	}
}

// watchCommand records how the command ended.
func (w *watches) watchCommand(ctx context.Context, sb *caisson.Sandbox) {
	status, err := w.c.Runtime.WaitCommand(ctx, sb.ID)
	if err != nil || status.Unknown || ctx.Err() != nil {
		return // the sandbox ended with it, or the watch did
	}
	_, err = w.c.Store.Sandboxes().Update(ctx, caisson.Everyone(), string(sb.ID), func(s *caisson.Sandbox) error {
		s.Exit = &status
		return nil
	})
	if err != nil {
		w.c.Log.WarnContext(ctx, "the end of a command could not be stored", "sandbox", sb.ID, "err", err)
		return
	}
	w.c.event(ctx, sb, "command.ended", map[string]string{"status": status.String()})
}

// died records the end of a sandbox that nobody asked for. What it had written is lost with it.
func (w *watches) died(ctx, watch context.Context, id caisson.ID) {
	release, err := w.c.locks.acquire(ctx, id)
	if err != nil {
		return
	}
	defer release()
	if watch.Err() != nil {
		return // ended on purpose meanwhile
	}
	reason := "the sandbox ended unexpectedly"
	if status, err := w.c.Runtime.WaitCommand(ctx, id); err == nil && status.Reason != "" {
		reason = "the sandbox ended: " + status.Reason
	} else if r, ok := w.c.Runtime.(interface{ EndReason(caisson.ID) string }); ok {
		reason = "the sandbox ended: " + r.EndReason(id)
	}
	w.unwatch(id)
	sb, err := w.c.setState(ctx, id, caisson.Failed, func(s *caisson.Sandbox) error {
		if s.State != caisson.Running {
			return errUnchanged
		}
		s.Reason = reason
		return nil
	})
	if err != nil {
		return
	}
	if err := w.c.host.halt(ctx, id); err != nil {
		w.c.Log.ErrorContext(ctx, "remains of a sandbox could not be removed", "sandbox", id, "err", err)
	}
	w.c.event(ctx, sb, "sandbox.failed", map[string]string{"reason": reason})
}
