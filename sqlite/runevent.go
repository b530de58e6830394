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

// Append implements [caisson.RunStore]. A Seq that does not follow is a Conflict: somebody else has appended.
func (s *runs) Append(ctx context.Context, run caisson.ID, events []caisson.RunEvent) error {
	if len(events) == 0 {
		return nil
	}
	docs := make([]string, len(events))
	for i := range events {
		doc, err := json.Marshal(&events[i])
		if err != nil {
			return fmt.Errorf("encode event %d of run %s: %w", events[i].Seq, run, err)
		}
		docs[i] = string(doc)
	}
	return s.db.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		var key, last int64
		err := tx.StmtContext(ctx, s.events.newest).QueryRowContext(ctx, string(run)).Scan(&key, &last)
		if errors.Is(err, sql.ErrNoRows) {
			return noRun(run)
		}
		if err != nil {
			return err
		}
		insert := tx.StmtContext(ctx, s.events.insert)
		for i, doc := range docs {
			last++
			if events[i].Seq != last {
				return caisson.Errorf(caisson.Conflict, "event %d of run %s does not follow: the next one is %d", events[i].Seq, run, last)
			}
			if _, err := insert.ExecContext(ctx, key, last, doc); err != nil {
				return err
			}
		}
		return nil
	})
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
