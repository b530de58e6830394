package sqlite_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-dev/caisson"
)

func testRuns(t *testing.T, open Opener) {
	for name, test := range map[string]func(*testing.T, caisson.RunStore){
		"RoundTrip": testRunRoundTrip, "Scopes": testRunScopes, "Update": testUpdateRun, "Concurrent": testConcurrentRunUpdates,
		"Cancel": testCancelRunUpdate, "Live": testLiveRuns, "Lineage": testLineage, "Deep": testDeepLineage, "Family": testConcurrentFamily,
		"List": testListRuns, "Pages": testRunPages, "Long": testLongRuns,
		"Events": testRunEvents, "EventScopes": testRunEventScopes, "EventRace": testConcurrentRunEvents,
		"Delete": testDeleteRun, "Trim": testTrimRuns,
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t).Runs()) })
	}
}

// someRun returns a run of an account that may start n other runs. parent may be nil.
func someRun(account string, n int64, parent *caisson.Run) *caisson.Run {
	r := &caisson.Run{
		ID: caisson.NewID(caisson.RunPrefix), Account: account, Agent: "shell", State: caisson.RunQueued, Attempt: 1,
		Trace: "0123456789abcdef0123456789abcdef", Limits: caisson.AgentLimits{Runs: &n}, CreatedAt: noon(),
		Request: caisson.RunRequest{Agent: "shell", Prompt: "<&> ☃ \u2028"},
	}
	if parent != nil {
		r.Parent, r.Lineage = parent.ID, append(slices.Clone(parent.Lineage), parent.ID)
	}
	return r
}

// addRun inserts a run that someRun returns.
func addRun(t *testing.T, s caisson.RunStore, account string, n int64, parent *caisson.Run) *caisson.Run {
	t.Helper()
	r := someRun(account, n, parent)
	must(t, s.Insert(t.Context(), r, 0))
	return r
}

// endRun returns a change that ends a run.
func endRun(at time.Time) func(*caisson.Run) error {
	return func(r *caisson.Run) error {
		r.State, r.EndedAt = caisson.RunSucceeded, at
		return nil
	}
}

func getRun(t *testing.T, s caisson.RunStore, id caisson.ID) *caisson.Run {
	t.Helper()
	return get[*caisson.Run](t)(s.Get(t.Context(), caisson.AllAccounts(), id))
}

func testRunRoundTrip(t *testing.T, s caisson.RunStore) {
	top := addRun(t, s, "a", 3, nil)
	want := someRun("a", 2, top)
	want.Plan = &caisson.RunPlan{Version: 1, Agent: "h", Models: []string{"large"}, Env: map[string]string{"A": "1\n"}, Command: []string{"x"}}
	want.Session, want.Sandbox, want.Model = caisson.NewID(caisson.SessionPrefix), caisson.NewID(caisson.SandboxPrefix), "large"
	want.State, want.StartedAt, want.EndedAt, want.Deadline = caisson.RunFailed, noon(), noon().Add(1), noon().Add(2)
	want.Request = caisson.RunRequest{
		Agent: "x", Persona: "p", Prompt: "'; DROP TABLE run; --", History: []caisson.Message{{Role: "user", Content: "ü"}}, User: "u",
		Env: map[string]string{"A": "1\n"}, Policy: &caisson.Policy{}, Keep: true, Labels: map[string]string{"a": "b"}, Source: "/src",
	}
	want.Result = &caisson.RunResult{
		Attempt: 1, Answer: "a\x00b", Error: &caisson.RunError{Code: caisson.RunTimeout, Message: "m"}, Phases: []caisson.Phase{{Name: "fork", Time: 5}},
		Usage: caisson.RunUsage{Calls: 3, Tokens: caisson.TokenCount{Input: 1}, Cost: 4}, Versions: map[string]string{"agent": "1"},
		Changes: []caisson.FileChange{{Path: "\u202e", Kind: "added", Added: 1}}, Exit: &caisson.ExitStatus{Code: 1}, Stdout: 9,
	}
	want.Previous = []caisson.RunResult{{Attempt: 0, Answer: "before"}}
	must(t, s.Insert(t.Context(), want, 0))
	if diff := cmp.Diff(want, get[*caisson.Run](t)(s.Get(t.Context(), caisson.In("a"), want.ID))); diff != "" {
		t.Errorf("the run came back changed (-want +got):\n%s", diff)
	}
	wantKind(t, s.Insert(t.Context(), want, 0), caisson.Conflict)
	if got := getRun(t, s, top.ID); got.Children != 1 {
		t.Errorf("%d children after a run that was there already", got.Children)
	}
	for _, bad := range []func(*caisson.Run){
		func(r *caisson.Run) { r.ID = "" }, func(r *caisson.Run) { r.Account = "" }, func(r *caisson.Run) { r.Parent = "" },
		func(r *caisson.Run) { r.Parent = want.ID }, func(r *caisson.Run) { r.Lineage = nil },
		func(r *caisson.Run) { r.Lineage = []caisson.ID{top.ID, top.ID} }, func(r *caisson.Run) { r.ID = top.ID },
		func(r *caisson.Run) { r.Lineage = []caisson.ID{"", top.ID} },
	} {
		r := someRun("a", 0, top)
		bad(r)
		wantKind(t, s.Insert(t.Context(), r, 0), caisson.Internal)
	}
}

func testRunScopes(t *testing.T, s caisson.RunStore) {
	ctx := t.Context()
	mine := addRun(t, s, "a", 5, nil)
	addRun(t, s, "b", 5, nil)
	for _, in := range []caisson.Scope{caisson.In("b"), caisson.In(""), {}} {
		_, err := s.Get(ctx, in, mine.ID)
		wantKind(t, err, caisson.NotFound)
		_, err = s.Update(ctx, in, mine.ID, func(*caisson.Run) error { t.Error("another account's run was seen"); return nil })
		wantKind(t, err, caisson.NotFound)
		wantKind(t, s.Delete(ctx, in, mine.ID), caisson.NotFound)
		for _, f := range []caisson.RunFilter{{}, {Under: mine.ID}, {Agent: "shell"}, {States: []caisson.RunState{caisson.RunQueued}}} {
			page, more, err := s.List(ctx, in, f)
			must(t, err)
			if more || slices.ContainsFunc(page, func(r *caisson.Run) bool { return r.ID == mine.ID }) {
				t.Errorf("%v lists another account's run with %+v", in, f)
			}
		}
		_, _, err = s.List(ctx, in, caisson.RunFilter{Before: mine.ID})
		wantKind(t, err, caisson.Invalid)
	}
	// A run cannot have a parent in another account.
	wantKind(t, s.Insert(ctx, someRun("b", 0, mine), 0), caisson.Conflict)
	if got := getRun(t, s, mine.ID); !cmp.Equal(got, mine) {
		t.Errorf("the run has changed: %s", cmp.Diff(mine, got))
	}
}

func testUpdateRun(t *testing.T, s caisson.RunStore) {
	ctx, in := t.Context(), caisson.In("a")
	top := addRun(t, s, "a", 5, nil)
	r := addRun(t, s, "a", 0, top)
	got := get[*caisson.Run](t)(s.Update(ctx, in, r.ID, func(r *caisson.Run) error {
		r.State, r.Sandbox, r.Session = caisson.RunRunning, "sb", "se"
		return nil
	}))
	if stored := getRun(t, s, r.ID); got.State != caisson.RunRunning || !cmp.Equal(got, stored) {
		t.Errorf("returned %+v and stored %+v", got, stored)
	}
	refused := errors.New("refused")
	if _, err := s.Update(ctx, in, r.ID, func(r *caisson.Run) error { r.Sandbox = "lost"; return refused }); err != refused {
		t.Errorf("error of change came back as %v", err)
	}
	for what, change := range map[string]func(*caisson.Run){
		"id": func(r *caisson.Run) { r.ID += "x" }, "account": func(r *caisson.Run) { r.Account = "b" },
		"parent": func(r *caisson.Run) { r.Parent = "" }, "lineage": func(r *caisson.Run) { r.Lineage[0] = "rn-x" },
	} {
		if _, err := s.Update(ctx, in, r.ID, func(r *caisson.Run) error { change(r); return nil }); err == nil {
			t.Errorf("%s could be changed", what)
		}
	}
	func() {
		defer func() { recover() }()
		s.Update(ctx, in, r.ID, func(r *caisson.Run) error { r.Sandbox = "lost"; panic("in change") })
	}()
	if stored := getRun(t, s, r.ID); !cmp.Equal(got, stored) {
		t.Errorf("a change that failed was stored: %s", cmp.Diff(got, stored))
	}
	// Concurrent changes of the child count are not lost.
	get[*caisson.Run](t)(s.Update(ctx, in, top.ID, func(r *caisson.Run) error { r.Model = "m"; return nil }))
	addRun(t, s, "a", 0, top)
	if got := get[*caisson.Run](t)(s.Update(ctx, in, top.ID, func(r *caisson.Run) error { r.Model = "n"; return nil })); got.Children != 2 {
		t.Errorf("%d children", got.Children)
	}
}

func testConcurrentRunUpdates(t *testing.T, s caisson.RunStore) {
	const workers, rounds = 8, 10
	r := addRun(t, s, "a", workers*rounds, nil)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for range rounds {
				_, err := s.Update(t.Context(), caisson.In("a"), r.ID, func(r *caisson.Run) error { r.Attempt++; return nil })
				if err == nil {
					err = s.Insert(t.Context(), someRun("a", 0, r), 0)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if got := getRun(t, s, r.ID); got.Attempt != 1+workers*rounds || got.Children != workers*rounds {
		t.Errorf("%d updates and %d children of %d were kept", got.Attempt-1, got.Children, workers*rounds)
	}
}

func testCancelRunUpdate(t *testing.T, s caisson.RunStore) {
	r := addRun(t, s, "a", 5, nil)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := s.Update(ctx, caisson.In("a"), r.ID, func(r *caisson.Run) error { r.Model = "lost"; cancel(); return nil })
	for _, err := range []error{
		err, s.Insert(ctx, someRun("a", 0, r), 0), s.Delete(ctx, caisson.In("a"), r.ID),
		s.Append(ctx, r.ID, []caisson.RunEvent{{Seq: 1}}),
	} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("with a context that has ended: %v", err)
		}
	}
	if got := getRun(t, s, r.ID); !cmp.Equal(got, r) {
		t.Errorf("a cancelled change was stored: %s", cmp.Diff(r, got))
	}
}

// testLiveRuns tests that the limit applies to the account's runs that have no parent and have not ended.
func testLiveRuns(t *testing.T, s caisson.RunStore) {
	ctx := t.Context()
	top := addRun(t, s, "a", 5, nil)
	addRun(t, s, "a", 0, top)
	addRun(t, s, "b", 0, nil)
	must(t, s.Insert(ctx, someRun("a", 0, nil), 2))
	wantKind(t, s.Insert(ctx, someRun("a", 0, nil), 2), caisson.Exhausted)
	must(t, s.Insert(ctx, someRun("a", 0, top), 2))
	must(t, s.Insert(ctx, someRun("b", 0, nil), 2))
	get[*caisson.Run](t)(s.Update(ctx, caisson.In("a"), top.ID, endRun(noon())))
	var won atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			switch err := s.Insert(ctx, someRun("a", 0, nil), 4); {
			case err == nil:
				won.Add(1)
			case caisson.KindOf(err) != caisson.Exhausted:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if won.Load() != 3 {
		t.Errorf("%d runs were taken, 3 had room", won.Load())
	}
	// A run that starts another attempt counts again.
	get[*caisson.Run](t)(s.Update(ctx, caisson.In("a"), top.ID, func(r *caisson.Run) error { r.State = caisson.RunQueued; return nil }))
	wantKind(t, s.Insert(ctx, someRun("a", 0, nil), 5), caisson.Exhausted)
	must(t, s.Insert(ctx, someRun("a", 0, nil), 6))
}

func testLineage(t *testing.T, s caisson.RunStore) {
	ctx, in := t.Context(), caisson.In("a")
	children := func(want ...int64) func(...*caisson.Run) {
		return func(runs ...*caisson.Run) {
			t.Helper()
			for i, r := range runs {
				if got := getRun(t, s, r.ID).Children; got != want[i] {
					t.Errorf("run %d has %d children, want %d", i, got, want[i])
				}
			}
		}
	}
	top := addRun(t, s, "a", 3, nil)
	mid := addRun(t, s, "a", 5, top)
	low := addRun(t, s, "a", 0, mid)
	children(2, 1, 0)(top, mid, low)
	wantKind(t, s.Insert(ctx, someRun("a", 0, low), 0), caisson.Exhausted) // The run may not start others.
	children(2, 1, 0)(top, mid, low)
	addRun(t, s, "a", 0, mid)
	wantKind(t, s.Insert(ctx, someRun("a", 0, mid), 0), caisson.Exhausted) // The top run has started its three.
	wantKind(t, s.Insert(ctx, someRun("a", 0, top), 0), caisson.Exhausted)
	children(3, 2, 0)(top, mid, low)
	get[*caisson.Run](t)(s.Update(ctx, in, top.ID, func(r *caisson.Run) error { r.Limits.Runs = new(int64(9)); return nil }))
	addRun(t, s, "a", 0, mid)
	get[*caisson.Run](t)(s.Update(ctx, in, top.ID, endRun(noon())))
	wantKind(t, s.Insert(ctx, someRun("a", 0, mid), 0), caisson.Conflict) // An ancestor has ended.
	children(4, 3)(top, mid)
	must(t, s.Delete(ctx, in, top.ID))
	wantKind(t, s.Insert(ctx, someRun("a", 0, mid), 0), caisson.Conflict) // An ancestor was deleted.
	children(3)(mid)
	wantKind(t, s.Insert(ctx, someRun("a", 0, someRun("a", 5, nil)), 0), caisson.Conflict) // An ancestor never existed.
}

func testDeepLineage(t *testing.T, s caisson.RunStore) {
	var r *caisson.Run
	var all []*caisson.Run
	for range caisson.MaxLineage + 1 {
		r = addRun(t, s, "a", 100, r)
		all = append(all, r)
	}
	wantKind(t, s.Insert(t.Context(), someRun("a", 0, r), 0), caisson.Exhausted)
	for i, r := range all {
		if got := getRun(t, s, r.ID).Children; got != int64(caisson.MaxLineage-i) {
			t.Errorf("run %d has %d children", i, got)
		}
	}
}

// testConcurrentFamily lets all runs of a tree start others concurrently, far more than their limits.
func testConcurrentFamily(t *testing.T, s caisson.RunStore) {
	top := addRun(t, s, "a", 20, nil)
	parents := []*caisson.Run{top, addRun(t, s, "a", 7, top), addRun(t, s, "a", 100, top)}
	var won [3]atomic.Int64
	var wg sync.WaitGroup
	for i := range 90 {
		wg.Go(func() {
			switch err := s.Insert(t.Context(), someRun("a", 1, parents[i%3]), 0); {
			case err == nil:
				won[i%3].Add(1)
			case caisson.KindOf(err) != caisson.Exhausted:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	total := won[0].Load() + won[1].Load() + won[2].Load()
	if total != 18 || won[1].Load() > 7 {
		t.Errorf("%d runs were started, %d of them by the one that may start 7", total, won[1].Load())
	}
	for i, r := range parents {
		want := won[i].Load()
		if i == 0 {
			want = 20
		}
		if got := getRun(t, s, r.ID).Children; got != want {
			t.Errorf("run %d has %d children, want %d", i, got, want)
		}
	}
}
