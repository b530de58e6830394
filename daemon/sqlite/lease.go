package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/caisson-dev/caisson"
)

// leaseStmts are the statements about the leases of journals. A journal has one lease for each budget and period.
type leaseStmts struct {
	since        *sql.Stmt // Returns the time of the first grant of a lease; calls from then on are deducted from it.
	add          *sql.Stmt // Adds an amount to a lease, or inserts the lease.
	held         *sql.Stmt // Sums the leases of a budget in a period, without those of one journal.
	journalHeld  *sql.Stmt // Returns the lease of a journal for a budget in a period.
	newest       *sql.Stmt // Returns the newest of the leases of a budget that a journal holds for several periods.
	removeBudget *sql.Stmt // Deletes the leases of a budget that a journal holds, of all periods.
	removeEmpty  *sql.Stmt // Deletes a lease whose amounts are zero and whose budget was deleted.
	insertLosses *sql.Stmt // Records the leases of a journal whose end is lost as losses: its calls may have spent them.
	spendLosses  *sql.Stmt // Adds the losses of a journal, leases that calls missing in it may have spent, to the used amounts.
	remove       *sql.Stmt // Deletes all leases of a journal.
}

// newLeaseStmts prepares the statements for leases.
func newLeaseStmts(p *preparer) leaseStmts {
	const one = ` FROM lease WHERE journal = ? AND budget = ? AND period_start = ?`
	return leaseStmts{
		since: p.write(`SELECT since` + one),
		add: p.write(`INSERT INTO lease (journal, budget, period_start, since, usd, tokens, calls) VALUES (?, ?, ?, ?, ?, ?, ?)
			ON CONFLICT DO UPDATE SET since = iif(excluded.since = 0, since, min(since, excluded.since)), ` + upsertSums("usd", "tokens", "calls")),
		// Negative leases, which are debts, count as 0: the debt of one journal does not increase what others can lease.
		held:        p.write(heldQuery + ` AND journal <> ?`),
		journalHeld: p.write(`SELECT usd, tokens, calls` + one),
		newest: p.write(`SELECT period_start, usd, tokens, calls FROM lease WHERE journal = ? AND budget = ?
			ORDER BY since DESC, period_start DESC LIMIT 1`),
		removeBudget: p.write(`DELETE FROM lease WHERE journal = ? AND budget = ?`),
		removeEmpty: p.write(`DELETE FROM lease WHERE journal = ?1 AND budget = ?2 AND period_start = ?3 AND usd = 0 AND tokens = 0 AND calls = 0
			AND NOT EXISTS (SELECT 1 FROM budget WHERE key = ?2)`),
		insertLosses: p.write(`INSERT INTO loss (journal, budget, period_start, at, usd, tokens, calls)
			SELECT journal, budget, period_start, since, max(lease.usd, 0), max(lease.tokens, 0), max(lease.calls, 0)
			FROM lease JOIN budget ON budget.key = lease.budget WHERE journal = ?`),
		spendLosses: p.write(`INSERT INTO spent (budget, period_start, usd, tokens, calls)
			SELECT budget, period_start, usd, tokens, calls FROM loss WHERE journal = ?
			ON CONFLICT DO UPDATE SET ` + upsertSums("usd", "tokens", "calls")),
		remove: p.write(`DELETE FROM lease WHERE journal = ?`),
	}
}

// heldQuery sums the leases of a budget in a period that all journals hold.
var heldQuery = `SELECT ` + sumSQL("max(usd, 0)") + `, ` + sumSQL("max(tokens, 0)") + `, ` + sumSQL("max(calls, 0)") + `
	FROM lease WHERE budget = ? AND period_start = ?`

// addLease adds a, which may be negative, to the lease of a journal for a budget in a period. since is the time of the grant,
// in microseconds since 1970, from which on the journal's calls are deducted from the lease; 0 keeps the stored time.
func (l *ledger) addLease(ctx context.Context, tx *sql.Tx, journal caisson.ID, k periodKey, a caisson.Amount, since int64) error {
	_, err := tx.StmtContext(ctx, l.leases.add).ExecContext(ctx, string(journal), k.budget, k.start, since,
		clampSum(int64(a.USD)), clampSum(a.Tokens), clampSum(a.Calls))
	return err
}

// errNotGranted means that no amount was leased. The function of a transaction returns it to roll the transaction back, which has
// written nothing.
var errNotGranted = errors.New("refused")

// Lease implements [caisson.LedgerStore].
func (l *ledger) Lease(ctx context.Context, journal caisson.ID, account, budget string, need, want caisson.Amount, now time.Time) (caisson.Lease, error) {
	if !need.Covers(caisson.Amount{}) || !want.Covers(need) {
		return caisson.Lease{}, caisson.Invalidf("want", "a lease of %s needs 0 <= need <= want", budget)
	}
	var lease caisson.Lease
	err := l.db.write(ctx, func(ctx context.Context, tx *sql.Tx) (err error) {
		if _, closed, err := l.journalState(ctx, tx, journal); err != nil {
			return err
		} else if closed {
			return caisson.Errorf(caisson.Conflict, "journal %s was closed", journal)
		}
		b, err := scanBudget(tx.StmtContext(ctx, l.budgets.get).QueryRowContext(ctx, budget))
		if errors.Is(err, sql.ErrNoRows) {
			// Calls that start now need no lease, because there is no budget. Leases of a deleted budget with the same key are
			// deleted: if the budget is created again, they must not cover calls that started without a lease.
			lease = caisson.Lease{Unlimited: true}
			_, err := tx.StmtContext(ctx, l.leases.removeBudget).ExecContext(ctx, string(journal), budget)
			return err
		}
		if err != nil {
			return err
		}
		if b.Account != account {
			lease = caisson.Lease{Unlimited: true} // The budget belongs to another account, so it does not limit these calls.
			return errNotGranted
		}
		lease, err = l.grant(ctx, tx, journal, b, need, want, now)
		return err
	})
	if errors.Is(err, errNotGranted) {
		err = nil
	}
	return lease, err
}

// grant leases at least need and at most want of the budget b to a journal. It returns errNotGranted if less than need is left.
func (l *ledger) grant(ctx context.Context, tx *sql.Tx, journal caisson.ID, b *caisson.Budget, need, want caisson.Amount, now time.Time) (caisson.Lease, error) {
	start, end := periodBounds(b.Period, now)
	k := periodKey{b.Key, start}
	used, err := scanAmount(tx.StmtContext(ctx, l.budgets.spent).QueryRowContext(ctx, b.Key, start))
	if err != nil {
		return caisson.Lease{}, err
	}
	others, err := scanAmount(tx.StmtContext(ctx, l.leases.held).QueryRowContext(ctx, b.Key, start, string(journal)))
	if err != nil {
		return caisson.Lease{}, err
	}
	own, err := scanAmount(tx.StmtContext(ctx, l.leases.journalHeld).QueryRowContext(ctx, string(journal), b.Key, start))
	if err != nil {
		return caisson.Lease{}, err
	}
	lease := caisson.Lease{Limits: b.Limits, Until: end, Title: budgetTitle(b)}
	// A journal has a debt if its calls cost more than it had leased; the debt is already part of used. The new lease is reduced
	// by the debt, so it may exceed the remaining amount by as much.
	room := b.Limits.Left(used.Plus(others).Plus(own.NonNegative())).Plus(debt(own))
	if !room.Covers(need) {
		lease.Left, lease.Held = b.Limits.Left(used.Plus(others).Plus(own.NonNegative())), others.Plus(own.NonNegative())
		return lease, errNotGranted
	}
	lease.Granted = want.Min(room)
	own = own.Plus(lease.Granted)
	lease.Left, lease.Held = b.Limits.Left(used.Plus(others).Plus(own.NonNegative())), others.Plus(own.NonNegative())
	if _, err := tx.StmtContext(ctx, l.insertJournal).ExecContext(ctx, string(journal)); err != nil {
		return caisson.Lease{}, err
	}
	// An empty lease is also stored: if it is the first one, its time is that from which on calls are deducted from the lease.
	return lease, l.addLease(ctx, tx, journal, k, lease.Granted, now.UnixMicro())
}

// Return implements [caisson.LedgerStore]. It reduces the journal's newest lease of the budget; the leases of other periods are
// not changed. It returns Invalid if a exceeds the newest lease.
func (l *ledger) Return(ctx context.Context, journal caisson.ID, budget string, a caisson.Amount) error {
	if !a.Covers(caisson.Amount{}) {
		return caisson.Invalidf("amount", "the returned amount cannot be negative")
	}
	return l.db.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		k, held := periodKey{budget: budget}, caisson.Amount{}
		err := tx.StmtContext(ctx, l.leases.newest).QueryRowContext(ctx, string(journal), budget).
			Scan(&k.start, (*int64)(&held.USD), &held.Tokens, &held.Calls)
		if errors.Is(err, sql.ErrNoRows) || err == nil && !held.NonNegative().Covers(a) {
			return caisson.Invalidf("amount", "journal %s does not hold that much of %s", journal, budget)
		}
		if err != nil {
			return err
		}
		if err := l.addLease(ctx, tx, journal, k, caisson.Amount{}.Minus(a), 0); err != nil {
			return err
		}
		// The budget of a run is deleted when the run ends. Its empty leases are deleted here, because otherwise they would
		// remain until the journal is closed.
		_, err = tx.StmtContext(ctx, l.leases.removeEmpty).ExecContext(ctx, string(journal), budget, k.start)
		return err
	})
}

// Close implements [caisson.LedgerStore]. It is idempotent. If lost is true, the leases of the journal become losses, which count
// as used.
func (l *ledger) Close(ctx context.Context, journal caisson.ID, lost bool) error {
	return l.db.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		stmts := []*sql.Stmt{l.insertJournal, l.leases.remove, l.closeJournal}
		if lost {
			stmts = []*sql.Stmt{l.insertJournal, l.leases.insertLosses, l.leases.spendLosses, l.leases.remove, l.closeJournal}
		}
		if _, closed, err := l.journalState(ctx, tx, journal); err != nil || closed {
			return err
		}
		for _, stmt := range stmts {
			if _, err := tx.StmtContext(ctx, stmt).ExecContext(ctx, string(journal)); err != nil {
				return err
			}
		}
		return nil
	})
}

// scanAmount reads a row with an amount: dollars, tokens and calls. Without a row it returns the zero amount.
func scanAmount(s scanner) (a caisson.Amount, err error) {
	err = noRows(s.Scan((*int64)(&a.USD), &a.Tokens, &a.Calls))
	return a, err
}

// debt returns the negative numbers of a as positive numbers, and 0 for the others.
func debt(a caisson.Amount) caisson.Amount { return caisson.Amount{}.Minus(a).NonNegative() }
