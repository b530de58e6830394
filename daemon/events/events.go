// Package events stores events and notifies their readers.
package events

import (
	"context"
	"log/slog"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/notify"
)

// Hub appends events to a store and wakes the calls of Watch that wait for new events. It depends on no core and is constructed
// before all cores.
type Hub struct {
	store  caisson.EventStore
	log    *slog.Logger
	done   context.Context           // cancelled by Close, which ends all calls of Watch
	stop   context.CancelFunc        // cancels the context done
	stored notify.Notifier[struct{}] // wakes the calls of Watch whenever events have been stored
}

var (
	_ caisson.Events    = (*Hub)(nil)
	_ caisson.Publisher = (*Hub)(nil)
)

// New returns a Hub over a store. If log is nil, errors of the store are discarded.
func New(store caisson.EventStore, log *slog.Logger) *Hub {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	h := &Hub{store: store, log: log}
	h.done, h.stop = context.WithCancel(context.Background())
	return h
}

// Close ends all calls of Watch. Events can be published until the store is closed.
func (h *Hub) Close() error {
	h.stop()
	return nil
}

// Publish implements [caisson.Publisher].
func (h *Hub) Publish(ctx context.Context, account, kind, subject string, data map[string]string) {
	h.PublishAll(ctx, []*caisson.Event{{Account: account, Type: kind, Subject: subject, Data: data}})
}

// PublishAll implements [caisson.Publisher].
func (h *Hub) PublishAll(ctx context.Context, list []*caisson.Event) {
	if len(list) == 0 {
		return
	}
	for _, e := range list {
		e.At, e.Actor = time.Now().UTC(), caisson.ActorOf(ctx)
	}
	if err := h.store.AppendAll(context.WithoutCancel(ctx), list); err != nil {
		e := list[0]
		h.log.ErrorContext(ctx, "events could not be stored", "event", e.Type, "subject", e.Subject, "count", len(list), "err", err)
		return
	}
	h.stored.Notify(struct{}{})
}

// page is the maximum number of events that Watch reads from the store at once.
const page = 256

// Watch implements [caisson.Events].
func (h *Hub) Watch(ctx context.Context, subject string, after int64) (<-chan caisson.Event, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	if subject != "" {
		list, err := h.store.After(ctx, caisson.In(caller.Account), subject, 0, 1)
		if err != nil {
			return nil, err
		}
		if len(list) == 0 {
			return nil, caisson.Errorf(caisson.NotFound, "there are no events about %.80q", subject)
		}
	}
	return notify.Follow(ctx, h.done.Done(), &h.stored, struct{}{}, func() ([]caisson.Event, bool, error) {
		list, err := h.store.After(ctx, caisson.In(caller.Account), subject, after, page)
		if n := len(list); n > 0 {
			after = list[n-1].Seq
		}
		return list, len(list) == page, err
	}), nil
}
