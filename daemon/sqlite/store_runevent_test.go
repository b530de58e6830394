package sqlite_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-dev/caisson"
)

// someEvents returns n events with consecutive numbers from first on.
func someEvents(first int64, n int) []caisson.RunEvent {
	var list []caisson.RunEvent
	for i := range n {
		list = append(list, caisson.RunEvent{Seq: first + int64(i), At: noon(), Type: caisson.EventTextDelta, Attempt: 1, Delta: fmt.Sprint(i)})
	}
	return list
}

func testRunEvents(t *testing.T, s caisson.RunStore) {
	ctx, in := t.Context(), caisson.In("a")
	r, other := addRun(t, s, "a", 0, nil), addRun(t, s, "a", 0, nil)
	want := append([]caisson.RunEvent{
		{Seq: 1, At: noon(), Type: caisson.EventStatus, Phase: "tool_use", Label: "<&> \u2028\x00", Child: "rn-x"},
		{Seq: 2, At: noon(), Type: caisson.EventToolStart, CallID: "c", Tool: "sh", Args: json.RawMessage(`{"a":[1,2.50,"ü"]}`)},
		{Seq: 3, At: noon(), Type: caisson.EventToolResult, CallID: "c", Result: "r", IsError: true},
		{Seq: 4, At: noon(), Type: caisson.EventUsage, Usage: &caisson.RunUsage{Calls: 1, Cost: 2}},
		{Seq: 5, At: noon(), Type: caisson.EventError, Error: &caisson.RunError{Code: "timeout", Message: "m"}},
	}, someEvents(6, 20)...)
	must(t, s.Append(ctx, r.ID, nil))
	if n := get[int64](t)(s.LastEvent(ctx, r.ID)); n != 0 {
		t.Errorf("the last event of a run without any is %d", n)
	}
	must(t, s.Append(ctx, r.ID, want[:1]))
	must(t, s.Append(ctx, r.ID, want[1:]))
	must(t, s.Append(ctx, other.ID, someEvents(1, 3)))
	if diff := cmp.Diff(want, get[[]caisson.RunEvent](t)(s.Events(ctx, in, r.ID, 0, 1000))); diff != "" {
		t.Errorf("events came back changed (-want +got):\n%s", diff)
	}
	for _, c := range []struct {
		after    int64
		limit, n int
	}{{0, 1, 1}, {3, 4, 4}, {24, 9, 1}, {25, 9, 0}, {1 << 60, 9, 0}, {-5, 2, 2}} {
		page := get[[]caisson.RunEvent](t)(s.Events(ctx, in, r.ID, c.after, c.limit))
		if len(page) != c.n || c.n > 0 && page[0].Seq != max(c.after, 0)+1 {
			t.Errorf("after %d at most %d: %d events", c.after, c.limit, len(page))
		}
	}
	_, err := s.Events(ctx, in, r.ID, 0, 0)
	wantKind(t, err, caisson.Invalid)
	// Events that do not follow the last one are rejected, together with all events of the same call.
	for name, list := range map[string][]caisson.RunEvent{
		"again": someEvents(25, 1), "gap": someEvents(27, 1), "zero": someEvents(0, 1), "gap inside": {{Seq: 26}, {Seq: 28}},
		"twice": {{Seq: 26}, {Seq: 26}},
	} {
		t.Run(name, func(t *testing.T) { wantKind(t, s.Append(ctx, r.ID, list), caisson.Conflict) })
	}
	if n := get[int64](t)(s.LastEvent(ctx, r.ID)); n != 25 {
		t.Errorf("the last event is %d", n)
	}
	if err := s.Append(ctx, r.ID, []caisson.RunEvent{{Seq: 26}, {Seq: 27, Args: json.RawMessage("{")}}); err == nil {
		t.Error("what is no JSON was stored")
	}
	must(t, s.Append(ctx, r.ID, someEvents(26, 1)))
}

func testRunEventScopes(t *testing.T, s caisson.RunStore) {
	ctx := t.Context()
	r := addRun(t, s, "a", 0, nil)
	must(t, s.Append(ctx, r.ID, someEvents(1, 3)))
	for _, in := range []caisson.Scope{caisson.In("b"), caisson.In(""), {}} {
		_, err := s.Events(ctx, in, r.ID, 0, 10)
		wantKind(t, err, caisson.NotFound)
	}
	if page := get[[]caisson.RunEvent](t)(s.Events(ctx, caisson.AllAccounts(), r.ID, 0, 10)); len(page) != 3 {
		t.Errorf("%d events", len(page))
	}
	_, err := s.Events(ctx, caisson.AllAccounts(), "rn-neverexistedabc", 0, 10)
	wantKind(t, err, caisson.NotFound)
	_, err = s.LastEvent(ctx, "rn-neverexistedabc")
	wantKind(t, err, caisson.NotFound)
	wantKind(t, s.Append(ctx, "rn-neverexistedabc", someEvents(1, 1)), caisson.NotFound)
}

// testConcurrentRunEvents tests that only one of several concurrent appends of the same event succeeds, and that
// readers see no gap.
func testConcurrentRunEvents(t *testing.T, s caisson.RunStore) {
	ctx := t.Context()
	r := addRun(t, s, "a", 0, nil)
	var won atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for seq := int64(1); seq <= 40; seq += 2 {
				switch err := s.Append(ctx, r.ID, someEvents(seq, 2)); {
				case err == nil:
					won.Add(1)
				case caisson.KindOf(err) != caisson.Conflict:
					t.Error(err)
				}
			}
		})
		wg.Go(func() {
			for range 20 {
				page, err := s.Events(ctx, caisson.In("a"), r.ID, 0, 1000)
				if err != nil || len(page)%2 != 0 {
					t.Errorf("%d events, %v", len(page), err)
				}
				for i, e := range page {
					if e.Seq != int64(i)+1 {
						t.Errorf("event %d is %d", i, e.Seq)
					}
				}
			}
		})
	}
	wg.Wait()
	if last := get[int64](t)(s.LastEvent(ctx, r.ID)); last != 40 || won.Load() != 20 {
		t.Errorf("%d events after %d appends", last, won.Load())
	}
}

func testDeleteRun(t *testing.T, s caisson.RunStore) {
	ctx, in := t.Context(), caisson.In("a")
	top := addRun(t, s, "a", 5, nil)
	r, other := addRun(t, s, "a", 0, top), addRun(t, s, "a", 0, nil)
	must(t, s.Append(ctx, r.ID, someEvents(1, 1001)))
	must(t, s.Append(ctx, other.ID, someEvents(1, 2)))
	must(t, s.Delete(ctx, in, r.ID))
	wantKind(t, s.Delete(ctx, in, r.ID), caisson.NotFound)
	_, err := s.Get(ctx, in, r.ID)
	wantKind(t, err, caisson.NotFound)
	_, err = s.Events(ctx, in, r.ID, 0, 1)
	wantKind(t, err, caisson.NotFound)
	wantKind(t, s.Append(ctx, r.ID, someEvents(1002, 1)), caisson.NotFound)
	if ids := runPages(t, s, in, caisson.RunFilter{Under: top.ID}, nil); !slices.Equal(ids, []caisson.ID{top.ID}) {
		t.Errorf("under its parent: %v", ids)
	}
	if n := get[int64](t)(s.LastEvent(ctx, other.ID)); n != 2 {
		t.Errorf("another run has lost events: %d", n)
	}
	if got := getRun(t, s, top.ID); got.Children != 1 {
		t.Errorf("its parent has %d children: what was started stays counted", got.Children)
	}
	// The ID can be used again, and the new run has none of the old events.
	must(t, s.Insert(ctx, r, 0))
	if n := get[int64](t)(s.LastEvent(ctx, r.ID)); n != 0 {
		t.Errorf("a new run has %d events", n)
	}
	must(t, s.Append(ctx, r.ID, someEvents(1, 1)))
	must(t, s.Delete(ctx, caisson.AllAccounts(), r.ID))
}

func testTrimRuns(t *testing.T, s caisson.RunStore) {
	ctx := t.Context()
	var want []caisson.ID
	for i := range 120 {
		r := addRun(t, s, []string{"a", "b"}[i%2], 0, nil)
		must(t, s.Append(ctx, r.ID, someEvents(1, 5)))
		get[*caisson.Run](t)(s.Update(ctx, caisson.AllAccounts(), r.ID, endRun(noon().Add(time.Duration(i)*time.Minute))))
		if i < 110 {
			want = append(want, r.ID)
		}
	}
	live := addRun(t, s, "a", 0, nil)
	before := noon().Add(110 * time.Minute)
	for _, limit := range []int{0, -1} {
		_, err := s.Trim(ctx, before, limit)
		wantKind(t, err, caisson.Invalid)
	}
	first := get[[]caisson.ID](t)(s.Trim(ctx, before, 70))
	rest := get[[]caisson.ID](t)(s.Trim(ctx, before, 70))
	if !slices.Equal(first, want[:70]) || !slices.Equal(rest, want[70:]) { // The runs that ended first are removed first.
		t.Errorf("trimmed %d and %d, want %d", len(first), len(rest), len(want))
	}
	if none := get[[]caisson.ID](t)(s.Trim(ctx, before, 70)); len(none) != 0 {
		t.Errorf("trimmed %v", none)
	}
	if ids := runPages(t, s, caisson.AllAccounts(), caisson.RunFilter{}, nil); len(ids) != 11 || ids[0] != live.ID {
		t.Errorf("%d runs are left", len(ids))
	}
	// A run that was started again is not trimmed, even if it ended before the limit.
	ids := runPages(t, s, caisson.AllAccounts(), caisson.RunFilter{}, nil)
	get[*caisson.Run](t)(s.Update(ctx, caisson.AllAccounts(), ids[1], func(r *caisson.Run) error { r.State = caisson.RunQueued; return nil }))
	if ids := get[[]caisson.ID](t)(s.Trim(ctx, noon().AddDate(1, 0, 0), 1000)); len(ids) != 9 {
		t.Errorf("trimmed %d", len(ids))
	}
}
