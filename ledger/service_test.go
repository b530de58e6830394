package ledger

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/events"
)

func as(account string, local bool) context.Context {
	return caisson.WithCaller(context.Background(), caisson.Caller{Account: account, Local: local})
}

// service returns a service for w, whose changes reach these gateways.
func (w *world) service(logs func(ctx context.Context, provider, account string, since time.Time) ([]SpendLog, error), gateways ...*gateway) *Service {
	w.t.Helper()
	return get(NewService(ServiceConfig{Book: w.book, SpendLogs: logs, Invalidate: func(_ context.Context, budgets ...string) error {
		for _, g := range gateways {
			g.Invalidate(budgets...)
		}
		return nil
	}}))(w.t)
}

// TestService checks that a call whose last byte was sent is in the next response, that budgets apply from the next call on, and
// that an account only sees its own calls.
func TestService(t *testing.T) {
	w := newWorld(t)
	a, b := w.guest("a"), w.guest("b")
	gw := w.gateway()
	s := w.service(nil, gw)
	for _, g := range []caisson.Guest{a, b, a} {
		must(t, get(gw.Reserve(t.Context(), call(g), demand(10, 90)))(t).Settle(answer(10, 5)))
	}
	for _, c := range []struct {
		ctx   context.Context
		of    string
		calls int64
		kind  caisson.Kind
	}{
		{as("a", false), "", 2, ""}, {as("b", false), "b", 1, ""}, {as("a", false), "b", 0, caisson.Denied}, {as("a", false), "*", 0, caisson.Denied},
		{as("local", true), "", 0, ""}, {as("local", true), "a", 2, ""}, {as("local", true), "*", 3, ""},
		{context.Background(), "", 0, caisson.Unauthed},
	} {
		rows, err := s.Usage(c.ctx, caisson.UsageQuery{Account: c.of})
		var n int64
		for _, r := range rows {
			n += r.Calls
		}
		if (c.kind != "") != (err != nil) || err != nil && caisson.KindOf(err) != c.kind || n != c.calls {
			t.Errorf("%+v: %d, %v", c, n, err)
		}
	}
	receipts, more, err := s.Receipts(as("a", false), caisson.UsageQuery{}, "", 1)
	if err != nil || !more || len(receipts) != 1 || !strings.HasPrefix(receipts[0].Reference, string(a.Sandbox)+"/0/ca-") {
		t.Fatalf("%+v, %v, %v", receipts, more, err)
	}
	rest, more, err := s.Receipts(as("a", false), caisson.UsageQuery{}, receipts[0].Reference, 10)
	if err != nil || more || len(rest) != 1 || rest[0].Reference == receipts[0].Reference {
		t.Errorf("%+v, %v, %v", rest, more, err)
	}
	_, _, err = s.Receipts(as("b", false), caisson.UsageQuery{}, receipts[0].Reference, 10)
	wantKind(t, err, caisson.Invalid)
	_, _, err = s.Receipts(as("a", false), caisson.UsageQuery{}, "x/y", 10)
	wantKind(t, err, caisson.Invalid)

	set := get(s.SetBudget(as("a", true), caisson.Budget{Limits: caisson.Limits{Calls: limit[int64](3)}}))(t)
	if set.Key != "account/a" || set.Used.Calls != 2 {
		t.Errorf("%+v", set)
	}
	must(t, get(gw.Reserve(t.Context(), call(a), demand(10, 90)))(t).Settle(answer(10, 5)))
	if _, err := gw.Reserve(t.Context(), call(a), demand(10, 90)); err == nil {
		t.Error("a call went beyond the budget")
	}
	get(s.SetBudget(as("a", true), caisson.Budget{Limits: caisson.Limits{Calls: limit[int64](4)}}))(t)
	must(t, get(gw.Reserve(t.Context(), call(a), demand(10, 90)))(t).Settle(answer(10, 5)))
	must(t, s.RemoveBudget(as("local", true), "account/a"))
	must(t, get(gw.Reserve(t.Context(), call(a), demand(10, 90)))(t).Settle(answer(10, 5)))
}

func TestWhoSetsBudgets(t *testing.T) {
	w := newWorld(t)
	s := w.service(nil)
	box := "sandbox/" + string(w.guest("a").Sandbox)
	for _, c := range []struct {
		ctx  context.Context
		key  string
		kind caisson.Kind
	}{
		{as("a", false), "", caisson.Denied}, {as("a", false), "run/x", caisson.Denied}, {as("a", false), "session/x", caisson.Denied},
		{as("a", false), box, ""}, {as("b", false), box, caisson.NotFound}, {as("b", true), box, ""},
		{as("local", true), "account/b", ""}, {as("local", true), "run/x", ""}, {as("local", true), "sandbox/sb-aaaaaaaaaaaaaaaa", caisson.NotFound},
		{as("local", true), "moon/x", caisson.Invalid}, {as("local", true), "account/", caisson.Invalid}, {context.Background(), box, caisson.Unauthed},
	} {
		_, err := s.SetBudget(c.ctx, caisson.Budget{Key: c.key, Account: "zzz"})
		if (c.kind != "") != (err != nil) || err != nil && caisson.KindOf(err) != c.kind {
			t.Errorf("%q: %v, want %q", c.key, err, c.kind)
		}
	}
	if list := get(s.ListBudgets(as("a", false)))(t); len(list) != 1 || list[0].Account != "a" {
		t.Errorf("%+v", list)
	}
	wantKind(t, s.RemoveBudget(as("b", false), box), caisson.NotFound)
	wantKind(t, s.RemoveBudget(as("b", false), "account/b"), caisson.Denied)
	must(t, s.RemoveBudget(as("a", false), box))
}

// TestBudgetsAreRecorded checks that changes of budgets are published as events, but not rejected ones.
func TestBudgetsAreRecorded(t *testing.T) {
	w := newWorld(t)
	s := get(NewService(ServiceConfig{
		Book: w.book, Invalidate: func(context.Context, ...string) error { return nil }, Events: events.New(w.store.Events(), nil),
	}))(t)
	dollars := 2 * caisson.Dollar
	get(s.SetBudget(as("local", true), caisson.Budget{
		Key: "account/b", Period: "month", Limits: caisson.Limits{USD: &dollars, Tokens: limit[int64](10), Calls: limit[int64](3)},
	}))(t)
	wantKind(t, s.RemoveBudget(as("b", false), "account/b"), caisson.Denied)
	wantKind(t, s.RemoveBudget(as("local", true), "account/c"), caisson.NotFound)
	must(t, s.RemoveBudget(as("local", true), "account/b"))
	list := get(w.store.Events().After(t.Context(), caisson.AllAccounts(), "", 0, 10))(t)
	if len(list) != 2 || list[0].Type != "budget.set" || list[1].Type != "budget.removed" {
		t.Fatalf("%+v", list)
	}
	want := map[string]string{"usd": "2", "tokens": "10", "calls": "3", "period": "month"}
	for _, e := range list {
		if e.Account != "b" || e.Actor != "local" || e.Subject != "account/b" || e.At.IsZero() || !maps.Equal(e.Data, want) {
			t.Errorf("%+v", e)
		}
	}
}

func TestReconcile(t *testing.T) {
	w := newWorld(t)
	start := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	w.clock.set(start)
	gw, a := w.gateway(), w.guest("a")
	for i, upstream := range []string{"same", "differs", "gone", "failed", "young"} {
		if upstream == "young" {
			w.clock.add(time.Hour)
		}
		r := get(gw.Reserve(t.Context(), call(a), demand(10, 90)))(t)
		c := answer(10, int64(i))
		c.UpstreamID = upstream
		if upstream == "failed" {
			c.Status = 500
		}
		must(t, r.Settle(c))
	}
	other := call(w.guest("a"))
	other.Provider = "elsewhere"
	must(t, get(gw.Reserve(t.Context(), other, demand(10, 90)))(t).Settle(answer(10, 5)))
	proxy := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer key" || r.URL.Path != "/spend/logs" || r.FormValue("summarize") != "false" ||
			r.FormValue("start_date") != "2026-05-01" || r.FormValue("end_date") != "2026-05-02" {
			rw.WriteHeader(http.StatusTeapot)
			return
		}
		fmt.Fprint(rw, `[{"request_id":"same","end_user":"a","spend":1.00000001e-05,"startTime":"2026-05-01T12:00:00.5Z","metadata":{"x":[1]}},
			{"request_id":"differs","end_user":"a","spend":0.5,"startTime":"2026-05-01T12:00:01"},
			{"request_id":"unknown","end_user":"a","spend":0.25,"startTime":"2026-05-01 12:00:01.25+00:00"},
			{"request_id":"early","end_user":"a","spend":1,"startTime":"2026-05-01 11:00:01"},
			{"request_id":"another's","end_user":"b","spend":1,"startTime":"2026-05-01 12:00:01"}]`)
	}))
	defer proxy.Close()
	s := w.service(func(ctx context.Context, provider, account string, since time.Time) ([]SpendLog, error) {
		if provider != "p" || account != "a" {
			return nil, caisson.Errorf(caisson.NotFound, "no")
		}
		return FetchSpendLogs(ctx, proxy.Client(), proxy.URL+"/v1", caisson.NewSecret("key"), since, w.clock.Now())
	})
	got := get(s.Reconcile(as("a", true), "p", start))(t)
	for i := range got {
		got[i].Call = ""
	}
	want := []caisson.Discrepancy{
		{UpstreamID: "differs", Problem: "cost differs", Here: 11000, Upstream: caisson.Dollar / 2},
		{UpstreamID: "gone", Problem: "missing upstream", Here: 12000},
		{UpstreamID: "unknown", Problem: "missing here", Upstream: caisson.Dollar / 4},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	_, err := s.Reconcile(as("a", true), "q", start)
	wantKind(t, err, caisson.NotFound)
	_, err = s.Reconcile(as("a", false), "p", start)
	wantKind(t, err, caisson.Denied)
	_, err = w.service(nil).Reconcile(as("a", true), "p", start)
	wantKind(t, err, caisson.NotFound)
}

// TestReconcileOnce checks that only one reconciliation runs at a time.
func TestReconcileOnce(t *testing.T) {
	w := newWorld(t)
	var s *Service
	s = w.service(func(context.Context, string, string, time.Time) ([]SpendLog, error) {
		_, err := s.Reconcile(as("b", true), "p", time.Time{})
		wantKind(t, err, caisson.Conflict)
		return nil, nil
	})
	for range 2 {
		if _, err := s.Reconcile(as("a", true), "p", time.Time{}); err != nil {
			t.Error(err)
		}
	}
}

// TestFetchFails checks that the key is sent to no other server, and that an incomplete response is an error.
func TestFetchFails(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a redirect was followed") }))
	defer elsewhere.Close()
	body, status := "", 200
	proxy := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if status == 302 {
			http.Redirect(rw, r, elsewhere.URL, status)
			return
		}
		rw.WriteHeader(status)
		fmt.Fprint(rw, body)
	}))
	defer proxy.Close()
	entry := func(id, spend, at string) string {
		return fmt.Sprintf(`{"request_id":%q,"spend":%s,"startTime":%q}`, id, spend, at)
	}
	good := entry("x", "0", "2026-05-01T12:00:00Z")
	for _, c := range []struct {
		status int
		body   string
	}{
		{302, ""}, {401, "[]"}, {500, ""}, {200, ""}, {200, "{}"}, {200, "["}, {200, "[" + good}, {200, "[" + good + ",]"}, {200, "null"},
		{200, "[" + entry("", "0", "2026-05-01T12:00:00Z") + "]"}, {200, "[" + entry("x", "-1", "2026-05-01T12:00:00Z") + "]"},
		{200, "[" + entry("x", "null", "2026-05-01T12:00:00Z") + "]"}, {200, "[" + entry("x", "1e300", "2026-05-01T12:00:00Z") + "]"},
		{200, "[" + entry("x", "0", "yesterday") + "]"},
	} {
		status, body = c.status, c.body
		_, err := FetchSpendLogs(t.Context(), proxy.Client(), proxy.URL, caisson.NewSecret("k-marker"), time.Now(), time.Now())
		wantKind(t, err, caisson.Unavailable)
		if strings.Contains(err.Error(), "k-marker") {
			t.Error(err)
		}
	}
	for _, u := range []string{"", "ftp://x", "http://", "http://user:pass@x", "://"} {
		_, err := FetchSpendLogs(t.Context(), proxy.Client(), u, caisson.Secret{}, time.Now(), time.Now())
		wantKind(t, err, caisson.Invalid)
	}
	status, body = 200, "["+good+"]"
	if logs := get(FetchSpendLogs(t.Context(), proxy.Client(), proxy.URL, caisson.Secret{}, time.Now(), time.Now()))(t); len(logs) != 1 {
		t.Errorf("%+v", logs)
	}
}

func FuzzSpendLogs(f *testing.F) {
	f.Add(`[{"request_id":"x","end_user":"a","spend":0.5,"startTime":"2026-05-01T12:00:00Z"}]`)
	f.Add(`[{}]`)
	f.Add(`[[[`)
	f.Fuzz(func(t *testing.T, s string) {
		logs, err := parseSpendLogs(strings.NewReader(s))
		for _, l := range logs {
			if err == nil && (l.ID == "" || l.Cost < 0 || l.At.IsZero() && !strings.Contains(s, "0001")) {
				t.Errorf("%+v", l)
			}
		}
	})
}

// TestUnderWay checks that the maximum cost of a run's calls is reported from their beginning to their end, for this run only.
func TestUnderWay(t *testing.T) {
	w := newWorld(t)
	g, gw := w.guest("a"), w.gateway()
	g.Run = "r"
	other := g
	other.Run = "s"
	first := get(gw.Reserve(t.Context(), call(g), demand(10, 90)))(t)
	second := get(w.gateway().Reserve(t.Context(), call(g), demand(20, 90)))(t)
	get(gw.Reserve(t.Context(), call(other), demand(10, 90)))(t)
	check := func(account, run string, calls int64, most caisson.USD) {
		t.Helper()
		if n, usd, err := w.book.InFlight(t.Context(), account, run); err != nil || n != calls || usd != most {
			t.Errorf("%d calls of %s, %v at most, %v; want %d, %v", n, run, usd, err, calls, most)
		}
	}
	check("a", "r", 2, demand(10, 90).MaxUsage(90).USD+demand(20, 90).MaxUsage(90).USD)
	check("b", "r", 0, 0)
	must(t, first.Settle(answer(1, 1)))
	check("a", "r", 1, demand(20, 90).MaxUsage(90).USD)
	must(t, second.Settle(answer(1, 1)))
	check("a", "r", 0, 0)
	check("a", "s", 1, demand(10, 90).MaxUsage(90).USD)
}
