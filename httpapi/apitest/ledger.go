package apitest

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
)

// ledgerCore has the calls that are charged, and the budgets that are set.
type ledgerCore struct{ m *Memory }

func (m *Memory) charge(_ context.Context, calls ...caisson.Call) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range calls {
		m.calls = append(m.calls, c)
		if b := m.budgets["account/"+c.Account]; b != nil {
			b.Used.USD += c.Cost
			b.Used.Calls++
		}
	}
	return nil
}

func (c ledgerCore) find(ctx context.Context, q caisson.UsageQuery) ([]caisson.Call, error) {
	caller, err := caisson.CallerOf(ctx)
	switch {
	case err != nil:
		return nil, err
	case q.Account == "":
		q.Account = caller.Account
	case q.Account != caller.Account && !caller.Local:
		return nil, caisson.Errorf(caisson.Denied, "only local callers see other accounts")
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(c.m.calls), func(c caisson.Call) bool {
		return c.Account != q.Account || q.Run != "" && q.Run != c.Run || q.Agent != "" && q.Agent != c.Agent ||
			q.Under != "" && q.Under != c.Run && !slices.Contains(strings.Fields(c.Lineage), q.Under) ||
			q.Sandbox != "" && q.Sandbox != c.Sandbox || q.Model != "" && q.Model != c.Model ||
			c.At.Before(q.Since) || !q.Until.IsZero() && !c.At.Before(q.Until)
	}), nil
}

func (c ledgerCore) Usage(ctx context.Context, q caisson.UsageQuery) ([]caisson.UsageRow, error) {
	list, err := c.find(ctx, q)
	if err != nil {
		return nil, err
	}
	var rows []caisson.UsageRow
	for _, call := range list {
		key := map[string]string{"model": call.Model, "run": call.Run, "account": call.Account, "agent": call.Agent}[q.By]
		i := slices.IndexFunc(rows, func(r caisson.UsageRow) bool { return r.Key == key })
		if i < 0 {
			rows, i = append(rows, caisson.UsageRow{Key: key}), len(rows)
		}
		rows[i].Calls++
		rows[i].Tokens.Input += call.Tokens.Input
		rows[i].Tokens.Output += call.Tokens.Output
		rows[i].Cost += call.Cost
	}
	return rows, nil
}

func (c ledgerCore) Calls(ctx context.Context, q caisson.UsageQuery, after caisson.ID, limit int) ([]caisson.Call, bool, error) {
	list, err := c.find(ctx, q)
	if err != nil {
		return nil, false, err
	}
	page, more := page(list, caisson.Filter{After: after, Limit: limit}, func(c caisson.Call) caisson.ID { return c.ID },
		func(caisson.Call) bool { return true })
	return page, more, nil
}

func (c ledgerCore) Receipts(ctx context.Context, q caisson.UsageQuery, after string, limit int) ([]caisson.Receipt, bool, error) {
	list, more, err := c.Calls(ctx, q, caisson.ID(after[strings.LastIndexByte(after, '/')+1:]), limit)
	var out []caisson.Receipt
	for _, call := range list {
		out = append(out, caisson.Receipt{
			Source: caisson.ChargeSource, Reference: call.Reference(call.ID), Account: call.Account, Cost: call.Cost, At: call.At,
		})
	}
	return out, more, err
}

func (c ledgerCore) SetBudget(ctx context.Context, b caisson.Budget) (*caisson.Budget, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	if b.Key == "" {
		b.Key = "account/" + caller.Account
	}
	if b.Account == "" {
		b.Account = caller.Account
	}
	b.CreatedAt = time.Now().UTC()
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	c.m.budgets[b.Key] = &b
	return &b, nil
}

func (c ledgerCore) ListBudgets(ctx context.Context) ([]*caisson.Budget, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	var list []*caisson.Budget
	for _, b := range c.m.budgets {
		if b.Account == caller.Account {
			list = append(list, b)
		}
	}
	slices.SortFunc(list, func(a, b *caisson.Budget) int { return strings.Compare(a.Key, b.Key) })
	return list, nil
}

func (c ledgerCore) RemoveBudget(_ context.Context, key string) error {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if c.m.budgets[key] == nil {
		return caisson.Errorf(caisson.NotFound, "there is no budget %.80q", key)
	}
	delete(c.m.budgets, key)
	return nil
}

func (c ledgerCore) Reconcile(_ context.Context, provider string, since time.Time) ([]caisson.Discrepancy, error) {
	if provider != "p" {
		return nil, caisson.Errorf(caisson.NotFound, "there is no provider %.40q of kind litellm", provider)
	}
	return []caisson.Discrepancy{{UpstreamID: "x", Problem: "missing here", Upstream: caisson.Dollar / 7}}, nil
}
