package sqlite

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"fmt"
	"log/slog"

	"github.com/caisson-dev/caisson"
)

// events implements [caisson.EventStore].
type events struct {
	db      *db
	chain   chain // Computes the hashes of events.
	log     *slog.Logger
	insert  *sql.Stmt // Inserts an event.
	head    *sql.Stmt // Returns the head of the chain.
	newest  *sql.Stmt // Returns the greatest number that an event ever had; for writing transactions.
	setHead *sql.Stmt // Stores the head of the chain.
	all     *sql.Stmt // Returns events of all accounts.
	account *sql.Stmt // Returns events of one account.
	subject *sql.Stmt // Returns events of one subject of an account.
	last    *sql.Stmt // Returns the greatest number that an event ever had; for connections that only read.
	trim    trimStmts // The statements for trimming events.
}

// The queries of [events.After]: for all accounts, for one account, and for one subject of an account. The parameters ?1 to ?4
// are seq, subject, limit and account. Only the engine queries all accounts, and rarely for one subject: there is no index for
// one subject in all accounts, because each index makes appending slower.
const (
	eventsOfAll     = `SELECT seq, doc FROM event WHERE seq > ?1 AND (?2 = '' OR subject = ?2) ORDER BY seq LIMIT ?3`
	eventsOfAccount = `SELECT seq, doc FROM event WHERE account = ?4 AND seq > ?1 AND ?2 = '' ORDER BY seq LIMIT ?3`
	eventsOfSubject = `SELECT seq, doc FROM event WHERE account = ?4 AND subject = ?2 AND seq > ?1 ORDER BY seq LIMIT ?3`
)

// newEvents returns the part of the store for events, with its statements prepared by p.
func newEvents(p *preparer, c chain, log *slog.Logger) *events {
	return &events{
		db:      p.db,
		chain:   c,
		log:     log,
		insert:  p.write(`INSERT INTO event (seq, at, account, subject, doc, hash) VALUES (?, ?, ?, ?, ?, ?)`),
		head:    p.write(selectHead),
		newest:  p.write(selectNewest),
		setHead: p.write(replaceHead),
		all:     p.read(eventsOfAll),
		account: p.read(eventsOfAccount),
		subject: p.read(eventsOfSubject),
		last:    p.read(`SELECT seq FROM sqlite_sequence WHERE name = 'event'`),
		trim:    newTrimStmts(p),
	}
}

// scanStoredEvent reads the columns seq, at, account, subject, doc and hash of an event.
func scanStoredEvent(s scanner) (l storedEvent, err error) {
	err = s.Scan(&l.seq, &l.at, &l.account, &l.subject, &l.doc, &l.hash)
	return l, err
}

// Append implements [caisson.EventStore].
func (s *events) Append(ctx context.Context, e *caisson.Event) error {
	return s.AppendAll(ctx, []*caisson.Event{e})
}

// AppendAll implements [caisson.EventStore].
func (s *events) AppendAll(ctx context.Context, list []*caisson.Event) error {
	if len(list) == 0 {
		return nil
	}
	links := make([]storedEvent, len(list))
	for i, e := range list {
		doc, err := json.Marshal(e)
		if err != nil {
			return fmt.Errorf("encode event: %w", err)
		}
		links[i] = storedEvent{at: e.At.UnixMicro(), account: e.Account, subject: e.Subject, doc: doc}
	}
	err := s.db.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		h, err := s.readHead(ctx, tx)
		if err != nil {
			return err
		}
		for i := range links {
			l := &links[i]
			l.seq = h.seq + 1
			l.hash = s.chain.next(h.hash, l)
			if _, err := tx.StmtContext(ctx, s.insert).ExecContext(ctx, l.seq, l.at, l.account, l.subject, string(l.doc), l.hash); err != nil {
				return err
			}
			h.seq, h.hash = l.seq, l.hash
		}
		return s.storeHead(ctx, tx, h)
	})
	if err != nil {
		return err
	}
	for i, e := range list {
		e.Seq = links[i].seq
	}
	return nil
}

// selectNewest returns the greatest number that an event ever had.
const selectNewest = `SELECT max(coalesce((SELECT max(seq) FROM event), 0), coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'event'), 0))`

// replaceHead stores the head of the chain.
const replaceHead = `REPLACE INTO event_head (id, seq, hash, flaw, mac) VALUES (1, ?, ?, ?, ?)`

// readHead returns the head of the chain. If the head or the last events were tampered with, readHead returns a head with a flaw
// instead of an error: the daemon can continue to store events, and later verifications still report the tampering.
func (s *events) readHead(ctx context.Context, tx *sql.Tx) (head, error) {
	h, found, err := scanHead(tx.StmtContext(ctx, s.head).QueryRowContext(ctx))
	if err != nil {
		return head{}, err
	}
	var newest int64
	if err := tx.StmtContext(ctx, s.newest).QueryRowContext(ctx).Scan(&newest); err != nil {
		return head{}, err
	}
	broken := ""
	switch {
	case !found:
		broken = "the end of the audit log was missing after event %d, when it was continued"
	case !s.chain.validHead(h):
		broken = "the end of the audit log at event %d, or the key, had been changed when the log was continued"
	case newest != h.seq:
		broken = "events at the end of the audit log had been removed or added before it was continued after event %d"
	default:
		return h, nil
	}
	if len(h.hash) != sha256.Size {
		h.hash = rootHash()
	}
	h.seq = newest
	return s.withFlaw(ctx, h, fmt.Sprintf(broken, newest)), nil
}

// withFlaw logs a flaw and returns h with it. If h has a flaw already, that is kept, because the first flaw is the most
// informative.
func (s *events) withFlaw(ctx context.Context, h head, flaw string) head {
	if h.flaw == "" {
		h.flaw = flaw
	}
	s.log.ErrorContext(ctx, "the audit log was tampered with; see caisson audit verify", "what", flaw)
	return h
}

// storeHead stores the head of the chain.
func (s *events) storeHead(ctx context.Context, tx *sql.Tx, h head) error {
	s.chain.sealHead(&h)
	_, err := tx.StmtContext(ctx, s.setHead).ExecContext(ctx, h.seq, h.hash, h.flaw, h.mac)
	return err
}

// After implements [caisson.EventStore].
func (s *events) After(ctx context.Context, in caisson.Scope, subject string, seq int64, limit int) ([]caisson.Event, error) {
	if limit < 1 {
		return nil, caisson.Invalidf("limit", "ask for at least one event")
	}
	stmt, args := s.all, []any{seq, subject, limit}
	if account := accountParam(in); account.Valid {
		stmt, args = s.account, append(args, account)
		if subject != "" {
			stmt = s.subject
		}
	}
	page, err := readRows(func(row scanner) (e caisson.Event, err error) {
		var seq int64
		var doc sql.RawBytes
		if err := row.Scan(&seq, &doc); err != nil {
			return e, err
		}
		if err := json.Unmarshal(doc, &e); err != nil {
			return e, fmt.Errorf("decode stored event %d: %w", seq, err)
		}
		e.Seq = seq
		return e, nil
	})(stmt.QueryContext(ctx, args...))
	return page, s.db.explain(err)
}

// Last implements [caisson.EventStore]. Trimming does not lower the result.
func (s *events) Last(ctx context.Context) (seq int64, err error) {
	err = s.last.QueryRowContext(ctx).Scan(&seq)
	return seq, s.db.explainRow(err, nil)
}
