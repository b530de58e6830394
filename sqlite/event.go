package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/caisson-dev/caisson"
)

// trimBatch is how many rows one transaction trims: other writers get their turn in between.
const trimBatch = 1000

// events is a [caisson.EventStore].
type events struct {
	db      *db
	insert  *sql.Stmt
	all     *sql.Stmt // by seq
	account *sql.Stmt // by account and seq
	subject *sql.Stmt // by account, subject and seq
	last    *sql.Stmt
	old     *sql.Stmt
	remove  *sql.Stmt
}

// What After asks: seq, subject, limit and account are ?1 to ?4. Of all accounts only the engine asks, and hardly ever for
// one subject: that has no index, as each index makes appending slower.
const (
	eventsOfAll     = `SELECT seq, doc FROM event WHERE seq > ?1 AND (?2 = '' OR subject = ?2) ORDER BY seq LIMIT ?3`
	eventsOfAccount = `SELECT seq, doc FROM event WHERE account = ?4 AND seq > ?1 AND ?2 = '' ORDER BY seq LIMIT ?3`
	eventsOfSubject = `SELECT seq, doc FROM event WHERE account = ?4 AND subject = ?2 AND seq > ?1 ORDER BY seq LIMIT ?3`
)

func newEvents(p *preparer) *events {
	return &events{
		db:      p.db,
		insert:  p.write(`INSERT INTO event (at, account, subject, doc) VALUES (?, ?, ?, ?)`),
		all:     p.read(eventsOfAll),
		account: p.read(eventsOfAccount),
		subject: p.read(eventsOfSubject),
		last:    p.read(`SELECT seq FROM sqlite_sequence WHERE name = 'event'`),
		old:     p.read(`SELECT min(seq), max(seq) FROM (SELECT seq FROM event WHERE at < ?1 ORDER BY seq LIMIT ?2)`),
		remove:  p.write(`DELETE FROM event WHERE seq BETWEEN ?1 AND ?2 AND at < ?3`),
	}
}

// Append implements [caisson.EventStore].
func (s *events) Append(ctx context.Context, e *caisson.Event) error {
	doc, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("encode event: %w", err)
	}
	var seq int64
	err = s.db.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		res, err := tx.StmtContext(ctx, s.insert).ExecContext(ctx, e.At.UnixMicro(), e.Account, e.Subject, string(doc))
		if err != nil {
			return err
		}
		seq, err = res.LastInsertId()
		return err
	})
	if err == nil {
		e.Seq = seq
	}
	return err
}

// After implements [caisson.EventStore].
func (s *events) After(ctx context.Context, in caisson.Scope, subject string, seq int64, limit int) ([]caisson.Event, error) {
	if limit < 1 {
		return nil, caisson.Invalidf("limit", "ask for at least one event")
	}
	stmt, args := s.all, []any{seq, subject, limit}
	if account := accountOf(in); account.Valid {
		stmt, args = s.account, append(args, account)
		if subject != "" {
			stmt = s.subject
		}
	}
	rows, err := stmt.QueryContext(ctx, args...)
	if err != nil {
		return nil, s.db.explain(err)
	}
	defer rows.Close()
	var page []caisson.Event
	for rows.Next() {
		var seq int64
		var doc sql.RawBytes
		if err := rows.Scan(&seq, &doc); err != nil {
			return nil, s.db.explain(err)
		}
		var e caisson.Event
		if err := json.Unmarshal(doc, &e); err != nil {
			return nil, fmt.Errorf("decode stored event %d: %w", seq, err)
		}
		e.Seq = seq
		page = append(page, e)
	}
	return page, s.db.explain(rows.Err())
}

// Last implements [caisson.EventStore]. Trimming does not lower it.
func (s *events) Last(ctx context.Context) (seq int64, err error) {
	err = s.last.QueryRowContext(ctx).Scan(&seq)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	return seq, s.db.explain(err)
}

// Trim implements [caisson.EventStore]. Each batch is a transaction of its own: an error may leave older events behind,
// and removed says how many have gone.
func (s *events) Trim(ctx context.Context, before time.Time) (removed int64, err error) {
	for {
		// The reader looks for them, because looking takes longer than removing.
		var from, to sql.NullInt64
		if err := s.old.QueryRowContext(ctx, before.UnixMicro(), trimBatch).Scan(&from, &to); err != nil {
			return removed, s.db.explain(err)
		}
		if !from.Valid {
			return removed, nil
		}
		n, err := s.db.writeOne(ctx, s.remove, from, to, before.UnixMicro())
		if err != nil {
			return removed, err
		}
		removed += n
	}
}
