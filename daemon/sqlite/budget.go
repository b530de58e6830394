package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
)

// budgetStmts are the statements about budgets. The first group is prepared on the connection that writes, the second on those
// that only read.
type budgetStmts struct {
	get         *sql.Stmt // Returns a budget by its key.
	period      *sql.Stmt // Returns the period of a budget of an account.
	spent       *sql.Stmt // Returns the used amount of a budget in a period.
	addToSpent  *sql.Stmt // Adds to the used amount of a budget in a period.
	put         *sql.Stmt // Inserts a budget, or changes its limits and period.
	deleteSpent *sql.Stmt // Deletes the used amounts of a budget, of all periods.
	losses      *sql.Stmt // Sums the losses of a budget since a time: leases of journals of which calls may be missing.
	remove      *sql.Stmt // Deletes a budget.

	read      *sql.Stmt // Returns a budget by its key.
	readSpent *sql.Stmt // Returns the used amount of a budget in a period.
	readHeld  *sql.Stmt // Sums the leases of a budget in a period.
	list      *sql.Stmt // Returns the budgets of one account or of all.
}

const (
	// budgetColumns are the columns of a budget, in the order in which scanBudget reads them.
	budgetColumns = `key, account, period, usd, tokens, calls, created_at`
	// getBudget is the query for a budget by its key.
	getBudget = `SELECT ` + budgetColumns + ` FROM budget WHERE key = ?`
	// spentQuery is the query for the used amount of a budget in a period.
	spentQuery = `SELECT usd, tokens, calls FROM spent WHERE budget = ? AND period_start = ?`
)

// newBudgetStmts prepares the statements for budgets.
func newBudgetStmts(p *preparer) budgetStmts {
	return budgetStmts{
		get:    p.write(getBudget),
		period: p.write(`SELECT period FROM budget WHERE key = ? AND account = ?`),
		spent:  p.write(spentQuery),
		addToSpent: p.write(`INSERT INTO spent (budget, period_start, usd, tokens, calls) VALUES (?, ?, ?, ?, ?)
			ON CONFLICT DO UPDATE SET ` + upsertSums("usd", "tokens", "calls")),
		put: p.write(`INSERT INTO budget (` + budgetColumns + `) VALUES (?, ?, ?, ?, ?, ?, ?)
			ON CONFLICT DO UPDATE SET period = excluded.period, usd = excluded.usd, tokens = excluded.tokens, calls = excluded.calls`),
		deleteSpent: p.write(`DELETE FROM spent WHERE budget = ?`),
		losses:      p.write(`SELECT ` + sumSQL("usd") + `, ` + sumSQL("tokens") + `, ` + sumSQL("calls") + ` FROM loss WHERE budget = ? AND at >= ?`),
		remove:      p.write(`DELETE FROM budget WHERE key = ?1 AND (?2 IS NULL OR account = ?2)`),

		read:      p.read(getBudget),
		readSpent: p.read(spentQuery),
		readHeld:  p.read(heldQuery),
		list:      p.read(`SELECT ` + budgetColumns + ` FROM budget WHERE ?1 IS NULL OR account = ?1 ORDER BY key`),
	}
}

// periodBounds returns the start, in microseconds since 1970, and the end of the period that contains t. period is "day" or
// "month", in UTC; for "", which never ends, periodBounds returns 0 and the zero time.
func periodBounds(period string, t time.Time) (start int64, end time.Time) {
	year, month, day := t.UTC().Date()
	switch period {
	case "day":
		return time.Date(year, month, day, 0, 0, 0, 0, time.UTC).UnixMicro(), time.Date(year, month, day+1, 0, 0, 0, 0, time.UTC)
	case "month":
		return time.Date(year, month, 1, 0, 0, 0, 0, time.UTC).UnixMicro(), time.Date(year, month+1, 1, 0, 0, 0, 0, time.UTC)
	}
	return 0, time.Time{}
}

// budgetTitle returns the name of a budget for messages.
func budgetTitle(b *caisson.Budget) string {
	title := strings.Replace(b.Key, "/", " ", 1)
	if b.Period != "" {
		title += " (" + b.Period + ")"
	}
	return title
}

// addSpent adds a to the used amount of a budget in a period.
func (l *ledger) addSpent(ctx context.Context, tx *sql.Tx, k periodKey, a caisson.Amount) error {
	_, err := tx.StmtContext(ctx, l.budgets.addToSpent).ExecContext(ctx, k.budget, k.start, clampSum(int64(a.USD)), clampSum(a.Tokens), clampSum(a.Calls))
	return err
}

// PutBudget implements [caisson.LedgerStore]. It creates a budget or changes its limits and period. It returns Conflict if
// another account has a budget with that key. A new budget, or a new period, starts with the sum of the calls in the ledger.
func (l *ledger) PutBudget(ctx context.Context, in caisson.Scope, b *caisson.Budget) (*caisson.Budget, error) {
	if err := checkBudget(in, b); err != nil {
		return nil, err
	}
	now := l.now()
	err := l.db.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		old, err := scanBudget(tx.StmtContext(ctx, l.budgets.get).QueryRowContext(ctx, b.Key))
		switch {
		case errors.Is(err, sql.ErrNoRows):
			old = nil
		case err != nil:
			return err
		case old.Account != b.Account:
			return caisson.Errorf(caisson.Conflict, "the budget %s belongs to another account", b.Key)
		}
		_, err = tx.StmtContext(ctx, l.budgets.put).ExecContext(ctx, b.Key, b.Account, b.Period,
			(*int64)(b.Limits.USD), b.Limits.Tokens, b.Limits.Calls, now.UnixMicro())
		if err != nil || old != nil && old.Period == b.Period {
			return err
		}
		return l.recomputeSpent(ctx, tx, b, now)
	})
	if err != nil {
		return nil, err
	}
	return l.GetBudget(ctx, in, b.Key)
}

// checkBudget returns an Invalid error if b is not valid, or NotFound if the account of b is not in the scope.
func checkBudget(in caisson.Scope, b *caisson.Budget) error {
	kind, name, _ := strings.Cut(b.Key, "/")
	l := b.Limits
	switch {
	case !slices.Contains([]string{"account", "session", "run", "sandbox"}, kind) || name == "":
		return caisson.Invalidf("key", "%.80q is not account/NAME, session/ID, run/ID or sandbox/ID", b.Key)
	case b.Account == "" || !in.Covers(b.Account):
		return caisson.Errorf(caisson.NotFound, "there is no budget %.80q", b.Key)
	case b.Period != "" && b.Period != "day" && b.Period != "month":
		return caisson.Invalidf("period", "%.40q is not day or month", b.Period)
	case l.USD != nil && *l.USD < 0 || l.Tokens != nil && *l.Tokens < 0 || l.Calls != nil && *l.Calls < 0:
		return caisson.Invalidf("limits", "a limit cannot be negative")
	}
	return nil
}

// callTokens is an SQL expression for all tokens of a row of the tables call and usage. usedQuery sums the costs, tokens and
// numbers of calls. A call that was cut off counts with the maximum that it may have used: cutQuery sums the differences. Dollars
// in documents are at most 10,000, so that a float represents them exactly to a billionth.
var (
	callTokens = clampedSQL("input + output + cache_read + cache_write")
	usedQuery  = `SELECT ` + sumSQL("cost") + `, ` + sumSQL(callTokens) + `, ` + sumSQL("calls") + ` FROM usage WHERE true`
	cutQuery   = `SELECT ` + sumSQL(`max(0, CAST(round((doc ->> '$.atMost.usd') * 1e9) AS INTEGER) - cost)`) + `, ` +
		sumSQL(`max(0, (doc ->> '$.atMost.tokens') - `+callTokens+`)`) + `, 0 FROM call WHERE estimated AND doc ->> '$.atMost' IS NOT NULL`
)

// budgetUsageQuery restricts text, which is usedQuery or cutQuery, to the calls that b counts in the period that contains now.
func budgetUsageQuery(text string, b *caisson.Budget, now time.Time) *query {
	kind, name, _ := strings.Cut(b.Key, "/")
	start, end := periodBounds(b.Period, now)
	q := newQuery(text)
	account := "account = ?"
	if kind == "run" || kind == "sandbox" && text == cutQuery {
		// The + keeps SQLite from using the index on accounts: an account has more calls than a run or a sandbox, so that the
		// other index is more selective.
		account = "+account = ?"
	}
	q.and(account, b.Account)
	switch kind {
	case "run":
		q.inRunTree(sql.NullString{String: b.Account, Valid: true}, name)
	case "sandbox", "session":
		q.and(kind+" = ?", name)
	}
	q.and("at >= ?", start)
	if !end.IsZero() {
		q.and("at < ?", end.UnixMicro())
	}
	return q
}

// recomputeSpent sets the used amount of b in its current period to the sum of its calls and of the leases that were lost with
// journals.
func (l *ledger) recomputeSpent(ctx context.Context, tx *sql.Tx, b *caisson.Budget, now time.Time) error {
	start, _ := periodBounds(b.Period, now)
	var used caisson.Amount
	for _, text := range []string{usedQuery, cutQuery} {
		q := budgetUsageQuery(text, b, now)
		part, err := scanAmount(tx.QueryRowContext(ctx, q.sql.String(), q.args...))
		if err != nil {
			return err
		}
		used = used.Plus(part)
	}
	lost, err := scanAmount(tx.StmtContext(ctx, l.budgets.losses).QueryRowContext(ctx, b.Key, start))
	if err != nil {
		return err
	}
	if _, err := tx.StmtContext(ctx, l.budgets.deleteSpent).ExecContext(ctx, b.Key); err != nil {
		return err
	}
	return l.addSpent(ctx, tx, periodKey{b.Key, start}, used.Plus(lost))
}

// GetBudget implements [caisson.LedgerStore].
func (l *ledger) GetBudget(ctx context.Context, in caisson.Scope, key string) (*caisson.Budget, error) {
	b, err := scanBudget(l.budgets.read.QueryRowContext(ctx, key))
	if errors.Is(err, sql.ErrNoRows) || err == nil && !in.Covers(b.Account) {
		return nil, caisson.Errorf(caisson.NotFound, "there is no budget %.80q", key)
	}
	if err == nil {
		err = l.setAmounts(ctx, b)
	}
	if err != nil {
		return nil, l.db.explain(err)
	}
	return b, nil
}

// setAmounts sets the fields Used and Held of b. It reads Held last: calls only move amounts from Held to Used, so that the sum
// of both fields never exceeds the actual sum.
func (l *ledger) setAmounts(ctx context.Context, b *caisson.Budget) (err error) {
	start, _ := periodBounds(b.Period, l.now())
	if b.Used, err = scanAmount(l.budgets.readSpent.QueryRowContext(ctx, b.Key, start)); err != nil {
		return err
	}
	b.Held, err = scanAmount(l.budgets.readHeld.QueryRowContext(ctx, b.Key, start))
	return err
}

// ListBudgets implements [caisson.LedgerStore]. Budgets are sorted by key.
func (l *ledger) ListBudgets(ctx context.Context, in caisson.Scope) ([]*caisson.Budget, error) {
	list, err := readRows(scanBudget)(l.budgets.list.QueryContext(ctx, accountParam(in)))
	for _, b := range list {
		if err == nil {
			err = l.setAmounts(ctx, b)
		}
	}
	if err != nil {
		return nil, l.db.explain(err)
	}
	return list, nil
}

// DeleteBudget implements [caisson.LedgerStore].
func (l *ledger) DeleteBudget(ctx context.Context, in caisson.Scope, key string) error {
	none := caisson.Errorf(caisson.NotFound, "there is no budget %.80q", key)
	return l.db.writeFound(ctx, none, l.budgets.remove, key, accountParam(in))
}

// scanBudget reads a row with the budgetColumns.
func scanBudget(s scanner) (*caisson.Budget, error) {
	var b caisson.Budget
	var created int64
	err := s.Scan(&b.Key, &b.Account, &b.Period, &b.Limits.USD, &b.Limits.Tokens, &b.Limits.Calls, &created)
	if err != nil {
		return nil, err
	}
	b.CreatedAt = time.UnixMicro(created).UTC()
	return &b, nil
}
