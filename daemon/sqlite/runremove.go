package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/caisson-dev/caisson"
)

// Maximum numbers of runs and of events that one transaction removes, so that other writers are not blocked for long.
const (
	removeRunsBatch   = 50  // maximum number of runs that one transaction removes
	removeEventsBatch = 250 // maximum number of events that one transaction removes
)

// runRemovalStmts are the statements for removing runs, for writing transactions. The position of a removed run in lists is
// recorded in the table run_gone, so that a listing can continue there. Its column cleared is set when the events are removed.
type runRemovalStmts struct {
	find          *sql.Stmt // Returns a run by ID and account.
	old           *sql.Stmt // Returns runs that ended before a time.
	remove        *sql.Stmt // Deletes a run without its events.
	recordRemoved *sql.Stmt // Inserts the record of a removed run.
	pruneRemoved  *sql.Stmt // Deletes the oldest records of removed runs whose events are deleted.

	nextUncleared *sql.Stmt // Returns the oldest record of a removed run that still has events.
	clear         *sql.Stmt // Deletes a batch of events of a run, the oldest first.
	setCleared    *sql.Stmt // Records that the events of a removed run are deleted.
}

// runsOld finds runs that ended before a time, in the order in which they ended.
const runsOld = `SELECT seq, id, account FROM run WHERE ended_at < ? ORDER BY ended_at, seq LIMIT ?`

// newRunRemovalStmts prepares the statements for the removal of runs.
func newRunRemovalStmts(p *preparer) runRemovalStmts {
	return runRemovalStmts{
		find:          p.write(`SELECT seq, id, account FROM run WHERE id = ?1 AND (?2 IS NULL OR account = ?2)`),
		old:           p.write(runsOld),
		remove:        p.write(`DELETE FROM run WHERE seq = ?`),
		recordRemoved: p.write(`INSERT INTO run_gone (id, account, seq, cleared) VALUES (?, ?, ?, 0)`),
		pruneRemoved:  p.write(`DELETE FROM run_gone WHERE n <= ? AND cleared = 1`),
		nextUncleared: p.write(`SELECT n, seq FROM run_gone WHERE cleared = 0 ORDER BY n LIMIT 1`),
		// Events of a run are numbered without gaps, so this deletes at most ?2 of them.
		clear: p.write(`DELETE FROM run_event WHERE run = ?1 AND
			seq < (SELECT min(seq) FROM run_event WHERE run = ?1) + ?2`),
		setCleared: p.write(`UPDATE run_gone SET cleared = 1 WHERE n = ?`),
	}
}

// removedRun identifies a run that is being removed.
type removedRun struct {
	seq     int64
	id      string
	account string
}

// Delete implements [caisson.RunStore]. It removes the run at once, and then its events in batches.
func (s *runs) Delete(ctx context.Context, in caisson.Scope, id caisson.ID) error {
	err := s.db.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		gone, err := readRows(scanRemovedRun)(tx.StmtContext(ctx, s.removal.find).QueryContext(ctx, string(id), accountParam(in)))
		if err == nil && len(gone) == 0 {
			return s.missing(string(id))
		}
		if err != nil {
			return err
		}
		return s.remove(ctx, tx, gone)
	})
	if err != nil {
		return err
	}
	// An error is ignored: readers cannot find the events any more, and the next Trim tries again to remove the events and
	// returns its error.
	_ = s.clear(ctx)
	return nil
}

// Trim implements [caisson.RunStore]. If it returns an error, ids contains the runs that were removed before the error.
func (s *runs) Trim(ctx context.Context, before time.Time, limit int) (ids []caisson.ID, err error) {
	if limit < 1 {
		return nil, caisson.Invalidf("limit", "must be greater than 0")
	}
	for len(ids) < limit {
		var gone []removedRun
		err := s.db.write(ctx, func(ctx context.Context, tx *sql.Tx) (err error) {
			n := min(limit-len(ids), removeRunsBatch)
			gone, err = readRows(scanRemovedRun)(tx.StmtContext(ctx, s.removal.old).QueryContext(ctx, before.UnixMicro(), n))
			if err != nil {
				return err
			}
			return s.remove(ctx, tx, gone)
		})
		if err != nil {
			return ids, err
		}
		if len(gone) == 0 {
			break
		}
		for _, g := range gone {
			ids = append(ids, caisson.ID(g.id))
		}
	}
	return ids, s.clear(ctx)
}

// scanRemovedRun reads the columns seq, id and account of a run.
func scanRemovedRun(s scanner) (g removedRun, err error) {
	err = s.Scan(&g.seq, &g.id, &g.account)
	return g, err
}

// remove deletes runs without their events. It records that their events must still be removed, and the positions of the runs in
// lists of runs, so that a client that has listed a part can continue after a run that is gone.
func (s *runs) remove(ctx context.Context, tx *sql.Tx, gone []removedRun) error {
	remove, remember := tx.StmtContext(ctx, s.removal.remove), tx.StmtContext(ctx, s.removal.recordRemoved)
	for _, g := range gone {
		if _, err := remove.ExecContext(ctx, g.seq); err != nil {
			return err
		}
		if _, err := remember.ExecContext(ctx, g.id, g.account, g.seq); err != nil {
			return err
		}
	}
	return nil
}

// clear removes the events of all removed runs whose events still exist, including runs that an earlier daemon has removed.
func (s *runs) clear(ctx context.Context) error {
	for done := false; !done; {
		err := s.db.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
			var n, seq int64
			err := tx.StmtContext(ctx, s.removal.nextUncleared).QueryRowContext(ctx).Scan(&n, &seq)
			if errors.Is(err, sql.ErrNoRows) {
				done = true
				return nil
			}
			if err != nil {
				return err
			}
			removed, err := affected(tx.StmtContext(ctx, s.removal.clear).ExecContext(ctx, seq, removeEventsBatch))
			if err != nil || removed == removeEventsBatch {
				return err
			}
			if _, err := tx.StmtContext(ctx, s.removal.setCleared).ExecContext(ctx, n); err != nil {
				return err
			}
			_, err = tx.StmtContext(ctx, s.removal.pruneRemoved).ExecContext(ctx, n-maxRemovedPositions)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
