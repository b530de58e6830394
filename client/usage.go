package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// ledger implements [caisson.Ledger] by requests to a daemon.
type ledger struct{ c *requester }

// usageQuery returns the query parameters for q.
func usageQuery(q caisson.UsageQuery) url.Values {
	v := url.Values{}
	for name, value := range map[string]string{
		"by": q.By, "account": q.Account, "run": q.Run, "under": q.Under, "agent": q.Agent,
		"sandbox": string(q.Sandbox), "model": q.Model,
	} {
		if value != "" {
			v.Set(name, value)
		}
	}
	for name, t := range map[string]time.Time{"since": q.Since, "until": q.Until} {
		if !t.IsZero() {
			v.Set(name, t.UTC().Format(time.RFC3339Nano))
		}
	}
	return v
}

// Usage implements [caisson.Ledger].
func (l ledger) Usage(ctx context.Context, q caisson.UsageQuery) ([]caisson.UsageRow, error) {
	return callList[caisson.UsageRow](ctx, l.c, request{method: http.MethodGet, path: []string{"usage"}, query: usageQuery(q)})
}

// Calls implements [caisson.Ledger].
func (l ledger) Calls(ctx context.Context, q caisson.UsageQuery, after caisson.ID, limit int) ([]caisson.Call, bool, error) {
	return usagePage[caisson.Call](ctx, l.c, "calls", q, string(after), limit)
}

// Receipts implements [caisson.Ledger].
func (l ledger) Receipts(ctx context.Context, q caisson.UsageQuery, after string, limit int) ([]caisson.Receipt, bool, error) {
	return usagePage[caisson.Receipt](ctx, l.c, "receipts", q, after, limit)
}

// usagePage requests one page of the listing /usage/what. The second result reports whether further pages follow.
func usagePage[T any](ctx context.Context, c *requester, what string, q caisson.UsageQuery, after string, limit int) ([]T, bool, error) {
	q.By = ""
	v := usageQuery(q)
	if after != "" {
		v.Set("after", after)
	}
	if limit != 0 {
		v.Set("limit", strconv.Itoa(limit))
	}
	p, err := call[protocol.Page[T]](ctx, c, request{method: http.MethodGet, path: []string{"usage", what}, query: v})
	return p.Items, p.Next != "", err
}

// SetBudget implements [caisson.Ledger].
func (l ledger) SetBudget(ctx context.Context, b caisson.Budget) (*caisson.Budget, error) {
	return call[*caisson.Budget](ctx, l.c, request{
		method: http.MethodPut, path: []string{"budgets"},
		jsonBody: protocol.BudgetRequest{Key: b.Key, Account: b.Account, Limits: b.Limits, Period: b.Period},
	})
}

// ListBudgets implements [caisson.Ledger].
func (l ledger) ListBudgets(ctx context.Context) ([]*caisson.Budget, error) {
	return callList[*caisson.Budget](ctx, l.c, request{method: http.MethodGet, path: []string{"budgets"}})
}

// RemoveBudget implements [caisson.Ledger].
func (l ledger) RemoveBudget(ctx context.Context, key string) error {
	kind, name, ok := strings.Cut(key, "/")
	if !ok {
		return caisson.Invalidf("key", "%.80q is not account/NAME, session/ID, run/ID or sandbox/ID", key)
	}
	return l.c.do(ctx, request{method: http.MethodDelete, path: []string{"budgets", kind, name}})
}

// Reconcile implements [caisson.Ledger].
func (l ledger) Reconcile(ctx context.Context, provider string, since time.Time) ([]caisson.Discrepancy, error) {
	return callList[caisson.Discrepancy](ctx, l.c, request{
		method: http.MethodPost, path: []string{"usage", "reconcile"}, jsonBody: protocol.ReconcileRequest{Provider: provider, Since: since},
	})
}
