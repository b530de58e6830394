package sqlite

import (
	"context"
	"database/sql"
)

// chainSchema is the first schema version that has a chain of events.
const chainSchema = 3

// startChain returns the migration step that starts the chain of events and appends the events that are already stored. made
// reports whether the key of the chain is new. If a database without a chain is migrated with a key that is not new, the step
// records a flaw: the key was created for a chain, which must have been removed.
//
// Only a migration starts a chain. A chain that is missing later was removed, see [events.readHead].
func (c chain) startChain(made bool) migrationFinisher {
	return func(ctx context.Context, tx *sql.Tx, from int) error {
		if from >= chainSchema {
			return nil
		}
		h := head{hash: rootHash()}
		if from > 0 && !made {
			h.flaw = "the audit log was started again although its key had been used before: earlier events may have been changed"
		}
		for {
			page, err := readRows(scanStoredEvent)(tx.QueryContext(ctx,
				`SELECT seq, at, account, subject, doc, hash FROM event WHERE seq > ? ORDER BY seq LIMIT ?`, h.seq, trimBatch))
			if err != nil {
				return err
			}
			for i := range page {
				if err := c.appendStored(ctx, tx, &h, &page[i]); err != nil {
					return err
				}
			}
			if len(page) == 0 {
				break
			}
		}
		var newest int64
		if err := tx.QueryRowContext(ctx, selectNewest).Scan(&newest); err != nil {
			return err
		}
		if err := c.coverTrimmed(ctx, tx, &h, newest); err != nil {
			return err
		}
		c.sealHead(&h)
		_, err := tx.ExecContext(ctx, replaceHead, h.seq, h.hash, h.flaw, h.mac)
		return err
	}
}

// appendStored appends the event l, which is already stored, to the chain that ends with h, and updates h.
func (c chain) appendStored(ctx context.Context, tx *sql.Tx, h *head, l *storedEvent) error {
	if err := c.coverTrimmed(ctx, tx, h, l.seq-1); err != nil {
		return err
	}
	h.seq, h.hash = l.seq, c.next(h.hash, l)
	_, err := tx.ExecContext(ctx, `UPDATE event SET hash = ? WHERE seq = ?`, h.hash, h.seq)
	return err
}

// coverTrimmed records the events from the one after h up to last as a gap, and moves h to the end of the gap: these events were
// trimmed before the chain existed. If there are none, it does nothing.
func (c chain) coverTrimmed(ctx context.Context, tx *sql.Tx, h *head, last int64) error {
	if last <= h.seq {
		return nil
	}
	g := gap{first: h.seq + 1, last: last, hash: h.hash}
	c.sealGap(&g)
	h.seq = last
	_, err := tx.ExecContext(ctx, insertGap, g.first, g.last, g.hash, g.mac)
	return err
}

// checkHead reads the head of the chain. It logs an error if the head shows that the record of events was tampered with.
func (s *events) checkHead(ctx context.Context) error {
	return s.db.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		_, err := s.readHead(ctx, tx) // readHead logs any problem that it finds.
		return err
	})
}
