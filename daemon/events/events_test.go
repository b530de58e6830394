package events_test

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/events"
	"github.com/caisson-dev/caisson/daemon/sqlite/sqlitetest"
)

func as(ctx context.Context, account string) context.Context {
	return caisson.WithCaller(ctx, caisson.Caller{Account: account, Local: true})
}

func watch(t *testing.T, h *events.Hub, ctx context.Context, subject string, after int64) <-chan caisson.Event {
	t.Helper()
	c, err := h.Watch(as(ctx, "local"), subject, after)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestEvents(t *testing.T) {
	t.Parallel()
	h := events.New(sqlitetest.New(t).Events(), nil)
	if _, err := h.Watch(t.Context(), "", 0); caisson.KindOf(err) != caisson.Unauthed {
		t.Errorf("without a caller: %v", err)
	}
	if _, err := h.Watch(as(t.Context(), "local"), "unknown", 0); caisson.KindOf(err) != caisson.NotFound {
		t.Errorf("of what there are no events: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	live := watch(t, h, ctx, "", 0)
	ended, end := context.WithCancel(as(t.Context(), "local"))
	end()
	h.Publish(ended, "local", "a", "x", map[string]string{"k": "v"}) // stored even if the caller's context is cancelled
	h.Publish(as(t.Context(), "other"), "other", "b", "x", nil)
	h.PublishAll(t.Context(), []*caisson.Event{
		{Account: "local", Type: "c", Subject: "y"}, {Account: "local", Type: "d", Subject: "x"},
	})
	h.PublishAll(t.Context(), nil)
	var seen []caisson.Event
	for e := range live {
		seen = append(seen, e)
		if n := len(seen); e.Account != "local" || e.At.IsZero() || n > 1 && e.Seq <= seen[n-2].Seq {
			t.Errorf("event %+v", e)
		}
		if len(seen) == 3 {
			break
		}
	}
	got := seen[0].Type + seen[1].Type + seen[2].Type
	if got != "acd" || seen[0].Actor != "local" || seen[1].Actor != "" || seen[0].Data["k"] != "v" {
		t.Errorf("followed %+v", seen)
	}
	replay := watch(t, h, ctx, "x", seen[0].Seq)
	if r := <-replay; r.Seq != seen[2].Seq || r.Type != "d" {
		t.Errorf("replayed %+v, want %+v", r, seen[2])
	}
	cancel()
	for range replay { // until the channel is closed
	}
	for range live {
	}
	// Closing the hub ends the remaining calls of Watch.
	rest := watch(t, h, t.Context(), "", 0)
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	for range rest {
	}
}

// TestSlowFollower checks that a slow reader misses no event.
func TestSlowFollower(t *testing.T) {
	t.Parallel()
	h := events.New(sqlitetest.New(t).Events(), nil)
	live := watch(t, h, t.Context(), "", 0)
	const each = 100
	var wg sync.WaitGroup
	for _, kind := range []string{"a", "b", "c", "d"} {
		wg.Go(func() {
			for range each {
				h.Publish(t.Context(), "local", kind, "x", nil)
			}
		})
	}
	wg.Wait()
	var seq int64
	kinds := map[string]int{}
	for range 4 * each {
		e := <-live
		if e.Seq <= seq {
			t.Fatalf("%d after %d", e.Seq, seq)
		}
		seq = e.Seq
		kinds[e.Type]++
	}
	if !maps.Equal(kinds, map[string]int{"a": each, "b": each, "c": each, "d": each}) {
		t.Errorf("followed %v", kinds)
	}
}

// full is a store whose disk is full.
type full struct{ caisson.EventStore }

func (full) AppendAll(context.Context, []*caisson.Event) error { return errors.New("disk full") }

// TestUnstored checks that an event that cannot be stored is logged.
func TestUnstored(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	h := events.New(full{}, slog.New(slog.NewTextHandler(&log, nil)))
	h.Publish(t.Context(), "local", "a.b", "x", nil)
	if got := log.String(); !strings.Contains(got, "event=a.b") || !strings.Contains(got, "disk full") {
		t.Errorf("the log is %s", got)
	}
}
