package sqlite

import (
	"context"
	"crypto/hmac"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// trimBatch is the number of rows that one transaction trims at most, so that other writers are not blocked for long.
const trimBatch = 1000

// insertGap inserts a gap: the record that the events with the numbers first to last were trimmed.
const insertGap = `INSERT INTO event_gap (first, last, hash, mac) VALUES (?, ?, ?, ?)`

// trimStmts are the statements for trimming events: removing old ones. A gap is the record of a range of trimmed events.
type trimStmts struct {
	find      *sql.Stmt // Returns the first and the last number of the next batch of events to trim; only reads.
	old       *sql.Stmt // Returns the events to trim in a range of numbers.
	hash      *sql.Stmt // Returns the hash of an event.
	remove    *sql.Stmt // Deletes the events in a range of numbers.
	gapBefore *sql.Stmt // Returns the gap whose last trimmed event has a given number.
	gapAfter  *sql.Stmt // Returns the gap whose first trimmed event has a given number.
	removeGap *sql.Stmt // Deletes the gap whose first trimmed event has a given number.
	insertGap *sql.Stmt // Inserts a gap, the record that a range of events was trimmed.
}

// newTrimStmts prepares the statements for trimming events.
func newTrimStmts(p *preparer) trimStmts {
	return trimStmts{
		find:      p.read(`SELECT min(seq), max(seq) FROM (SELECT seq FROM event WHERE at < ?1 ORDER BY seq LIMIT ?2)`),
		old:       p.write(`SELECT seq, at, account, subject, doc, hash FROM event WHERE seq BETWEEN ?1 AND ?2 AND at < ?3 ORDER BY seq`),
		hash:      p.write(`SELECT hash FROM event WHERE seq = ?`),
		remove:    p.write(`DELETE FROM event WHERE seq BETWEEN ? AND ?`),
		gapBefore: p.write(`SELECT first, last, hash, mac FROM event_gap WHERE last = ?`),
		gapAfter:  p.write(`SELECT first, last, hash, mac FROM event_gap WHERE first = ?`),
		removeGap: p.write(`DELETE FROM event_gap WHERE first = ?`),
		insertGap: p.write(insertGap),
	}
}

// Trim implements [caisson.EventStore]. Each batch is a separate transaction: after an error some old events may
// remain, and removed reports how many were removed.
//
// Events are verified before they are removed. Otherwise an attacker could change the time of an event to an earlier one, and
// the event would be removed together with the evidence of the change.
func (s *events) Trim(ctx context.Context, before time.Time) (removed int64, err error) {
	for {
		// A read-only connection finds the events: this takes longer than removing them, and must not block other writes.
		var from, to sql.NullInt64
		if err := s.trim.find.QueryRowContext(ctx, before.UnixMicro(), trimBatch).Scan(&from, &to); err != nil {
			return removed, s.db.explain(err)
		}
		if !from.Valid {
			return removed, nil
		}
		var n int64
		err := s.db.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
			old, err := readRows(scanStoredEvent)(tx.StmtContext(ctx, s.trim.old).QueryContext(ctx, from, to, before.UnixMicro()))
			n = int64(len(old))
			if err != nil {
				return err
			}
			return s.removeAll(ctx, tx, old)
		})
		if err != nil {
			return removed, err
		}
		removed += n
	}
}

// removeAll removes events, separately for each sequence of events with consecutive numbers. If a sequence was tampered with, it
// stores a head with a flaw.
func (s *events) removeAll(ctx context.Context, tx *sql.Tx, old []storedEvent) error {
	for len(old) > 0 {
		n := 1
		for n < len(old) && old[n].seq == old[n-1].seq+1 {
			n++
		}
		flaw, err := s.removeSequence(ctx, tx, old[:n])
		if err != nil {
			return err
		}
		if flaw != "" {
			h, err := s.readHead(ctx, tx)
			if err != nil {
				return err
			}
			if err := s.storeHead(ctx, tx, s.withFlaw(ctx, h, flaw)); err != nil {
				return err
			}
		}
		old = old[n:]
	}
	return nil
}

// removeSequence removes events with consecutive numbers and records in a gap that they were trimmed. flaw describes a problem
// with the events, or is "". If there is a problem, no gap is recorded.
func (s *events) removeSequence(ctx context.Context, tx *sql.Tx, run []storedEvent) (flaw string, err error) {
	g := gap{first: run[0].seq, last: run[len(run)-1].seq}
	if _, err := tx.StmtContext(ctx, s.trim.remove).ExecContext(ctx, g.first, g.last); err != nil {
		return "", err
	}
	before, isGap, err := s.gapAt(ctx, tx, s.trim.gapBefore, g.first-1)
	if err != nil {
		return "", err
	}
	prev := before.hash
	switch {
	case isGap && !s.chain.validGap(before):
		return fmt.Sprintf("the record that the events before %d were trimmed had been changed", g.first), nil
	case g.first == 1:
		prev = rootHash()
	case !isGap:
		err := tx.StmtContext(ctx, s.trim.hash).QueryRowContext(ctx, g.first-1).Scan(&prev)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return "", err
		}
	}
	for i := range run {
		if sum := s.chain.next(prev, &run[i]); !hmac.Equal(sum, run[i].hash) {
			return fmt.Sprintf("event %d had been changed before it was trimmed", run[i].seq), nil
		}
		prev = run[i].hash
	}
	g.hash = prev
	if isGap {
		g.first = before.first
	}
	return s.mergeGap(ctx, tx, g, isGap)
}

// mergeGap stores the gap g after merging it with the gap that directly follows it. continues means that g already includes the
// gap directly before it, whose record is replaced. flaw describes a problem with the gap that follows, or is "".
func (s *events) mergeGap(ctx context.Context, tx *sql.Tx, g gap, continues bool) (flaw string, err error) {
	after, isGap, err := s.gapAt(ctx, tx, s.trim.gapAfter, g.last+1)
	if err != nil {
		return "", err
	}
	if isGap {
		if !s.chain.validGap(after) {
			return fmt.Sprintf("the record that the events from %d on were trimmed had been changed", after.first), nil
		}
		if _, err := tx.StmtContext(ctx, s.trim.removeGap).ExecContext(ctx, after.first); err != nil {
			return "", err
		}
		g.last, g.hash = after.last, after.hash
	}
	if continues {
		if _, err := tx.StmtContext(ctx, s.trim.removeGap).ExecContext(ctx, g.first); err != nil {
			return "", err
		}
	}
	s.chain.sealGap(&g)
	_, err = tx.StmtContext(ctx, s.trim.insertGap).ExecContext(ctx, g.first, g.last, g.hash, g.mac)
	return "", err
}

// gapAt returns the record of the trimmed events that end with the number seq, if stmt is gapBefore, or begin with it, if stmt is
// gapAfter, and reports whether there is one.
func (s *events) gapAt(ctx context.Context, tx *sql.Tx, stmt *sql.Stmt, seq int64) (g gap, found bool, err error) {
	g, err = scanGap(tx.StmtContext(ctx, stmt).QueryRowContext(ctx, seq))
	return g, err == nil, noRows(err)
}
