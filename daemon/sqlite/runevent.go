package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"

	"github.com/caisson-dev/caisson"
)

// runEventStmts are the statements about events of runs. The first group is prepared on the connection that writes, the second on
// those that only read.
type runEventStmts struct {
	newest *sql.Stmt // Returns the row number of a run and the number of its last event.
	insert *sql.Stmt // Inserts an event.

	find  *sql.Stmt // Returns the row number (seq) of a run in a scope.
	after *sql.Stmt // Returns the events of a run whose numbers are greater than a given one.
	last  *sql.Stmt // Returns the row number of a run and the number of its last event.
}

// runLast returns the row number of a run and the number of its last event, or 0 if it has none. runEventsAfter returns the
// events of a run whose numbers are greater than a number.
const (
	runLast        = `SELECT seq, coalesce((SELECT max(e.seq) FROM run_event AS e WHERE e.run = run.seq), 0) FROM run WHERE id = ?`
	runEventsAfter = `SELECT seq, doc FROM run_event WHERE run = ? AND seq > ? ORDER BY seq LIMIT ?`
)

// newRunEventStmts prepares the statements for events of runs.
func newRunEventStmts(p *preparer) runEventStmts {
	return runEventStmts{
		newest: p.write(runLast),
		insert: p.write(`INSERT INTO run_event (run, seq, doc) VALUES (?, ?, ?)`),
		find:   p.read(`SELECT seq FROM run WHERE id = ?1 AND (?2 IS NULL OR account = ?2)`),
		after:  p.read(runEventsAfter),
		last:   p.read(runLast),
	}
}

// Events implements [caisson.RunStore].
func (s *runs) Events(ctx context.Context, in caisson.Scope, run caisson.ID, after int64, limit int) ([]caisson.RunEvent, error) {
	if limit < 1 {
		return nil, caisson.Invalidf("limit", "ask for at least one event")
	}
	var key int64
	err := s.events.find.QueryRowContext(ctx, string(run), accountParam(in)).Scan(&key)
	if err != nil {
		return nil, s.db.explainRow(err, s.missing(string(run)))
	}
	page, err := readRows(func(row scanner) (e caisson.RunEvent, err error) {
		var seq int64
		var doc sql.RawBytes
		if err := row.Scan(&seq, &doc); err != nil {
			return e, err
		}
		if err := json.Unmarshal(doc, &e); err != nil {
			return e, fmt.Errorf("decode stored event %d of run %s: %w", seq, run, err)
		}
		return e, nil
	})(s.events.after.QueryContext(ctx, key, after, limit))
	return page, s.db.explain(err)
}

// LastEvent implements [caisson.RunStore].
func (s *runs) LastEvent(ctx context.Context, run caisson.ID) (seq int64, err error) {
	var key int64
	err = s.events.last.QueryRowContext(ctx, string(run)).Scan(&key, &seq)
	return seq, s.db.explainRow(err, s.missing(string(run)))
}
