package sqlite_test

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
)

func testBudgets(t *testing.T, open Opener) {
	for name, test := range map[string]func(*testing.T, caisson.LedgerStore){
		"Lease": testLease, "Balance": testBalance, "Debt": testDebt, "Period": testPeriod, "Lost": testLost, "Scopes": testBudgetScopes,
		"Change": testChangeBudget, "Concurrent": testConcurrentLeases, "Absurd": testAbsurdSums, "Others": testOthersBudgets,
		"Lineage": testLineageBudgets,
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t).Ledger()) })
	}
}

func ptr[T any](v T) *T { return &v }

func tokens(n int64) caisson.Amount { return caisson.Amount{Tokens: n} }

// putBudget limits the tokens of an account.
func putBudget(t *testing.T, s caisson.LedgerStore, account string, n int64, period string) *caisson.Budget {
	t.Helper()
	return get[*caisson.Budget](t)(s.PutBudget(t.Context(), caisson.In(account), &caisson.Budget{
		Key: "account/" + account, Account: account, Limits: caisson.Limits{Tokens: &n}, Period: period,
	}))
}

func budget(t *testing.T, s caisson.LedgerStore, key string) *caisson.Budget {
	t.Helper()
	return get[*caisson.Budget](t)(s.GetBudget(t.Context(), caisson.AllAccounts(), key))
}

// wantBudget checks the used and held tokens of an account's budget.
func wantBudget(t *testing.T, s caisson.LedgerStore, account string, used, held int64) {
	t.Helper()
	if b := budget(t, s, "account/"+account); b.Used.Tokens != used || b.Held.Tokens != held {
		t.Errorf("used %d and held %d, want %d and %d", b.Used.Tokens, b.Held.Tokens, used, held)
	}
}

func lease(t *testing.T, s caisson.LedgerStore, j caisson.ID, account string, need, want int64) caisson.Lease {
	t.Helper()
	return get[caisson.Lease](t)(s.Lease(t.Context(), j, account, "account/"+account, tokens(need), tokens(want), time.Now()))
}

func testLease(t *testing.T, s caisson.LedgerStore) {
	ctx, j, k := t.Context(), newJournal(), newJournal()
	if l := lease(t, s, j, "a", 1, 2); !l.Unlimited || !l.Granted.IsZero() {
		t.Errorf("%+v", l)
	}
	putBudget(t, s, "a", 100, "")
	if l := lease(t, s, j, "a", 10, 60); l.Granted != tokens(60) || l.Left.Tokens != 40 || l.Held.Tokens != 60 || l.Unlimited ||
		*l.Limits.Tokens != 100 || l.Limits.USD != nil || !l.Until.IsZero() || l.Title != "account a" {
		t.Errorf("%+v", l)
	}
	if l := lease(t, s, k, "a", 41, 90); !l.Granted.IsZero() || l.Left.Tokens != 40 || l.Held.Tokens != 60 || *l.Limits.Tokens != 100 {
		t.Errorf("%+v", l)
	}
	if l := lease(t, s, k, "a", 40, 90); l.Granted != tokens(40) || l.Left.Tokens != 0 || l.Held.Tokens != 100 {
		t.Errorf("%+v", l)
	}
	wantBudget(t, s, "a", 0, 100)
	must(t, s.Return(ctx, j, "account/a", tokens(20)))
	for _, a := range []caisson.Amount{tokens(41), tokens(-1), {USD: 1}} {
		wantKind(t, s.Return(ctx, j, "account/a", a), caisson.Invalid)
	}
	wantKind(t, s.Return(ctx, newJournal(), "account/a", tokens(1)), caisson.Invalid)
	for _, a := range [][2]int64{{-1, 5}, {6, 5}} {
		_, err := s.Lease(ctx, j, "a", "account/a", tokens(a[0]), tokens(a[1]), time.Now())
		wantKind(t, err, caisson.Invalid)
	}
	wantBudget(t, s, "a", 0, 80)
	must(t, s.Close(ctx, k, false))
	wantBudget(t, s, "a", 0, 40)
	_, err := s.Lease(ctx, k, "a", "account/a", tokens(1), tokens(1), time.Now())
	wantKind(t, err, caisson.Conflict)
	if ids := get[[]caisson.ID](t)(s.Open(ctx)); !slices.Equal(ids, []caisson.ID{j}) {
		t.Errorf("open journals %v", ids)
	}
}

// testBalance tests that a call moves its actual amount, not the leased one, from held to used, and only in the leases
// of its own journal.
func testBalance(t *testing.T, s caisson.LedgerStore) {
	ctx, j, k := t.Context(), newJournal(), newJournal()
	early := someCall("a", time.Now(), 1)
	putBudget(t, s, "a", 100, "")
	later := time.Now().Add(time.Second)
	for _, id := range []caisson.ID{j, k} {
		get[caisson.Lease](t)(s.Lease(ctx, id, "a", "account/a", tokens(40), tokens(40), later))
	}
	must(t, s.Ingest(ctx, j, 0, 1, []caisson.Call{someCall("a", later.Add(1), 1), someCall("b", later, 1)}))
	wantBudget(t, s, "a", 10, 70)
	// The call began before the first lease, when there was no budget.
	must(t, s.Ingest(ctx, j, 1, 2, []caisson.Call{early}))
	wantBudget(t, s, "a", 20, 70)
	must(t, s.Close(ctx, j, false))
	wantBudget(t, s, "a", 20, 40)
}

// testDebt tests that the amount by which a call exceeded the leases of its journal does not increase what other
// journals can lease.
func testDebt(t *testing.T, s caisson.LedgerStore) {
	ctx, j, k := t.Context(), newJournal(), newJournal()
	putBudget(t, s, "a", 100, "")
	lease(t, s, j, "a", 4, 4)
	must(t, s.Ingest(ctx, j, 0, 1, []caisson.Call{someCall("a", time.Now(), 1)}))
	wantBudget(t, s, "a", 10, 0)
	if l := lease(t, s, k, "a", 91, 91); !l.Granted.IsZero() {
		t.Errorf("%+v", l)
	}
	if l := lease(t, s, k, "a", 80, 80); l.Granted.Tokens != 80 || l.Left.Tokens != 10 {
		t.Errorf("%+v", l)
	}
	// The debtor may lease 6 more than the remaining amount, which is its debt.
	if l := lease(t, s, j, "a", 16, 99); l.Granted.Tokens != 16 || l.Left.Tokens != 0 || l.Held.Tokens != 90 {
		t.Errorf("%+v", l)
	}
	wantBudget(t, s, "a", 10, 90)
}

func testPeriod(t *testing.T, s caisson.LedgerStore) {
	ctx, j := t.Context(), newJournal()
	for period, c := range map[string]struct{ now, end, before time.Time }{
		"day": {
			time.Date(2028, 2, 28, 23, 59, 59, 999_999_000, time.UTC), time.Date(2028, 2, 29, 0, 0, 0, 0, time.UTC),
			time.Date(2028, 2, 27, 23, 59, 59, 999_999_999, time.UTC),
		},
		"month": {
			time.Date(2027, 12, 31, 23, 30, 0, 0, time.FixedZone("", -3600)), time.Date(2028, 2, 1, 0, 0, 0, 0, time.UTC),
			time.Date(2027, 12, 31, 23, 59, 59, 0, time.UTC),
		},
	} {
		key := "account/" + period
		putBudget(t, s, period, 100, period)
		take := func(at time.Time) caisson.Lease {
			return get[caisson.Lease](t)(s.Lease(ctx, j, period, key, tokens(90), tokens(90), at))
		}
		if l := take(c.now); l.Granted.Tokens != 90 || !l.Until.Equal(c.end) || l.Title != "account "+period+" ("+period+")" {
			t.Errorf("%s: %+v", period, l)
		}
		if l := take(c.now); !l.Granted.IsZero() {
			t.Errorf("%s: more than there is: %+v", period, l)
		}
		if l := take(c.end); l.Granted.Tokens != 90 || l.Held.Tokens != 90 {
			t.Errorf("%s: a new one begins at its end: %+v", period, l)
		}
		if l := take(c.before); l.Granted.Tokens != 90 {
			t.Errorf("%s: the one before has its own: %+v", period, l)
		}
		must(t, s.Return(ctx, j, key, tokens(90))) // Applies to the newest lease.
		if l := take(c.end); l.Granted.Tokens != 90 {
			t.Errorf("%s: %+v", period, l)
		}
	}
}

// testLost tests that the leases of a journal whose end is lost count as spent, once, also after the period of the
// budget was changed.
func testLost(t *testing.T, s caisson.LedgerStore) {
	ctx, j, k := t.Context(), newJournal(), newJournal()
	putBudget(t, s, "a", 100, "")
	lease(t, s, j, "a", 30, 30)
	lease(t, s, k, "a", 20, 20)
	must(t, s.Ingest(ctx, j, 0, 1, []caisson.Call{someCall("a", time.Now(), 1)}))
	must(t, s.Close(ctx, j, true))
	must(t, s.Close(ctx, j, true))
	wantBudget(t, s, "a", 30, 20)
	putBudget(t, s, "a", 100, "month")
	wantBudget(t, s, "a", 30, 0) // k's lease is in another period now.
	must(t, s.Close(ctx, k, false))
	must(t, s.Close(ctx, newJournal(), true)) // This journal never had a lease.
	putBudget(t, s, "a", 100, "")
	wantBudget(t, s, "a", 30, 0)
}

func testBudgetScopes(t *testing.T, s caisson.LedgerStore) {
	ctx := t.Context()
	putBudget(t, s, "b", 1, "")
	putBudget(t, s, "a", 1, "")
	run := &caisson.Budget{Key: "run/r", Account: "a", Limits: caisson.Limits{USD: ptr(caisson.USD(5)), Calls: ptr(int64(0))}}
	run = get[*caisson.Budget](t)(s.PutBudget(ctx, caisson.In("a"), run))
	if run.CreatedAt.IsZero() || *run.Limits.USD != 5 || *run.Limits.Calls != 0 || run.Limits.Tokens != nil {
		t.Errorf("%+v", run)
	}
	keys := func(in caisson.Scope) (keys []string) {
		t.Helper()
		for _, b := range get[[]*caisson.Budget](t)(s.ListBudgets(ctx, in)) {
			keys = append(keys, b.Key)
		}
		return keys
	}
	if got := keys(caisson.In("a")); !slices.Equal(got, []string{"account/a", "run/r"}) {
		t.Errorf("budgets of a: %v", got)
	}
	if got := keys(caisson.AllAccounts()); len(got) != 3 {
		t.Errorf("all budgets: %v", got)
	}
	if got := keys(caisson.In("")); len(got) != 0 {
		t.Errorf("budgets of nobody: %v", got)
	}
	_, err := s.GetBudget(ctx, caisson.In("b"), "run/r")
	wantKind(t, err, caisson.NotFound)
	wantKind(t, s.DeleteBudget(ctx, caisson.In("b"), "run/r"), caisson.NotFound)
	_, err = s.PutBudget(ctx, caisson.In("b"), &caisson.Budget{Key: "run/r", Account: "b"})
	wantKind(t, err, caisson.Conflict)
	_, err = s.PutBudget(ctx, caisson.In("b"), &caisson.Budget{Key: "run/s", Account: "a"})
	wantKind(t, err, caisson.NotFound)
	for _, b := range []caisson.Budget{
		{Key: "x"}, {Key: "run/"}, {Key: "moon/x"}, {Key: "run/x", Period: "year"}, {Key: "run/x", Limits: caisson.Limits{Tokens: ptr(int64(-1))}},
	} {
		b.Account = "a"
		_, err := s.PutBudget(ctx, caisson.In("a"), &b)
		wantKind(t, err, caisson.Invalid)
	}
	must(t, s.DeleteBudget(ctx, caisson.In("a"), "run/r"))
	wantKind(t, s.DeleteBudget(ctx, caisson.In("a"), "run/r"), caisson.NotFound)
}

// testChangeBudget tests that a new budget includes earlier calls, and that a changed budget keeps its amounts.
func testChangeBudget(t *testing.T, s caisson.LedgerStore) {
	ctx, j := t.Context(), newJournal()
	now := time.Now()
	c := someCall("a", now, 7)
	c.Session, c.Run = "s", "r"
	must(t, s.Ingest(ctx, j, 0, 1, []caisson.Call{c, someCall("a", now, 1), someCall("a", now.AddDate(0, 0, -40), 1), someCall("b", now, 1)}))
	for key, want := range map[string]int64{
		"account/a": 30, "session/s": 30, "run/r": 10, "sandbox/" + string(c.Sandbox): 10, "run/none": 0,
	} {
		b := get[*caisson.Budget](t)(s.PutBudget(ctx, caisson.In("a"), &caisson.Budget{Key: key, Account: "a"}))
		if b.Used.Tokens != want {
			t.Errorf("%s: used %d, want %d", key, b.Used.Tokens, want)
		}
	}
	putBudget(t, s, "a", 100, "month")
	wantBudget(t, s, "a", 20, 0)
	lease(t, s, j, "a", 5, 50)
	putBudget(t, s, "a", 10, "month")
	wantBudget(t, s, "a", 20, 50)
	if l := lease(t, s, j, "a", 1, 1); !l.Granted.IsZero() || l.Left.Tokens != 0 {
		t.Errorf("%+v", l)
	}
	// The budget is deleted and created again: leases in between are still held.
	must(t, s.DeleteBudget(ctx, caisson.In("a"), "account/a"))
	putBudget(t, s, "a", 100, "month")
	wantBudget(t, s, "a", 20, 50)
	// The budget is deleted and a call starts without it: the leases are void.
	must(t, s.DeleteBudget(ctx, caisson.In("a"), "account/a"))
	if l := lease(t, s, j, "a", 1, 1); !l.Unlimited {
		t.Errorf("%+v", l)
	}
	putBudget(t, s, "a", 100, "month")
	wantBudget(t, s, "a", 20, 0)
}

func testConcurrentLeases(t *testing.T, s caisson.LedgerStore) {
	putBudget(t, s, "a", 1000, "")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			j, rng := newJournal(), rand.New(rand.NewPCG(uint64(i), 0))
			have, at := int64(0), int64(0)
			for range 40 {
				l, err := s.Lease(t.Context(), j, "a", "account/a", tokens(10), tokens(10+rng.Int64N(50)), time.Now())
				if err != nil {
					t.Error(err)
					return
				}
				have += l.Granted.Tokens
				switch {
				case have >= 10 && rng.IntN(4) == 0:
					err = s.Ingest(t.Context(), j, at, at+1, []caisson.Call{someCall("a", time.Now(), 1)})
					have, at = have-10, at+1
				case have > 0:
					err = s.Return(t.Context(), j, "account/a", tokens(have/2))
					have -= have / 2
				}
				if err != nil {
					t.Error(err)
				}
				if b, err := s.GetBudget(t.Context(), caisson.In("a"), "account/a"); err != nil || b.Used.Tokens+b.Held.Tokens > 1000 {
					t.Errorf("%v, used %d and held %d of 1000", err, b.Used.Tokens, b.Held.Tokens)
				}
			}
			if err := s.Close(t.Context(), j, false); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	b := budget(t, s, "account/a")
	rows := get[[]caisson.UsageRow](t)(s.Usage(t.Context(), caisson.In("a"), caisson.UsageQuery{}))
	if !b.Held.IsZero() || len(rows) != 1 || b.Used.Tokens != 10*rows[0].Calls || b.Used.Tokens > 1000 {
		t.Errorf("budget %+v, usage %+v", b, rows)
	}
}

// testAbsurdSums tests that sums that overflow an integer are limited and do not affect other accounts.
func testAbsurdSums(t *testing.T, s caisson.LedgerStore) {
	ctx, j := t.Context(), newJournal()
	putBudget(t, s, "m", 1<<62, "")
	most := caisson.Amount{USD: 9e18, Tokens: 9e18, Calls: 9e18}
	for i := range int64(4) {
		lease(t, s, j, "m", 0, 1<<62)
		calls := make([]caisson.Call, 3)
		for k := range calls {
			calls[k] = someCall("m", time.Now(), 9e18)
			calls[k].Tokens = caisson.TokenCount{Input: 9e18, Output: 9e18, CacheRead: 9e18, CacheWrite: 9e18}
			calls[k].Sandbox = "sb-aaaaaaaaaaaaaaaa" // One row of sums.
			if i%2 == 0 {
				calls[k].Session = "other"
			}
		}
		must(t, s.Ingest(ctx, j, i, i+1, calls))
	}
	must(t, s.Ingest(ctx, j, 4, 5, []caisson.Call{someCall("a", time.Now(), 7)}))
	putBudget(t, s, "m", 1<<61, "month") // Computes the amounts again.
	if b := budget(t, s, "account/m"); b.Used.USD != most.USD || b.Used.Tokens != most.Tokens || b.Used.Calls != 12 {
		t.Errorf("used %+v", b.Used)
	}
	for i := range 3 {
		k := newJournal()
		lease(t, s, k, "m", 0, 1<<62)
		if err := s.Close(ctx, k, i > 0); err != nil {
			t.Error(err)
		}
	}
	must(t, s.Close(ctx, j, true))
	for _, by := range []string{"", "account", "run", "day"} {
		for _, since := range []time.Time{{}, time.Now().Add(-time.Minute)} {
			rows := get[[]caisson.UsageRow](t)(s.Usage(ctx, caisson.AllAccounts(), caisson.UsageQuery{By: by, Since: since}))
			if len(rows) == 0 || by == "" && (rows[0].Cost != most.USD || rows[0].Tokens.Output != most.Tokens || rows[0].Calls != 13) {
				t.Errorf("by %q: %+v", by, rows)
			}
		}
	}
	if rows := get[[]caisson.UsageRow](t)(s.Usage(ctx, caisson.In("a"), caisson.UsageQuery{})); len(rows) != 1 || rows[0].Cost != 7 {
		t.Errorf("%+v", rows)
	}
}

// testOthersBudgets tests that a budget applies only to calls of its account, regardless of the sessions and runs that
// other accounts' calls name.
func testOthersBudgets(t *testing.T, s caisson.LedgerStore) {
	ctx, j := t.Context(), newJournal()
	limit := int64(100)
	for _, key := range []string{"session/s1", "run/r1"} {
		get[*caisson.Budget](t)(s.PutBudget(ctx, caisson.In("a"), &caisson.Budget{Key: key, Account: "a", Limits: caisson.Limits{Tokens: &limit}}))
		if l := get[caisson.Lease](t)(s.Lease(ctx, j, "a", key, tokens(40), tokens(40), time.Now())); l.Granted != tokens(40) {
			t.Errorf("%+v", l)
		}
		if l := get[caisson.Lease](t)(s.Lease(ctx, j, "m", key, tokens(10), tokens(60), time.Now())); !l.Unlimited || !l.Granted.IsZero() {
			t.Errorf("%s: another account got %+v", key, l)
		}
	}
	own, others := someCall("a", time.Now(), 1), someCall("m", time.Now(), 1)
	own.Session, own.Run, others.Session, others.Run = "s1", "r1", "s1", "r1"
	must(t, s.Ingest(ctx, j, 0, 1, []caisson.Call{others, own}))
	for _, key := range []string{"session/s1", "run/r1"} {
		if b := budget(t, s, key); b.Used.Tokens != 10 || b.Held.Tokens != 30 {
			t.Errorf("%s: used %d, held %d", key, b.Used.Tokens, b.Held.Tokens)
		}
	}
}
