package apitest

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-dev/caisson"
)

// Calls returns three calls of models by runs of an account, an hour apart.
func Calls(account string) (list []caisson.Call) {
	noon := time.Date(2026, 5, 1, 12, 0, 0, 5000, time.UTC)
	for i, model := range []string{"small", "large", "small"} {
		list = append(list, caisson.Call{
			ID: caisson.ID("ca-" + strings.Repeat("abc"[i:i+1], 16)), At: noon.Add(time.Duration(i) * time.Hour),
			Guest: caisson.Guest{
				Sandbox: "sb-aaaaaaaaaaaaaaaa", Account: account, Run: "r/" + strconv.Itoa(i+1), Attempt: i, Agent: "shell",
				Lineage: []string{"", "rn-aaaaaaaaaaaaaaaa", "rn-aaaaaaaaaaaaaaaa rn-bbbbbbbbbbbbbbbb"}[i], Trace: strings.Repeat("0f", 16),
			},
			Provider: "p", Model: model, Upstream: model, API: "chat", Status: 200,
			Tokens: caisson.TokenCount{Input: 10, Output: int64(i)}, Cost: caisson.Dollar / 8, FirstByte: 1, Duration: 2,
		})
	}
	return list
}

func testLedger(t *testing.T, ctx context.Context, c Cores) {
	all := Calls(must(caisson.CallerOf(ctx))(t).Account)
	succeeds(t, c.Charge(ctx, all...))
	rows := must(c.Ledger.Usage(ctx, caisson.UsageQuery{By: "model"}))(t)
	i := slices.IndexFunc(rows, func(r caisson.UsageRow) bool { return r.Key == "small" })
	if len(rows) != 2 || i < 0 || rows[i].Calls != 2 || rows[i].Cost != caisson.Dollar/4 || rows[i].Tokens.Output != 2 {
		t.Errorf("usage %+v", rows)
	}
	for _, q := range []struct {
		caisson.UsageQuery
		want int64
	}{
		{caisson.UsageQuery{}, 3},
		{caisson.UsageQuery{Run: "r/2", Sandbox: "sb-aaaaaaaaaaaaaaaa", Model: "large"}, 1},
		{caisson.UsageQuery{Under: "rn-aaaaaaaaaaaaaaaa", Agent: "shell", By: "agent"}, 2},
		{caisson.UsageQuery{Under: "rn-bbbbbbbbbbbbbbbb"}, 1},
		{caisson.UsageQuery{Agent: "other"}, 0},
		{caisson.UsageQuery{Since: all[1].At}, 2},
		{caisson.UsageQuery{Since: all[1].At.Add(time.Microsecond), Until: all[2].At}, 0},
		{caisson.UsageQuery{Until: all[1].At}, 1},
	} {
		rows := must(c.Ledger.Usage(ctx, q.UsageQuery))(t)
		if n := int64(0); len(rows) > 0 && rows[0].Calls != q.want || len(rows) == 0 && q.want != n {
			t.Errorf("%+v: %+v", q.UsageQuery, rows)
		}
	}
	page, more, err := c.Ledger.Calls(ctx, caisson.UsageQuery{}, "", 2)
	if err != nil || !more || !cmp.Equal(page, all[:2]) {
		t.Errorf("%v %v\n%s", err, more, cmp.Diff(all[:2], page))
	}
	page, more, err = c.Ledger.Calls(ctx, caisson.UsageQuery{}, page[1].ID, 2)
	if err != nil || more || !cmp.Equal(page, all[2:]) {
		t.Errorf("%v %v\n%s", err, more, cmp.Diff(all[2:], page))
	}
	receipts, more, err := c.Ledger.Receipts(ctx, caisson.UsageQuery{}, "", 1)
	if err != nil || !more || len(receipts) != 1 || receipts[0].Reference != "r/1/0/"+string(all[0].ID) {
		t.Fatalf("%v %v %+v", err, more, receipts)
	}
	receipts, more, err = c.Ledger.Receipts(ctx, caisson.UsageQuery{}, receipts[0].Reference, 0)
	if err != nil || more || len(receipts) != 2 || receipts[1].Cost != caisson.Dollar/8 || !receipts[1].At.Equal(all[2].At) {
		t.Errorf("%v %v %+v", err, more, receipts)
	}
}

func testBudgets(t *testing.T, ctx context.Context, c Cores) {
	usd, tokens := caisson.Dollar/4*5, int64(0)
	b := must(c.Ledger.SetBudget(ctx, caisson.Budget{Limits: caisson.Limits{USD: &usd, Tokens: &tokens}, Period: "month"}))(t)
	if *b.Limits.USD != usd || b.Limits.Tokens == nil || *b.Limits.Tokens != 0 || b.Limits.Calls != nil {
		t.Errorf("budget %+v", b)
	}
	call := Calls(b.Account)[0]
	call.At = time.Now() // makes it a call in the current month
	succeeds(t, c.Charge(ctx, call))
	run := must(c.Ledger.SetBudget(ctx, caisson.Budget{Key: "run/ü 1/2%2f?"}))(t)
	list := must(c.Ledger.ListBudgets(ctx))(t)
	if len(list) != 2 || list[0].Key != b.Key || list[0].Period != "month" || list[0].Used.USD != caisson.Dollar/8 || list[0].Used.Calls != 1 || !list[1].Limits.IsZero() {
		t.Errorf("budgets %+v", list)
	}
	succeeds(t, c.Ledger.RemoveBudget(ctx, b.Key))
	succeeds(t, c.Ledger.RemoveBudget(ctx, run.Key))
	Fails(t, c.Ledger.RemoveBudget(ctx, "run/none"), caisson.NotFound, "")
	found := must(c.Ledger.Reconcile(ctx, "p", time.Now()))(t)
	if len(found) != 1 || found[0].Upstream != caisson.Dollar/7 {
		t.Errorf("discrepancies %+v", found)
	}
	_, err := c.Ledger.Reconcile(ctx, "q", time.Time{})
	Fails(t, err, caisson.NotFound, "")
}
