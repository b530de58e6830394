package apitest

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-dev/caisson"
)

func testLedger(t *testing.T, ctx context.Context, c Cores) {
	first, _, err := c.Ledger.Calls(ctx, caisson.UsageQuery{}, "", 1)
	if err != nil || len(first) != 1 {
		t.Fatalf("%v %+v", err, first)
	}
	all := calls(first[0].Account)
	rows := must(c.Ledger.Usage(ctx, caisson.UsageQuery{By: "model"}))(t)
	if len(rows) != 2 || rows[0].Key != "small" || rows[0].Calls != 2 || rows[0].Cost != caisson.Dollar/4 || rows[0].Tokens.Output != 2 {
		t.Errorf("usage %+v", rows)
	}
	for _, q := range []struct {
		caisson.UsageQuery
		want int64
	}{
		{caisson.UsageQuery{}, 3},
		{caisson.UsageQuery{Run: "r/1", Sandbox: "sb-aaaaaaaaaaaaaaaa", Model: "large"}, 1},
		{caisson.UsageQuery{Under: "rn-aaaaaaaaaaaaaaaa", Agent: "shell", By: "agent"}, 2},
		{caisson.UsageQuery{Under: "rn-bbbbbbbbbbbbbbbb"}, 1},
		{caisson.UsageQuery{Agent: "other"}, 0},
		{caisson.UsageQuery{Since: all[1].At}, 2},
		{caisson.UsageQuery{Since: all[1].At.Add(1), Until: all[2].At}, 0},
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
	if b.Used.USD != caisson.Dollar/3 || *b.Limits.USD != usd || b.Limits.Tokens == nil || *b.Limits.Tokens != 0 || b.Limits.Calls != nil {
		t.Errorf("budget %+v", b)
	}
	run := must(c.Ledger.SetBudget(ctx, caisson.Budget{Key: "run/ü 1/2%2f?"}))(t)
	list := must(c.Ledger.ListBudgets(ctx))(t)
	if len(list) != 2 || list[0].Key != b.Key || list[0].Period != "month" || !list[1].Limits.IsZero() {
		t.Errorf("budgets %+v", list)
	}
	if err := c.Ledger.RemoveBudget(ctx, b.Key); err != nil {
		t.Error(err)
	}
	if err := c.Ledger.RemoveBudget(ctx, run.Key); err != nil {
		t.Error(err)
	}
	Fails(t, c.Ledger.RemoveBudget(ctx, "run/none"), caisson.NotFound, "")
	found := must(c.Ledger.Reconcile(ctx, "p", noon))(t)
	if len(found) != 1 || found[0].Upstream != caisson.Dollar/7 {
		t.Errorf("discrepancies %+v", found)
	}
	_, err := c.Ledger.Reconcile(ctx, "q", time.Time{})
	Fails(t, err, caisson.NotFound, "")
}
