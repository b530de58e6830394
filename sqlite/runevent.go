package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/caisson-dev/caisson"
)

// runEventStmts are the statements about events of runs. Those of transactions are on the writer.
type runEventStmts struct {
	newest *sql.Stmt
	insert *sql.Stmt

	find  *sql.Stmt
	after *sql.Stmt
	last  *sql.Stmt
}

const (
	runLast        = `SELECT seq, coalesce((SELECT max(e.seq) FROM run_event AS e WHERE e.run = run.seq), 0) FROM run WHERE id = ?`
	runEventsAfter = `SELECT seq, doc FROM run_event WHERE run = ? AND seq > ? ORDER BY seq LIMIT ?`
)

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
	err := s.events.find.QueryRowContext(ctx, string(run), accountOf(in)).Scan(&key)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, noRun(run)
	}
	if err != nil {
		return nil, s.db.explain(err)
	}
	rows, err := s.events.after.QueryContext(ctx, key, after, limit)
	if err != nil {
		return nil, s.db.explain(err)
	}
	defer rows.Close()
	var page []caisson.RunEvent
	for rows.Next() {
		var seq int64
		var doc sql.RawBytes
		if err := rows.Scan(&seq, &doc); err != nil {
			return nil, s.db.explain(err)
		}
		var e caisson.RunEvent
		if err := json.Unmarshal(doc, &e); err != nil {
			return nil, fmt.Errorf("decode stored event %d of run %s: %w", seq, run, err)
		}
		page = append(page, e)
	}
	return page, s.db.explain(rows.Err())
}

// LastEvent implements [caisson.RunStore].
func (s *runs) LastEvent(ctx context.Context, run caisson.ID) (seq int64, err error) {
	var key int64
	err = s.events.last.QueryRowContext(ctx, string(run)).Scan(&key, &seq)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, noRun(run)
	}
	return seq, s.db.explain(err)
}
