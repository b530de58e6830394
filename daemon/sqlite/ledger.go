package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
)

// hourMicros is the granularity of the sums in the table usage, in microseconds.
const hourMicros = int64(time.Hour / time.Microsecond)

// ledger implements [caisson.LedgerStore].
type ledger struct {
	db  *db
	now func() time.Time // Returns the current time.

	journal       *sql.Stmt    // Returns the offset of a journal and whether it is closed; for writing transactions.
	offset        *sql.Stmt    // Returns the offset of a journal and whether it is closed; for connections that only read.
	open          *sql.Stmt    // Returns the journals that are not closed.
	insertJournal *sql.Stmt    // Inserts a journal unless it exists.
	advance       *sql.Stmt    // Sets the offset of a journal.
	closeJournal  *sql.Stmt    // Closes a journal.
	call          *sql.Stmt    // Inserts a call unless it exists.
	receipt       *sql.Stmt    // Inserts a receipt, the charge for a call, with its source and reference.
	lineage       *sql.Stmt    // Inserts an ancestor of a run.
	sum           *sql.Stmt    // Adds the values of calls to a row of the table usage.
	position      pagePosition // Finds the start of a page of Calls.

	budgets budgetStmts // The statements about budgets.
	leases  leaseStmts  // The statements about leases.
	prices  priceStmts  // The statements about imported prices.
}

var _ caisson.LedgerStore = (*ledger)(nil)

// newLedger returns the part of the store for the ledger, with its statements prepared by p.
func newLedger(p *preparer, now func() time.Time) *ledger {
	const journal = `SELECT offset, closed FROM journal WHERE id = ?`
	return &ledger{
		db:            p.db,
		now:           now,
		journal:       p.write(journal),
		offset:        p.read(journal),
		open:          p.read(`SELECT id FROM journal WHERE closed = 0 ORDER BY rowid`),
		insertJournal: p.write(`INSERT INTO journal (id, offset, closed) VALUES (?, 0, 0) ON CONFLICT DO NOTHING`),
		advance:       p.write(`UPDATE journal SET offset = ? WHERE id = ?`),
		closeJournal:  p.write(`UPDATE journal SET closed = 1 WHERE id = ?`),
		call: p.write(`INSERT INTO call
			(id, at, account, sandbox, run, session, agent, user, model, failed, estimated, input, output, cache_read, cache_write, cost, doc)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING`),
		receipt: p.write(`INSERT INTO receipt (source, reference, call) VALUES (?, ?, ?)`),
		lineage: p.write(`INSERT INTO lineage (ancestor, account, run) VALUES (?, ?, ?) ON CONFLICT DO NOTHING`),
		sum: p.write(`INSERT INTO usage
			(account, at, sandbox, run, session, agent, user, model, calls, failed, estimated, input, output, cache_read, cache_write, cost)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
			ON CONFLICT DO UPDATE SET calls = calls + excluded.calls, failed = failed + excluded.failed,
				estimated = estimated + excluded.estimated, ` + upsertSums("input", "output", "cache_read", "cache_write", "cost")),
		position: pagePosition{p.read(`SELECT seq FROM call WHERE id = ?1 AND (?2 IS NULL OR account = ?2)`), "after",
			"%.40q is not a call of this list; start from the first page"},
		budgets: newBudgetStmts(p),
		leases:  newLeaseStmts(p),
		prices:  newPriceStmts(p),
	}
}

// Ingest implements [caisson.LedgerStore]. It adds the calls of a part of a journal. Returns Conflict if the journal is closed.
func (l *ledger) Ingest(ctx context.Context, journal caisson.ID, from, to int64, calls []caisson.Call) error {
	if from < 0 || to < from {
		return caisson.Errorf(caisson.Internal, "journal %s cannot be ingested from %d to %d", journal, from, to)
	}
	err := l.db.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		if _, err := tx.StmtContext(ctx, l.insertJournal).ExecContext(ctx, string(journal)); err != nil {
			return err
		}
		at, closed, err := l.journalState(ctx, tx, journal)
		switch {
		case err != nil:
			return err
		case closed:
			return caisson.Errorf(caisson.Conflict, "journal %s was closed", journal)
		case at != from:
			return caisson.Errorf(caisson.Conflict, "journal %s was ingested up to %d, not %d", journal, at, from)
		}
		b := l.newBatch(ctx, tx, journal)
		for i := range calls {
			if err := b.add(ctx, &calls[i]); err != nil {
				return err
			}
		}
		if err := b.finish(ctx); err != nil {
			return err
		}
		_, err = tx.StmtContext(ctx, l.advance).ExecContext(ctx, to, string(journal))
		return err
	})
	if isUnstorable(err) {
		err = caisson.Wrap(err, caisson.Invalid, "a call in journal %s cannot be stored", journal)
	}
	return err
}

// journalState returns the offset up to which a journal was ingested and whether it is closed. For an unknown journal it
// returns 0 and false.
func (l *ledger) journalState(ctx context.Context, tx *sql.Tx, journal caisson.ID) (offset int64, closed bool, err error) {
	err = noRows(tx.StmtContext(ctx, l.journal).QueryRowContext(ctx, string(journal)).Scan(&offset, &closed))
	return offset, closed, err
}

// Offset implements [caisson.LedgerStore]. It returns the offset up to which a journal was ingested; 0 for an unknown journal.
func (l *ledger) Offset(ctx context.Context, journal caisson.ID) (offset int64, err error) {
	var closed bool
	err = l.offset.QueryRowContext(ctx, string(journal)).Scan(&offset, &closed)
	return offset, l.db.explainRow(err, nil)
}

// Open implements [caisson.LedgerStore]. It returns the ids of the journals that are not closed.
func (l *ledger) Open(ctx context.Context) ([]caisson.ID, error) {
	ids, err := readRows(func(s scanner) (id caisson.ID, err error) {
		err = s.Scan((*string)(&id))
		return id, err
	})(l.open.QueryContext(ctx))
	return ids, l.db.explain(err)
}

// batch adds calls to the ledger in one transaction.
type batch struct {
	l             *ledger                       // The ledger to which the calls are added.
	tx            *sql.Tx                       // The transaction of the batch.
	journal       caisson.ID                    // The journal that contains the calls.
	call          *sql.Stmt                     // Inserts a call; ledger.call in tx.
	receipt       *sql.Stmt                     // Inserts the charge for a call; ledger.receipt in tx.
	budgets       map[budgetKey]*sql.NullString // Periods of budgets, once read; not valid for a missing budget.
	shares        map[periodKey]*budgetShare    // Amounts of the calls by budget and period; finish stores them.
	sums          map[sumKey]*caisson.UsageRow  // Sums of the calls by row of the table usage; finish stores them.
	lineageStored map[caisson.Guest]bool        // Runs (Account, Run, Lineage) whose ancestors are already stored.
}

// newBatch returns an empty batch for the calls of a journal, which are added in the transaction tx.
func (l *ledger) newBatch(ctx context.Context, tx *sql.Tx, journal caisson.ID) *batch {
	return &batch{
		l: l, tx: tx, journal: journal, call: tx.StmtContext(ctx, l.call), receipt: tx.StmtContext(ctx, l.receipt),
		budgets: map[budgetKey]*sql.NullString{}, shares: map[periodKey]*budgetShare{}, sums: map[sumKey]*caisson.UsageRow{},
		lineageStored: map[caisson.Guest]bool{},
	}
}

// budgetKey is the key of a budget, such as "run/ID", together with the account whose calls it may limit.
type budgetKey struct{ account, budget string }

// periodKey identifies a budget in one of its periods.
type periodKey struct {
	budget string // Key of the budget.
	start  int64  // Start of the period in microseconds since 1970; 0 for a period that never ends.
}

// budgetShare is the amount that the calls of a batch use of a budget in one period.
type budgetShare struct {
	leasedSince int64          // Time of the journal's first lease in the period, in microseconds since 1970.
	leased      bool           // Whether the journal has a lease in the period; otherwise leasedSince is not valid.
	used        caisson.Amount // Amount of all calls.
	held        caisson.Amount // Amount of the calls from leasedSince on, which is deducted from the lease.
}

// sumKey is the key of a row of the table usage, which has the sums of the calls of one hour.
type sumKey struct {
	account string
	at      int64 // Start of the hour of the calls, in microseconds since 1970.
	sandbox caisson.ID
	run     string
	session string
	agent   string
	user    string // The account's name for the person on whose behalf the run is made.
	model   string
}

// add inserts a call, and adds it to the sums of its hour and to what its budgets have used, unless the call is already stored.
func (b *batch) add(ctx context.Context, c *caisson.Call) error {
	doc, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("encode call %s: %w", c.ID, err)
	}
	at, failed, t := c.At.UnixMicro(), c.Status < 200 || c.Status > 299, c.Tokens
	res, err := b.call.ExecContext(ctx, string(c.ID), at, c.Account, string(c.Sandbox), c.Run, c.Session,
		c.Agent, c.User, c.Model, failed, c.Estimated, t.Input, t.Output, t.CacheRead, t.CacheWrite, int64(c.Cost), string(doc))
	if n, err := affected(res, err); err != nil || n == 0 {
		return err
	}
	seq, err := res.LastInsertId()
	if err != nil {
		return err
	}
	if _, err := b.receipt.ExecContext(ctx, caisson.ChargeSource, c.Reference(c.ID), seq); err != nil {
		return err
	}
	if err := b.addLineage(ctx, c.Guest); err != nil {
		return err
	}
	k := sumKey{c.Account, at - at%hourMicros, c.Sandbox, c.Run, c.Session, c.Agent, c.User, c.Model}
	s := b.sums[k]
	if s == nil {
		s = &caisson.UsageRow{}
		b.sums[k] = s
	}
	s.Calls++
	s.Failed += oneIf(failed)
	s.Estimated += oneIf(c.Estimated)
	s.Tokens = caisson.TokenCount{
		Input: saturatingAdd(s.Tokens.Input, t.Input), Output: saturatingAdd(s.Tokens.Output, t.Output),
		CacheRead: saturatingAdd(s.Tokens.CacheRead, t.CacheRead), CacheWrite: saturatingAdd(s.Tokens.CacheWrite, t.CacheWrite),
	}
	s.Cost = caisson.USD(saturatingAdd(int64(s.Cost), int64(c.Cost)))
	for _, key := range c.Budgets() {
		if err := b.addToBudgets(ctx, key, c); err != nil {
			return err
		}
	}
	return nil
}

// addLineage stores the ancestors of the run of g.
func (b *batch) addLineage(ctx context.Context, g caisson.Guest) error {
	k := caisson.Guest{Account: g.Account, Run: g.Run, Lineage: g.Lineage}
	if g.Lineage == "" || b.lineageStored[k] {
		return nil
	}
	b.lineageStored[k] = true
	for run := range strings.FieldsSeq(g.Lineage) {
		if _, err := b.tx.StmtContext(ctx, b.l.lineage).ExecContext(ctx, run, g.Account, g.Run); err != nil {
			return err
		}
	}
	return nil
}

// oneIf returns 1 if v is true, else 0.
func oneIf(v bool) int64 {
	if v {
		return 1
	}
	return 0
}

// period returns the period of a budget. The result is not valid if the account has no such budget.
func (b *batch) period(ctx context.Context, k budgetKey) (*sql.NullString, error) {
	p := b.budgets[k]
	if p == nil {
		p = &sql.NullString{}
		err := noRows(b.tx.StmtContext(ctx, b.l.budgets.period).QueryRowContext(ctx, k.budget, k.account).Scan(p))
		if err != nil {
			return nil, err
		}
		b.budgets[k] = p
	}
	return p, nil
}

// addToBudgets adds the amount of c to what the batch uses of the budget with the given key, if the budget exists.
func (b *batch) addToBudgets(ctx context.Context, key string, c *caisson.Call) error {
	period, err := b.period(ctx, budgetKey{c.Account, key})
	if err != nil || !period.Valid {
		return err
	}
	start, _ := periodBounds(period.String, c.At)
	k := periodKey{key, start}
	t := b.shares[k]
	if t == nil {
		t = &budgetShare{}
		switch err := b.tx.StmtContext(ctx, b.l.leases.since).QueryRowContext(ctx, string(b.journal), key, start).Scan(&t.leasedSince); {
		case err == nil:
			t.leased = true
		case !errors.Is(err, sql.ErrNoRows):
			return err
		}
		b.shares[k] = t
	}
	t.used = t.used.Plus(c.Amount())
	// If a call started before the first lease of the period, the budget did not exist, so that no amount was leased for the
	// call.
	if t.leased && c.At.UnixMicro() >= t.leasedSince {
		t.held = t.held.Plus(c.Amount())
	}
	return nil
}

// finish adds the calls of the batch to the sums from which usage is reported, and moves their amounts from the leases to the used
// amounts of the budgets.
func (b *batch) finish(ctx context.Context) error {
	sum := b.tx.StmtContext(ctx, b.l.sum)
	for k, s := range b.sums {
		t := s.Tokens
		_, err := sum.ExecContext(ctx, k.account, k.at, string(k.sandbox), k.run, k.session, k.agent, k.user, k.model,
			s.Calls, s.Failed, s.Estimated, t.Input, t.Output, t.CacheRead, t.CacheWrite, int64(s.Cost))
		if err != nil {
			return err
		}
	}
	for k, t := range b.shares {
		if err := b.l.addSpent(ctx, b.tx, k, t.used); err != nil {
			return err
		}
		if !t.leased {
			continue
		}
		if err := b.l.addLease(ctx, b.tx, b.journal, k, caisson.Amount{}.Minus(t.held), 0); err != nil {
			return err
		}
	}
	return nil
}
