package sqlite_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-dev/caisson"
)

// runPages lists all runs, limit at a time, and calls between after each page but the last.
func runPages(t *testing.T, s caisson.RunStore, in caisson.Scope, f caisson.RunFilter, between func(page []*caisson.Run)) (ids []caisson.ID) {
	t.Helper()
	for range 1000 {
		page, more, err := s.List(t.Context(), in, f)
		must(t, err)
		for _, r := range page {
			ids = append(ids, r.ID)
		}
		if !more {
			return ids
		}
		if len(page) == 0 {
			t.Fatal("an empty page, and more behind it")
		}
		f.Before = page[len(page)-1].ID
		if between != nil {
			between(page)
		}
	}
	t.Fatal("paging does not end")
	return nil
}

// testListRuns compares lists with the matching runs.
func testListRuns(t *testing.T, s caisson.RunStore) {
	states := []caisson.RunState{caisson.RunQueued, caisson.RunStarting, caisson.RunRunning, caisson.RunSucceeded, caisson.RunFailed}
	var all []*caisson.Run
	for i := range 60 {
		account := []string{"a", "b"}[i%2]
		var parent *caisson.Run
		if i >= 20 && i%3 != 0 {
			parent = all[i-20+i%4*2] // A run of the same account.
			if parent.State.Ended() || len(parent.Lineage) > 2 {
				parent = nil
			}
		}
		r := someRun(account, 100, parent)
		r.Agent, r.State = []string{"x", "y"}[i/7%2], states[i%5]
		if i%4 == 0 {
			r.Session = []caisson.ID{"se-1", "se-2"}[i/4%2]
		}
		if r.State.Ended() {
			r.EndedAt = noon()
		}
		must(t, s.Insert(t.Context(), r, 0))
		all = append(all, r)
	}
	slices.Reverse(all)
	filters := []caisson.RunFilter{
		{}, {Agent: "x"}, {Session: "se-1"}, {States: states[:3]}, {States: states[3:4]}, {Agent: "y", States: states[:2]},
		{Agent: "'"}, {Session: "se-1", Agent: "x", States: states}, {Under: "rn-none"}, {Parent: "rn-none"},
	}
	for _, r := range all {
		filters = append(filters, caisson.RunFilter{Under: r.ID}, caisson.RunFilter{Parent: r.ID, Agent: "x"})
	}
	for _, in := range []caisson.Scope{caisson.In("a"), caisson.In("b"), caisson.In(""), caisson.AllAccounts()} {
		for i, f := range filters {
			var want []caisson.ID
			for _, r := range all {
				if in.Covers(r.Account) && (f.Agent == "" || f.Agent == r.Agent) && (f.Session == "" || f.Session == r.Session) &&
					(f.Parent == "" || f.Parent == r.Parent) && (f.Under == "" || f.Under == r.ID || slices.Contains(r.Lineage, f.Under)) &&
					(f.States == nil || slices.Contains(f.States, r.State)) {
					want = append(want, r.ID)
				}
			}
			for _, f.Limit = range []int{0, 1 + i%5} {
				if got := runPages(t, s, in, f, nil); !slices.Equal(got, want) {
					t.Errorf("%v %+v:\n%v, want\n%v", in, f, got, want)
				}
			}
		}
	}
	for _, limit := range []int{-1, 1001} {
		_, _, err := s.List(t.Context(), caisson.In("a"), caisson.RunFilter{Limit: limit})
		wantKind(t, err, caisson.Invalid)
	}
}

// testRunPages tests that a list continues at its position if the last run of a page is deleted and new runs are added.
func testRunPages(t *testing.T, s caisson.RunStore) {
	var want []caisson.ID
	for range 10 {
		want = append(want, addRun(t, s, "a", 0, nil).ID)
		addRun(t, s, "b", 0, nil)
	}
	slices.Reverse(want)
	got := runPages(t, s, caisson.In("a"), caisson.RunFilter{Limit: 3}, func(page []*caisson.Run) {
		must(t, s.Delete(t.Context(), caisson.In("a"), page[2].ID))
		get[*caisson.Run](t)(s.Update(t.Context(), caisson.In("a"), page[0].ID, endRun(noon())))
		addRun(t, s, "a", 0, nil)
	})
	if !slices.Equal(got, want) {
		t.Errorf("listed %v, want %v", got, want)
	}
	_, _, err := s.List(t.Context(), caisson.In("b"), caisson.RunFilter{Before: want[2]}) // Deleted, and never this account's.
	wantKind(t, err, caisson.Invalid)
	_, _, err = s.List(t.Context(), caisson.In("a"), caisson.RunFilter{Before: "rn-neverexistedabc"})
	wantKind(t, err, caisson.Invalid)
	for range 105 {
		addRun(t, s, "c", 0, nil)
	}
	if page, more, err := s.List(t.Context(), caisson.In("c"), caisson.RunFilter{}); err != nil || len(page) != 100 || !more {
		t.Errorf("a page is %d long by default (more: %v), %v", len(page), more, err)
	}
}

// testLongRuns tests that very long runs are listed completely, in shorter pages.
func testLongRuns(t *testing.T, s caisson.RunStore) {
	var want []caisson.ID
	for range 7 {
		r := someRun("a", 0, nil)
		r.Result = &caisson.RunResult{Answer: strings.Repeat("x", 3<<20)}
		must(t, s.Insert(t.Context(), r, 0))
		want = append(want, r.ID)
	}
	slices.Reverse(want)
	page, more, err := s.List(t.Context(), caisson.In("a"), caisson.RunFilter{})
	must(t, err)
	if len(page) == 0 || len(page) == len(want) || !more {
		t.Errorf("a page of %d runs of 3 MB", len(page))
	}
	if got := runPages(t, s, caisson.In("a"), caisson.RunFilter{}, nil); !slices.Equal(got, want) {
		t.Errorf("listed %s", cmp.Diff(want, got))
	}
}
