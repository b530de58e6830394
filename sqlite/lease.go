package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/caisson-dev/caisson"
)

// leaseStmts are the statements about what journals hold of budgets.
type leaseStmts struct {
	since  *sql.Stmt
	add    *sql.Stmt
	held   *sql.Stmt
	own    *sql.Stmt
	newest *sql.Stmt
	forget *sql.Stmt
	drop   *sql.Stmt
	lose   *sql.Stmt
	lost   *sql.Stmt
	remove *sql.Stmt
}

func newLeaseStmts(p *preparer) leaseStmts {
	const one = ` FROM lease WHERE journal = ? AND budget = ? AND period_start = ?`
	return leaseStmts{
		since: p.write(`SELECT since` + one),
		add: p.write(`INSERT INTO lease (journal, budget, period_start, since, usd, tokens, calls) VALUES (?, ?, ?, ?, ?, ?, ?)
			ON CONFLICT DO UPDATE SET since = iif(excluded.since = 0, since, min(since, excluded.since)), ` + added("usd", "tokens", "calls")),
		// What one holder owes makes no room for others.
		held: p.write(heldQuery + ` AND journal <> ?`),
		own:  p.write(`SELECT usd, tokens, calls` + one),
		newest: p.write(`SELECT period_start, usd, tokens, calls FROM lease WHERE journal = ? AND budget = ?
			ORDER BY since DESC, period_start DESC LIMIT 1`),
		forget: p.write(`DELETE FROM lease WHERE journal = ? AND budget = ?`),
		drop: p.write(`DELETE FROM lease WHERE journal = ?1 AND budget = ?2 AND period_start = ?3 AND usd = 0 AND tokens = 0 AND calls = 0
			AND NOT EXISTS (SELECT 1 FROM budget WHERE key = ?2)`),
		lose: p.write(`INSERT INTO loss (journal, budget, period_start, at, usd, tokens, calls)
			SELECT journal, budget, period_start, since, max(lease.usd, 0), max(lease.tokens, 0), max(lease.calls, 0)
			FROM lease JOIN budget ON budget.key = lease.budget WHERE journal = ?`),
		lost: p.write(`INSERT INTO spent (budget, period_start, usd, tokens, calls)
			SELECT budget, period_start, usd, tokens, calls FROM loss WHERE journal = ?
			ON CONFLICT DO UPDATE SET ` + added("usd", "tokens", "calls")),
		remove: p.write(`DELETE FROM lease WHERE journal = ?`),
	}
}

// heldQuery sums up what all journals hold of a budget in a period.
var heldQuery = `SELECT ` + total("max(usd, 0)") + `, ` + total("max(tokens, 0)") + `, ` + total("max(calls, 0)") + `
	FROM lease WHERE budget = ? AND period_start = ?`

func (l *ledger) addLease(ctx context.Context, tx *sql.Tx, journal caisson.ID, k periodKey, a caisson.Amount, since int64) error {
	_, err := tx.StmtContext(ctx, l.leases.add).ExecContext(ctx, string(journal), k.budget, k.start, since,
		bound(int64(a.USD)), bound(a.Tokens), bound(a.Calls))
	return err
}

// errRefused ends a transaction that has nothing to write.
var errRefused = errors.New("refused")

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
			// Calls that begin now are covered by nothing. What was held before must not be taken for theirs later.
			lease = caisson.Lease{Unlimited: true}
			_, err := tx.StmtContext(ctx, l.leases.forget).ExecContext(ctx, string(journal), budget)
			return err
		}
		if err != nil {
			return err
		}
		if b.Account != account {
			lease = caisson.Lease{Unlimited: true} // what the journal holds is for the owner's calls
			return errRefused
		}
		lease, err = l.grant(ctx, tx, journal, b, need, want, now)
		return err
	})
	if errors.Is(err, errRefused) {
		err = nil
	}
	return lease, err
}

// grant hands out a part of b. The error is errRefused if nothing was.
func (l *ledger) grant(ctx context.Context, tx *sql.Tx, journal caisson.ID, b *caisson.Budget, need, want caisson.Amount, now time.Time) (caisson.Lease, error) {
	start, end := window(b.Period, now)
	k := periodKey{b.Key, start}
	used, err := scanAmount(tx.StmtContext(ctx, l.budgets.spent).QueryRowContext(ctx, b.Key, start))
	if err != nil {
		return caisson.Lease{}, err
	}
	others, err := scanAmount(tx.StmtContext(ctx, l.leases.held).QueryRowContext(ctx, b.Key, start, string(journal)))
	if err != nil {
		return caisson.Lease{}, err
	}
	own, err := scanAmount(tx.StmtContext(ctx, l.leases.own).QueryRowContext(ctx, string(journal), b.Key, start))
	if err != nil {
		return caisson.Lease{}, err
	}
	lease := caisson.Lease{Limits: b.Limits, Until: end, Title: titleOf(b)}
	// A holder that owes something pays it out of what it gets, so it may get that much more.
	room := b.Limits.Left(used.Plus(others).Plus(positive(own))).Plus(owed(own))
	if !room.Covers(need) {
		lease.Left, lease.Held = b.Limits.Left(used.Plus(others).Plus(positive(own))), others.Plus(positive(own))
		return lease, errRefused
	}
	lease.Granted = least(want, room)
	own = own.Plus(lease.Granted)
	lease.Left, lease.Held = b.Limits.Left(used.Plus(others).Plus(positive(own))), others.Plus(positive(own))
	if _, err := tx.StmtContext(ctx, l.begin).ExecContext(ctx, string(journal)); err != nil {
		return caisson.Lease{}, err
	}
	// Even an empty lease is recorded: from now on calls are covered.
	return lease, l.addLease(ctx, tx, journal, k, lease.Granted, now.UnixMicro())
}

// Return implements [caisson.LedgerStore]. It applies to the journal's newest lease of the budget: what is left of older
// ones is void. More than is held is Invalid.
func (l *ledger) Return(ctx context.Context, journal caisson.ID, budget string, a caisson.Amount) error {
	if !a.Covers(caisson.Amount{}) {
		return caisson.Invalidf("amount", "what is returned cannot be negative")
	}
	return l.db.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		k, held := periodKey{budget: budget}, caisson.Amount{}
		err := tx.StmtContext(ctx, l.leases.newest).QueryRowContext(ctx, string(journal), budget).
			Scan(&k.start, (*int64)(&held.USD), &held.Tokens, &held.Calls)
		if errors.Is(err, sql.ErrNoRows) || err == nil && !positive(held).Covers(a) {
			return caisson.Invalidf("amount", "journal %s does not hold that much of %s", journal, budget)
		}
		if err != nil {
			return err
		}
		if err := l.addLease(ctx, tx, journal, k, caisson.Amount{}.Minus(a), 0); err != nil {
			return err
		}
		// Each run has a budget that is removed with its end. Of those nothing should stay for as long as a journal is open.
		_, err = tx.StmtContext(ctx, l.leases.drop).ExecContext(ctx, string(journal), budget, k.start)
		return err
	})
}

// Close implements [caisson.LedgerStore]. Closing twice is the same as closing once.
func (l *ledger) Close(ctx context.Context, journal caisson.ID, lost bool) error {
	return l.db.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		stmts := []*sql.Stmt{l.begin, l.leases.remove, l.end}
		if lost {
			stmts = []*sql.Stmt{l.begin, l.leases.lose, l.leases.lost, l.leases.remove, l.end}
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

// scanAmount reads three numbers; no row is nothing.
func scanAmount(s scanner) (a caisson.Amount, err error) {
	err = noRows(s.Scan((*int64)(&a.USD), &a.Tokens, &a.Calls))
	return a, err
}

// positive returns a with 0 for what is negative.
func positive(a caisson.Amount) caisson.Amount {
	return caisson.Amount{USD: max(a.USD, 0), Tokens: max(a.Tokens, 0), Calls: max(a.Calls, 0)}
}

// owed returns what is negative in a, as positive numbers.
func owed(a caisson.Amount) caisson.Amount { return positive(caisson.Amount{}.Minus(a)) }

// least returns the lesser of each pair of numbers.
func least(a, b caisson.Amount) caisson.Amount {
	return caisson.Amount{USD: min(a.USD, b.USD), Tokens: min(a.Tokens, b.Tokens), Calls: min(a.Calls, b.Calls)}
}
