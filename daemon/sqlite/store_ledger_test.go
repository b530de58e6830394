package sqlite_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/caisson-dev/caisson"
)

func testLedger(t *testing.T, open Opener) {
	for name, test := range map[string]func(*testing.T, caisson.LedgerStore){
		"Ingest": testIngest, "Calls": testCalls, "Usage": testUsage, "Prices": testPrices,
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t).Ledger()) })
	}
}

// newJournal returns a new journal ID.
func newJournal() caisson.ID { return caisson.NewID(caisson.JournalPrefix) }

// someCall returns a call with values that are easily lost in encoding.
func someCall(account string, at time.Time, cost caisson.USD) caisson.Call {
	upstream := caisson.USD(3)
	box := caisson.NewID(caisson.SandboxPrefix)
	return caisson.Call{
		ID: caisson.NewID(caisson.CallPrefix), At: at,
		Guest:    caisson.Guest{Sandbox: box, Account: account, Run: string(box), Attempt: 2, Session: "s", Agent: "<a>", User: "ü\x01"},
		Provider: "p", Model: "m", Upstream: "m-1", API: "chat", Stream: true, Status: 200,
		Tokens: caisson.TokenCount{Input: 1, Output: 2, CacheRead: 3, CacheWrite: 4}, Cost: cost, UpstreamID: "x", UpstreamCost: &upstream,
		FirstByte: 5, Duration: caisson.Duration(1500 * time.Millisecond),
	}
}

func testIngest(t *testing.T, s caisson.LedgerStore) {
	ctx, j := t.Context(), newJournal()
	if n := get[int64](t)(s.Offset(ctx, j)); n != 0 {
		t.Errorf("an unknown journal was read up to %d", n)
	}
	a, b := someCall("a", noon(), 7), someCall("a", noon(), 8)
	must(t, s.Ingest(ctx, j, 0, 100, []caisson.Call{a}))
	wantKind(t, s.Ingest(ctx, j, 0, 100, []caisson.Call{a}), caisson.Conflict)
	wantKind(t, s.Ingest(ctx, j, 101, 200, []caisson.Call{b}), caisson.Conflict)
	must(t, s.Ingest(ctx, j, 100, 100, nil))
	// A call that is already stored, in any journal, changes nothing; the new call beside it is counted.
	other := a
	other.Cost, other.Account = 1000, "b"
	k := newJournal()
	must(t, s.Ingest(ctx, k, 0, 50, []caisson.Call{other, b, b}))
	rows := get[[]caisson.UsageRow](t)(s.Usage(ctx, caisson.AllAccounts(), caisson.UsageQuery{}))
	if len(rows) != 1 || rows[0].Calls != 2 || rows[0].Cost != 15 {
		t.Errorf("usage %+v", rows)
	}
	if n := get[int64](t)(s.Offset(ctx, j)); n != 100 {
		t.Errorf("read up to %d, want 100", n)
	}
	if ids := get[[]caisson.ID](t)(s.Open(ctx)); len(ids) != 2 || !slices.Contains(ids, j) || !slices.Contains(ids, k) {
		t.Errorf("open journals %v", ids)
	}
	must(t, s.Close(ctx, j, false))
	must(t, s.Close(ctx, j, true))
	wantKind(t, s.Ingest(ctx, j, 100, 200, []caisson.Call{someCall("a", noon(), 1)}), caisson.Conflict)
	if ids := get[[]caisson.ID](t)(s.Open(ctx)); !slices.Equal(ids, []caisson.ID{k}) {
		t.Errorf("open journals %v", ids)
	}
}

func testCalls(t *testing.T, s caisson.LedgerStore) {
	ctx, j := t.Context(), newJournal()
	var all []caisson.Call
	for i := range 25 {
		// The calls are not in order of time: a long call is ingested late.
		c := someCall(fmt.Sprintf("a%d", i%2), noon().Add(-time.Duration(i%5)*time.Minute), caisson.USD(i))
		c.Model = fmt.Sprintf("m%d", i%3)
		c.Lineage, c.Trace = []string{"", "rn-1", "rn-1 rn-2"}[i%3], "0123456789abcdef0123456789abcdef"
		if i%7 == 0 {
			c.UpstreamCost, c.Estimated, c.Error, c.Status = nil, true, "lost", 0
		}
		all = append(all, c)
	}
	must(t, s.Ingest(ctx, j, 0, 1, all[:10]))
	must(t, s.Ingest(ctx, j, 1, 2, all[10:]))
	for _, c := range []struct {
		in caisson.Scope
		q  caisson.UsageQuery
	}{
		{caisson.AllAccounts(), caisson.UsageQuery{}},
		{caisson.In("a1"), caisson.UsageQuery{}},
		{caisson.In("a1"), caisson.UsageQuery{Account: "a0"}},
		{caisson.AllAccounts(), caisson.UsageQuery{Account: "a0", Model: "m1"}},
		{caisson.In("a0"), caisson.UsageQuery{Since: noon().Add(-2 * time.Minute)}},
		{caisson.In("a0"), caisson.UsageQuery{Since: noon().Add(-3 * time.Minute), Until: noon().Add(-time.Minute)}},
		{caisson.AllAccounts(), caisson.UsageQuery{Sandbox: all[3].Sandbox}},
		{caisson.AllAccounts(), caisson.UsageQuery{Run: all[4].Run}},
		{caisson.AllAccounts(), caisson.UsageQuery{Under: "rn-1"}},
		{caisson.In("a1"), caisson.UsageQuery{Under: "rn-2", Model: "m2"}},
		{caisson.In("a0"), caisson.UsageQuery{Under: all[4].Run, Agent: "<a>"}},
		{caisson.In("a0"), caisson.UsageQuery{Under: "rn-1", Agent: "a"}},
		{caisson.In(""), caisson.UsageQuery{}},
	} {
		want := matching(all, c.in, c.q)
		var got []caisson.Call
		for after, more := caisson.ID(""), true; more; {
			page, m, err := s.Calls(ctx, c.in, c.q, after, 3)
			must(t, err)
			if len(page) > 3 || m && len(page) < 3 {
				t.Fatalf("a page of %d, more %v", len(page), m)
			}
			if got, more = append(got, page...), m; more {
				after = page[len(page)-1].ID
			}
		}
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", c, diff)
		}
	}
	_, _, err := s.Calls(ctx, caisson.In("a0"), caisson.UsageQuery{}, all[1].ID, 3) // Another account's call.
	wantKind(t, err, caisson.Invalid)
	_, _, err = s.Calls(ctx, caisson.In("a0"), caisson.UsageQuery{}, "", -1)
	wantKind(t, err, caisson.Invalid)
}

// matching returns the calls that a query should return.
func matching(all []caisson.Call, in caisson.Scope, q caisson.UsageQuery) []caisson.Call {
	var out []caisson.Call
	for _, c := range all {
		if in.Covers(c.Account) && (q.Account == "" || c.Account == q.Account) && (q.Run == "" || c.Run == q.Run) &&
			(q.Under == "" || c.Run == q.Under || slices.Contains(strings.Fields(c.Lineage), q.Under)) && (q.Agent == "" || c.Agent == q.Agent) &&
			(q.Sandbox == "" || c.Sandbox == q.Sandbox) && (q.Model == "" || c.Model == q.Model) &&
			!c.At.Before(q.Since) && (q.Until.IsZero() || c.At.Before(q.Until)) {
			out = append(out, c)
		}
	}
	return out
}

// testUsage compares sums with those of the matching calls, for random times.
func testUsage(t *testing.T, s caisson.LedgerStore) {
	rng := rand.New(rand.NewPCG(1, 2))
	start := time.Date(2025, 12, 30, 22, 0, 0, 0, time.UTC)
	moment := func() time.Time {
		return start.Add(time.Duration(rng.Int64N(int64(60*time.Hour/time.Microsecond))) * time.Microsecond)
	}
	boxes := []caisson.ID{"sb-aaaaaaaaaaaaaaaa", "sb-bbbbbbbbbbbbbbbb", "sb-cccccccccccccccc"}
	var all []caisson.Call
	for i := range 400 {
		c := someCall(fmt.Sprintf("a%d", rng.IntN(3)), moment(), caisson.USD(rng.Int64N(1e9)))
		if i%10 == 0 {
			c.At = c.At.Truncate(time.Hour)
		}
		c.Sandbox, c.Run, c.Session = boxes[rng.IntN(3)], fmt.Sprint("r", rng.IntN(4)), fmt.Sprint("s", rng.IntN(2))
		c.Agent, c.User = fmt.Sprint("g", rng.IntN(2)), []string{"", "u", "ü'"}[rng.IntN(3)]
		// r2 and r3 are part of r1, and r1 is part of r0.
		c.Lineage = map[string]string{"r1": "r0", "r2": "r0 r1", "r3": "r0 r1"}[c.Run]
		c.Model, c.Status, c.Estimated = fmt.Sprint("m", rng.IntN(3)), []int{200, 201, 0, 429, 500}[rng.IntN(5)], rng.IntN(4) == 0
		all = append(all, c)
	}
	j := newJournal()
	for i := 0; i < len(all); i += 100 {
		must(t, s.Ingest(t.Context(), j, int64(i), int64(i+100), all[i:i+100]))
	}
	keys := map[string]func(caisson.Call) string{
		"": func(caisson.Call) string { return "" }, "run": func(c caisson.Call) string { return c.Run },
		"sandbox": func(c caisson.Call) string { return string(c.Sandbox) }, "account": func(c caisson.Call) string { return c.Account },
		"model": func(c caisson.Call) string { return c.Model }, "session": func(c caisson.Call) string { return c.Session },
		"agent": func(c caisson.Call) string { return c.Agent }, "user": func(c caisson.Call) string { return c.User },
		"day": func(c caisson.Call) string { return c.At.UTC().Format(time.DateOnly) },
	}
	for i := range 300 {
		in, q := caisson.AllAccounts(), caisson.UsageQuery{}
		if i%2 == 0 {
			in = caisson.In(fmt.Sprintf("a%d", rng.IntN(4)))
		}
		for _, set := range []func(){
			func() { q.Account = "a1" }, func() { q.Run = "r1" }, func() { q.Sandbox = boxes[0] }, func() { q.Model = "m2" },
			func() { q.Under = fmt.Sprint("r", rng.IntN(4)) }, func() { q.Agent = "g1" },
			func() { q.Since = moment() }, func() { q.Until = moment() },
			func() { q.Since = moment().Truncate(time.Hour) }, func() { q.Until = moment().Truncate(time.Hour) },
		} {
			if rng.IntN(3) == 0 {
				set()
			}
		}
		for q.By = range keys {
			want := sumUp(matching(all, in, q), keys[q.By])
			got := get[[]caisson.UsageRow](t)(s.Usage(t.Context(), in, q))
			if diff := gocmp.Diff(want, got); diff != "" {
				t.Fatalf("%v %+v (-want +got):\n%s", in, q, diff)
			}
		}
	}
	_, err := s.Usage(t.Context(), caisson.AllAccounts(), caisson.UsageQuery{By: "moon; DROP TABLE call"})
	wantKind(t, err, caisson.Invalid)
}

func sumUp(calls []caisson.Call, key func(caisson.Call) string) []caisson.UsageRow {
	var rows []caisson.UsageRow
	for _, c := range calls {
		i := slices.IndexFunc(rows, func(r caisson.UsageRow) bool { return r.Key == key(c) })
		if i < 0 {
			rows, i = append(rows, caisson.UsageRow{Key: key(c)}), len(rows)
		}
		r := &rows[i]
		r.Calls++
		if c.Status < 200 || c.Status > 299 {
			r.Failed++
		}
		if c.Estimated {
			r.Estimated++
		}
		r.Tokens = caisson.TokenCount{
			Input: r.Tokens.Input + c.Tokens.Input, Output: r.Tokens.Output + c.Tokens.Output,
			CacheRead: r.Tokens.CacheRead + c.Tokens.CacheRead, CacheWrite: r.Tokens.CacheWrite + c.Tokens.CacheWrite,
		}
		r.Cost += c.Cost
	}
	slices.SortFunc(rows, func(a, b caisson.UsageRow) int { return cmp.Compare(a.Key, b.Key) })
	return rows
}

func testPrices(t *testing.T, s caisson.LedgerStore) {
	ctx := t.Context()
	price := func(model, provider string, in caisson.USD, at time.Time) caisson.ListedPrice {
		return caisson.ListedPrice{Model: model, Provider: provider, Prices: caisson.Prices{Input: in, Output: 2 * in}, Context: 100, At: at}
	}
	must(t, s.PutPrices(ctx, "old", []caisson.ListedPrice{price("gpt", "openai", 1, noon()), price("only_old", "", 9, noon())}))
	must(t, s.PutPrices(ctx, "new", []caisson.ListedPrice{
		price("gpt", "openai", 2, noon().Add(time.Hour)), price("gpt", "azure", 3, noon().Add(2*time.Hour)),
		price("router/gpt", "router", 4, noon().Add(-time.Hour)), price("gone", "", 5, noon()),
	}))
	must(t, s.PutPrices(ctx, "new", []caisson.ListedPrice{
		price("gpt", "openai", 2, noon().Add(time.Hour)), price("gpt", "azure", 3, noon().Add(2*time.Hour)),
		price("router/gpt", "router", 4, noon().Add(-time.Hour)),
	}))
	for _, c := range []struct {
		provider, model string
		want            caisson.USD
	}{{"openai", "gpt", 2}, {"azure", "gpt", 3}, {"router", "gpt", 4}, {"stranger", "gpt", 3}, {"x", "only_old", 9}} {
		if p := get[*caisson.ListedPrice](t)(s.Price(ctx, c.provider, c.model)); p.Prices.Input != c.want || p.Source == "" || !p.At.Equal(p.At) {
			t.Errorf("%s of %s: %+v", c.model, c.provider, p)
		}
	}
	_, err := s.Price(ctx, "x", "gone")
	wantKind(t, err, caisson.NotFound)
	for match, want := range map[string]int{"": 5, "gpt": 4, "_": 1, "%": 0, "router/": 1, "none": 0} {
		if list := get[[]caisson.ListedPrice](t)(s.Prices(ctx, match)); len(list) != want {
			t.Errorf("%q: %d prices, want %d", match, len(list), want)
		}
	}
}
