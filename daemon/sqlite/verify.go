package sqlite

import (
	"context"
	"crypto/hmac"
	"database/sql"
	"fmt"

	"github.com/caisson-dev/caisson"
)

// chainWalk follows the chain of events from its start and compares it with the stored events and the records of trimmed events.
type chainWalk struct {
	chain     chain // Computes the hashes of events.
	gaps      []gap // Records of trimmed events that are not checked yet, in order.
	at        head  // Position: number and hash of the last event that was checked, or that belongs to a checked gap.
	notedHead *head // Head of the chain that a user noted earlier; nil if there is none, or once it was compared.
	first     int64 // Number of the first stored event; 0 before the walk has reached it.
	count     int64 // Number of stored events that were checked.
}

// step checks the stored event l and the gaps of trimmed events before l. It returns a description of the first problem, or "".
func (w *chainWalk) step(l *storedEvent) (problem string) {
	for len(w.gaps) > 0 && w.gaps[0].first <= l.seq {
		if problem := w.skip(); problem != "" {
			return problem
		}
	}
	switch {
	case l.seq <= w.at.seq:
		return fmt.Sprintf("event %d was added where events had been trimmed", l.seq)
	case l.seq != w.at.seq+1:
		return missing(w.at.seq+1, l.seq-1)
	case !hmac.Equal(l.hash, w.chain.next(w.at.hash, l)):
		return fmt.Sprintf("event %d is not what was written", l.seq)
	}
	if w.first == 0 {
		w.first = l.seq
	}
	w.count++
	return w.pass(l.seq, l.hash)
}

// skip checks the next gap of trimmed events. It returns a description of a problem with the gap, or "".
func (w *chainWalk) skip() (problem string) {
	g := w.gaps[0]
	w.gaps = w.gaps[1:]
	switch {
	case !w.chain.validGap(g):
		return fmt.Sprintf("the record that the events %d to %d were trimmed was changed", g.first, g.last)
	case g.first <= w.at.seq:
		return fmt.Sprintf("the record of trimming the events %d to %d is out of place", g.first, g.last)
	case g.first != w.at.seq+1:
		return missing(w.at.seq+1, g.first-1)
	}
	return w.pass(g.last, g.hash)
}

// compareWithHead checks the gaps of trimmed events that the walk has not passed, and compares the position of the walk with h,
// the stored head. It returns a description of the first problem, or "".
func (w *chainWalk) compareWithHead(h head) (problem string) {
	for len(w.gaps) > 0 {
		if problem := w.skip(); problem != "" {
			return problem
		}
	}
	switch {
	case w.at.seq < h.seq:
		return missing(w.at.seq+1, h.seq)
	case w.at.seq > h.seq:
		return fmt.Sprintf("the events from %d on were added", h.seq+1)
	case !hmac.Equal(w.at.hash, h.hash):
		return fmt.Sprintf("event %d is not the last one that was written", h.seq)
	case w.notedHead != nil && w.notedHead.seq > h.seq:
		return fmt.Sprintf("the audit log ends at event %d, before the noted head at event %d: it was put back to an earlier one", h.seq, w.notedHead.seq)
	}
	return ""
}

// pass moves the position to the event with the number seq and the given hash. If a user noted the head of the
// chain when this event was the last one, it compares the hashes. It returns a description of a problem, or "".
func (w *chainWalk) pass(seq int64, hash []byte) (problem string) {
	w.at.seq, w.at.hash = seq, hash
	if w.notedHead != nil && w.notedHead.seq == seq {
		if !hmac.Equal(w.notedHead.hash, hash) {
			return fmt.Sprintf("event %d differs from the event at the noted head: the audit log was replaced", seq)
		}
		w.notedHead = nil
	}
	return ""
}

// missing returns the description of the problem that the events with the numbers first to last are missing.
func missing(first, last int64) string {
	if first == last {
		return fmt.Sprintf("event %d is missing", first)
	}
	return fmt.Sprintf("the events %d to %d are missing", first, last)
}

// Verify implements [caisson.EventStore]. It reads one state of the database and does not block writers. noted is the head of
// the chain, as caisson audit head printed it when a user noted it earlier, or "".
func (s *events) Verify(ctx context.Context, noted string) (*caisson.AuditReport, error) {
	w := &chainWalk{chain: s.chain, at: head{hash: rootHash()}}
	if noted != "" {
		h, err := parseHead(noted)
		if err != nil {
			return nil, err
		}
		w.notedHead = &h
	}
	tx, err := s.db.reader.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return nil, s.db.explain(err)
	}
	defer tx.Rollback()
	h, problem, err := s.verifyAll(ctx, tx, w)
	if err != nil {
		return nil, s.db.explain(err)
	}
	r := &caisson.AuditReport{Events: w.count, First: w.first, Last: h.seq, Problem: problem}
	if problem == "" || s.chain.validHead(h) {
		r.Head = h.String()
	}
	if problem == "" && w.notedHead != nil {
		return nil, caisson.Errorf(caisson.NotFound, "event %d, whose hash this was, has been trimmed since and cannot be checked. Note heads more often than events expire", w.notedHead.seq)
	}
	return r, nil
}

// verifyAll walks w along the whole chain. It returns the stored head, and a description of the first problem, or "".
func (s *events) verifyAll(ctx context.Context, tx *sql.Tx, w *chainWalk) (h head, problem string, err error) {
	h, found, err := scanHead(tx.QueryRowContext(ctx, selectHead))
	switch {
	case err != nil:
		return head{}, "", err
	case !found:
		return head{}, "the end of the audit log is missing", nil
	case !s.chain.validHead(h):
		return h, "the end of the audit log was changed, or the key is not the one that it was written with", nil
	case h.flaw != "":
		return h, h.flaw, nil
	}
	if w.notedHead != nil && w.notedHead.seq == 0 {
		if problem := w.pass(0, rootHash()); problem != "" {
			return h, problem, nil
		}
	}
	w.gaps, err = readRows(scanGap)(tx.QueryContext(ctx, `SELECT first, last, hash, mac FROM event_gap ORDER BY last`))
	if err != nil {
		return head{}, "", err
	}
	rows, err := tx.QueryContext(ctx, `SELECT seq, at, account, subject, doc, hash FROM event ORDER BY seq`)
	if err != nil {
		return head{}, "", err
	}
	defer rows.Close()
	for rows.Next() {
		l, err := scanStoredEvent(rows)
		if err != nil {
			return head{}, "", err
		}
		if problem := w.step(&l); problem != "" {
			return h, problem, nil
		}
	}
	if err := rows.Err(); err != nil {
		return head{}, "", err
	}
	return h, w.compareWithHead(h), nil
}

// selectHead returns the columns of the head of the chain.
const selectHead = `SELECT seq, hash, flaw, mac FROM event_head`

// scanHead reads the columns seq, hash, flaw and mac of the head of the chain; found is false if there is no row.
func scanHead(row scanner) (h head, found bool, err error) {
	err = row.Scan(&h.seq, &h.hash, &h.flaw, &h.mac)
	return h, err == nil, noRows(err)
}

// scanGap reads the columns first, last, hash and mac of a gap.
func scanGap(s scanner) (g gap, err error) {
	err = s.Scan(&g.first, &g.last, &g.hash, &g.mac)
	return g, err
}
