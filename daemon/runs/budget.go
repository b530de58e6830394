package runs

import (
	"context"

	"github.com/caisson-dev/caisson"
)

// setBudget creates the budget of an attempt. It must exist before the first call.
func (c budgets) setBudget(ctx context.Context, r *caisson.Run) error {
	limits := caisson.Limits{USD: r.Limits.Cost, Tokens: r.Limits.Tokens, Calls: r.Limits.Calls}
	if limits.IsZero() {
		return nil
	}
	key := budgetKey(r.ID)
	// Each attempt has the full limits.
	err := c.Store.Ledger().DeleteBudget(ctx, caisson.In(r.Account), key)
	if err != nil && caisson.KindOf(err) != caisson.NotFound {
		return err
	}
	b := &caisson.Budget{Key: key, Account: r.Account, Limits: limits, CreatedAt: now()}
	put, err := c.Store.Ledger().PutBudget(ctx, caisson.In(r.Account), b)
	if err != nil {
		return err
	}
	if b.Limits = limits.Plus(put.Used); b.Limits != limits {
		// A new budget includes the usage of earlier attempts, so the limits are raised by it.
		if _, err := c.Store.Ledger().PutBudget(ctx, caisson.In(r.Account), b); err != nil {
			return err
		}
	}
	if r.Attempt == 1 || c.Forget == nil {
		return nil // in the first attempt, the model gateway has not read the budget yet
	}
	return c.Forget(ctx, key)
}

// dropBudget deletes the budget of a run that has ended. Its calls stay in the ledger.
func (c budgets) dropBudget(ctx context.Context, r *caisson.Run) error {
	key := budgetKey(r.ID)
	err := c.Store.Ledger().DeleteBudget(ctx, caisson.In(r.Account), key)
	if caisson.KindOf(err) == caisson.NotFound {
		return nil
	}
	if err != nil || c.Forget == nil {
		return err
	}
	return c.Forget(ctx, key)
}

// budgetPrefix is the prefix of the keys of run budgets.
const budgetPrefix = "run/"

func budgetKey(id caisson.ID) string { return budgetPrefix + string(id) }
