package client

import (
	"context"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// ledger implements [caisson.Ledger] by requests to a daemon.
type ledger struct{ c *requester }

// usageRequest returns a request for the listing with this path, restricted to the calls of models that q selects.
func usageRequest(q caisson.UsageQuery, path ...string) request {
	r := get(path...).withParam("account", q.Account).withParam("run", q.Run).withParam("under", q.Under).withParam("agent", q.Agent).
		withParam("sandbox", string(q.Sandbox)).withParam("model", q.Model)
	for name, t := range map[string]time.Time{"since": q.Since, "until": q.Until} {
		if !t.IsZero() {
			r.addParam(name, t.UTC().Format(time.RFC3339Nano))
		}
	}
	return r
}

// Usage implements [caisson.Ledger].
func (l ledger) Usage(ctx context.Context, q caisson.UsageQuery) ([]caisson.UsageRow, error) {
	return callList[caisson.UsageRow](ctx, l.c, usageRequest(q, "usage").withParam("by", q.By))
}

// Calls implements [caisson.Ledger].
func (l ledger) Calls(ctx context.Context, q caisson.UsageQuery, after caisson.ID, limit int) ([]caisson.Call, bool, error) {
	return callPage[caisson.Call](ctx, l.c, usageRequest(q, "usage", "calls").withParam("after", string(after)), limit)
}

// Receipts implements [caisson.Ledger].
func (l ledger) Receipts(ctx context.Context, q caisson.UsageQuery, after string, limit int) ([]caisson.Receipt, bool, error) {
	return callPage[caisson.Receipt](ctx, l.c, usageRequest(q, "usage", "receipts").withParam("after", after), limit)
}

// SetBudget implements [caisson.Ledger].
func (l ledger) SetBudget(ctx context.Context, b caisson.Budget) (*caisson.Budget, error) {
	req := protocol.BudgetRequest{Key: b.Key, Account: b.Account, Limits: b.Limits, Period: b.Period}
	return call[*caisson.Budget](ctx, l.c, put(req, "budgets"))
}

// ListBudgets implements [caisson.Ledger].
func (l ledger) ListBudgets(ctx context.Context) ([]*caisson.Budget, error) {
	return callList[*caisson.Budget](ctx, l.c, get("budgets"))
}

// RemoveBudget implements [caisson.Ledger].
func (l ledger) RemoveBudget(ctx context.Context, key string) error {
	kind, name, ok := strings.Cut(key, "/")
	if !ok {
		return caisson.Invalidf("key", "%.80q is not account/NAME, session/ID, run/ID or sandbox/ID", key)
	}
	return l.c.do(ctx, remove("budgets", kind, name))
}

// Reconcile implements [caisson.Ledger].
func (l ledger) Reconcile(ctx context.Context, provider string, since time.Time) ([]caisson.Discrepancy, error) {
	return callList[caisson.Discrepancy](ctx, l.c, post(protocol.ReconcileRequest{Provider: provider, Since: since}, "usage", "reconcile"))
}
