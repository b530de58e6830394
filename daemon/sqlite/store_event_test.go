package sqlite_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-dev/caisson"
)

func testEvents(t *testing.T, open Opener) {
	for name, test := range map[string]func(*testing.T, caisson.EventStore){
		"Append": testAppendEvent, "AppendAll": testAppendEvents, "After": testEventsAfter, "Trim": testTrimEvents, "Concurrent": testConcurrentEvents,
		"Verify": testVerifyEvents, "VerifyHead": testVerifyHead, "VerifyTrimmed": testVerifyTrimmed,
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t).Events()) })
	}
}

// event appends an event and returns it with its Seq.
func event(t *testing.T, s caisson.EventStore, account, subject string, at time.Time) caisson.Event {
	t.Helper()
	e := caisson.Event{At: at, Account: account, Actor: "local", Type: "test.happened", Subject: subject, Data: map[string]string{"k": "<v>"}}
	must(t, s.Append(t.Context(), &e))
	return e
}

func testAppendEvent(t *testing.T, s caisson.EventStore) {
	if last := get[int64](t)(s.Last(t.Context())); last != 0 {
		t.Errorf("the last event of an empty store is %d", last)
	}
	var want []caisson.Event
	for range 3 {
		e := event(t, s, "a", "x", noon())
		if len(want) > 0 && e.Seq <= want[len(want)-1].Seq {
			t.Errorf("event %d follows %d", e.Seq, want[len(want)-1].Seq)
		}
		want = append(want, e)
	}
	got := get[[]caisson.Event](t)(s.After(t.Context(), caisson.In("a"), "", 0, 100))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events came back changed (-want +got):\n%s", diff)
	}
	if last := get[int64](t)(s.Last(t.Context())); last != want[2].Seq {
		t.Errorf("the last event is %d, want %d", last, want[2].Seq)
	}
}

func testAppendEvents(t *testing.T, s caisson.EventStore) {
	must(t, s.AppendAll(t.Context(), nil))
	want := []caisson.Event{event(t, s, "a", "x", noon())}
	var list []*caisson.Event
	for i := range 3 {
		list = append(list, &caisson.Event{At: noon(), Account: "a", Type: "test.happened", Subject: fmt.Sprint(i)})
	}
	must(t, s.AppendAll(t.Context(), list))
	for _, e := range list {
		if e.Seq <= want[len(want)-1].Seq {
			t.Errorf("event %d follows %d", e.Seq, want[len(want)-1].Seq)
		}
		want = append(want, *e)
	}
	want = append(want, event(t, s, "a", "x", noon()))
	got := get[[]caisson.Event](t)(s.After(t.Context(), caisson.In("a"), "", 0, 100))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events came back changed (-want +got):\n%s", diff)
	}
	if r := verified(t, s, ""); r.Problem != "" || r.Events != int64(len(want)) {
		t.Errorf("verified: %+v", r)
	}
}

func testEventsAfter(t *testing.T, s caisson.EventStore) {
	var all []caisson.Event
	for i := range 40 {
		all = append(all, event(t, s, fmt.Sprintf("a%d", i%2), fmt.Sprintf("s%d", i%4), noon()))
	}
	for _, c := range []struct {
		in      caisson.Scope
		subject string
	}{
		{caisson.AllAccounts(), ""}, {caisson.AllAccounts(), "s1"}, {caisson.In("a0"), ""}, {caisson.In("a1"), ""},
		{caisson.In("a0"), "s0"}, {caisson.In("a0"), "s1"}, {caisson.In("a0"), "none"}, {caisson.In("none"), ""}, {caisson.In(""), ""},
	} {
		var want, got []int64
		for _, e := range all {
			if c.in.Covers(e.Account) && (c.subject == "" || c.subject == e.Subject) {
				want = append(want, e.Seq)
			}
		}
		for after := int64(0); ; {
			page := get[[]caisson.Event](t)(s.After(t.Context(), c.in, c.subject, after, 3))
			if len(page) > 3 {
				t.Fatalf("asked for 3 events, got %d", len(page))
			}
			if len(page) == 0 {
				break
			}
			for _, e := range page {
				got = append(got, e.Seq)
			}
			after = page[len(page)-1].Seq
		}
		if !slices.Equal(got, want) {
			t.Errorf("%v, subject %q: events %v, want %v", c.in, c.subject, got, want)
		}
	}
	_, err := s.After(t.Context(), caisson.In("a0"), "", 0, 0)
	wantKind(t, err, caisson.Invalid)
}

func testTrimEvents(t *testing.T, s caisson.EventStore) {
	// More events than any batch, and not in order of time, because clocks jump.
	var want []int64
	for i := range 1500 {
		at := noon().Add(-time.Hour)
		if i%3 == 0 {
			at = noon().Add(time.Duration(i) * time.Second)
		}
		if e := event(t, s, "a", "x", at); i%3 == 0 {
			want = append(want, e.Seq)
		}
	}
	last := get[int64](t)(s.Last(t.Context()))
	if n := get[int64](t)(s.Trim(t.Context(), noon())); n != 1000 {
		t.Errorf("%d events were trimmed, want 1000", n)
	}
	var got []int64
	for _, e := range get[[]caisson.Event](t)(s.After(t.Context(), caisson.AllAccounts(), "", 0, 2000)) {
		got = append(got, e.Seq)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%d events are left, want %d", len(got), len(want))
	}
	if n := get[int64](t)(s.Trim(t.Context(), noon())); n != 0 {
		t.Errorf("%d events were trimmed twice", n)
	}
	get[int64](t)(s.Trim(t.Context(), noon().Add(24*time.Hour)))
	if e := event(t, s, "a", "x", noon()); e.Seq <= last {
		t.Errorf("after everything was trimmed the next event is %d, not above %d", e.Seq, last)
	}
}

func testConcurrentEvents(t *testing.T, s caisson.EventStore) {
	const workers, rounds = 8, 20
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for range rounds {
				e := caisson.Event{At: noon(), Account: "a", Type: "test.happened", Subject: "x"}
				if err := s.Append(t.Context(), &e); err != nil {
					t.Error(err)
				}
			}
		})
	}
	go func() { wg.Wait(); close(done) }()
	// A reader that follows the events misses none: an event never appears after one with a greater Seq.
	seen, after, finished := 0, int64(0), false
	for {
		page := get[[]caisson.Event](t)(s.After(t.Context(), caisson.In("a"), "", after, 7))
		for _, e := range page {
			seen, after = seen+1, e.Seq
		}
		verified(t, s, "") // Verify reads one state, even during writes.
		if finished && len(page) == 0 {
			break
		}
		select {
		case <-done:
			finished = true
		default:
		}
	}
	if seen != workers*rounds {
		t.Errorf("the reader saw %d of %d events", seen, workers*rounds)
	}
}

// verified returns the report on a record, which must be intact.
func verified(t *testing.T, s caisson.EventStore, head string) caisson.AuditReport {
	t.Helper()
	r := get[*caisson.AuditReport](t)(s.Verify(t.Context(), head))
	if r.Problem != "" || r.Head == "" {
		t.Fatalf("a record that nobody touched: %+v", *r)
	}
	return *r
}

func testVerifyEvents(t *testing.T, s caisson.EventStore) {
	if r := verified(t, s, ""); r.Events != 0 || r.First != 0 || r.Last != 0 {
		t.Errorf("an empty record: %+v", r)
	}
	heads := map[string]bool{}
	for i := range 5 {
		last := event(t, s, fmt.Sprint("a", i%2), "x", noon()).Seq
		r := verified(t, s, "")
		if r.Events != int64(i+1) || r.First != 1 || r.Last != last || heads[r.Head] {
			t.Errorf("after %d events: %+v", i+1, r)
		}
		heads[r.Head] = true
	}
}

func testVerifyHead(t *testing.T, s caisson.EventStore) {
	heads := []string{verified(t, s, "").Head}
	for range 3 {
		event(t, s, "a", "x", noon())
		heads = append(heads, verified(t, s, "").Head)
	}
	for _, head := range heads {
		verified(t, s, head)
	}
	number, hash, _ := strings.Cut(heads[2], ":")
	for _, head := range []string{"9:" + hash, "1:" + hash, number + ":" + strings.Repeat("00", len(hash)/2)} {
		if r := get[*caisson.AuditReport](t)(s.Verify(t.Context(), head)); r.Problem == "" || r.Head != heads[3] {
			t.Errorf("%s never was the head: %+v", head, *r)
		}
	}
	for _, head := range []string{":", "1", hash, "1:" + hash + "00", "-1:" + hash, "x:" + hash, "1:" + strings.Repeat("zz", len(hash)/2)} {
		_, err := s.Verify(t.Context(), head)
		wantKind(t, err, caisson.Invalid)
	}
}

func testVerifyTrimmed(t *testing.T, s caisson.EventStore) {
	var heads []string
	for i := range 30 {
		at := noon().Add(time.Duration(i%10) * time.Hour) // Trimming leaves gaps and later joins them.
		event(t, s, "a", "x", at)
		heads = append(heads, verified(t, s, "").Head)
	}
	for keep := 9; keep >= 0; keep-- {
		get[int64](t)(s.Trim(t.Context(), noon().Add(time.Duration(10-keep)*time.Hour)))
		if r := verified(t, s, heads[29]); r.Events != int64(3*keep) || r.Last != 30 {
			t.Errorf("%d left: %+v", 3*keep, r)
		}
	}
	_, err := s.Verify(t.Context(), heads[3])
	wantKind(t, err, caisson.NotFound)
	e := event(t, s, "a", "x", noon())
	if r := verified(t, s, heads[29]); r.Events != 1 || r.First != e.Seq || r.Last != e.Seq {
		t.Errorf("the first event after everything was trimmed: %+v", r)
	}
}
