package sandboxes

import (
	"context"
	"log/slog"
	"sync"

	"github.com/caisson-dev/caisson"
)

// hub stores events and wakes those who follow. It implements [caisson.Events].
type hub struct {
	store caisson.EventStore
	log   *slog.Logger
	done  <-chan struct{} // ends all that follow

	mu   sync.Mutex
	wake chan struct{} // closed and replaced when an event was stored; guarded by mu
}

func newHub(store caisson.EventStore, log *slog.Logger, done <-chan struct{}) *hub {
	return &hub{store: store, log: log, done: done, wake: make(chan struct{})}
}

// Events returns the record of what happened.
func (c *Core) Events() caisson.Events { return c.events }

// publish records an event. That it cannot be stored is logged, and is no reason to fail what it reports.
func (h *hub) publish(ctx context.Context, account, kind, subject string, data map[string]string) {
	e := &caisson.Event{At: now(), Account: account, Actor: caisson.ActorOf(ctx), Type: kind, Subject: subject, Data: data}
	if err := h.record(ctx, e); err != nil {
		h.log.ErrorContext(ctx, "an event could not be stored", "event", kind, "subject", subject, "err", err)
	}
}

// record stores an event and wakes those who follow.
func (h *hub) record(ctx context.Context, e *caisson.Event) error {
	return h.recordAll(ctx, []*caisson.Event{e})
}

// recordAll stores events in their order, all or none, and wakes those who follow.
func (h *hub) recordAll(ctx context.Context, list []*caisson.Event) error {
	if err := h.store.AppendAll(context.WithoutCancel(ctx), list); err != nil {
		return err
	}
	h.mu.Lock()
	close(h.wake)
	h.wake = make(chan struct{})
	h.mu.Unlock()
	return nil
}

// Record adds an event that did not happen to a sandbox, template, image or snapshot.
func (c *Core) Record(ctx context.Context, e *caisson.Event) error { return c.events.record(ctx, e) }

// RecordAll does so with a list, in its order: with all or none.
func (c *Core) RecordAll(ctx context.Context, list []*caisson.Event) error {
	return c.events.recordAll(ctx, list)
}

// page is how many events are read from the store at once.
const page = 256

// Watch implements [caisson.Events].
func (h *hub) Watch(ctx context.Context, subject string, after int64) (<-chan caisson.Event, error) {
	in, _, err := scope(ctx)
	if err != nil {
		return nil, err
	}
	out := make(chan caisson.Event)
	go func() {
		defer close(out)
		for {
			// Taken before the store is read, so that no event falls between.
			h.mu.Lock()
			wake := h.wake
			h.mu.Unlock()
			list, err := h.store.After(ctx, in, subject, after, page)
			if err != nil {
				return
			}
			for _, e := range list {
				select {
				case out <- e:
					after = e.Seq
				case <-ctx.Done():
					return
				case <-h.done:
					return
				}
			}
			if len(list) > 0 {
				continue
			}
			select {
			case <-wake:
			case <-ctx.Done():
				return
			case <-h.done:
				return
			}
		}
	}()
	return out, nil
}

// event publishes what happened to a sandbox.
func (c *Core) event(ctx context.Context, sb *caisson.Sandbox, kind string, data map[string]string) {
	c.events.publish(ctx, sb.Account, kind, string(sb.ID), data)
}
