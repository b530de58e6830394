package runs

import (
	"context"

	"github.com/caisson-dev/caisson"
)

// budgets creates and deletes the budgets of runs.
type budgets struct {
	ledger caisson.LedgerStore                                // stores the budgets
	forget func(ctx context.Context, budgets ...string) error // makes the model gateway read budgets again; may be nil
}

// setBudget creates the budget of an attempt, unless its run has no limits on cost, tokens or calls. The budget must exist
// before the first model call of the attempt.
func (b *budgets) setBudget(ctx context.Context, r *caisson.Run) error {
	limits := caisson.Limits{USD: r.Limits.Cost, Tokens: r.Limits.Tokens, Calls: r.Limits.Calls}
	if limits.IsZero() {
		return nil
	}
	key := budgetKey(r.ID)
	// Each attempt has the full limits, so the budget of the previous attempt is deleted.
	if err := caisson.IgnoreNotFound(b.ledger.DeleteBudget(ctx, caisson.In(r.Account), key)); err != nil {
		return err
	}
	budget := &caisson.Budget{Key: key, Account: r.Account, Limits: limits, CreatedAt: now()}
	put, err := b.ledger.PutBudget(ctx, caisson.In(r.Account), budget)
	if err != nil {
		return err
	}
	if budget.Limits = limits.Plus(put.Used); budget.Limits != limits {
		// The store counts the usage of earlier attempts in the new budget, so its limits are raised by that usage.
		if _, err := b.ledger.PutBudget(ctx, caisson.In(r.Account), budget); err != nil {
			return err
		}
	}
	if r.Attempt == 1 || b.forget == nil {
		return nil // the model gateway has not read the budget before the first attempt
	}
	return b.forget(ctx, key)
}

// dropBudget deletes the budget of a run that has ended. Its calls stay in the ledger.
func (b *budgets) dropBudget(ctx context.Context, r *caisson.Run) error {
	key := budgetKey(r.ID)
	err := b.ledger.DeleteBudget(ctx, caisson.In(r.Account), key)
	if caisson.KindOf(err) == caisson.NotFound {
		return nil
	}
	if err != nil || b.forget == nil {
		return err
	}
	return b.forget(ctx, key)
}

// budgetPrefix is the prefix of the keys of run budgets.
const budgetPrefix = "run/"

// budgetKey returns the key of the budget of a run.
func budgetKey(id caisson.ID) string { return budgetPrefix + string(id) }

// list returns all budgets of all accounts, not only those of runs.
func (b *budgets) list(ctx context.Context) ([]*caisson.Budget, error) {
	return b.ledger.ListBudgets(ctx, caisson.AllAccounts())
}
