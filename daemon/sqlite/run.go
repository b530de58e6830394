package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/caisson-dev/caisson"
)

// runs implements [caisson.RunStore].
type runs struct {
	*idTable[caisson.Run]
	now func() time.Time // Returns the current time.

	countLive        *sql.Stmt // Counts the runs of an account that have not ended and have no parent.
	ancestorState    *sql.Stmt // Returns whether a run has ended, its number of sub-runs and their maximum number.
	incrementSubRuns *sql.Stmt // Increments the number of sub-runs of a run.
	insertAncestor   *sql.Stmt // Inserts an ancestor of a run.

	events   runEventStmts   // The statements about events of runs.
	removal  runRemovalStmts // The statements for removing runs.
	appender appender        // Commits appended events.
}

var _ caisson.RunStore = (*runs)(nil)

// storedRun is the document of a run. It includes the plan, which the JSON of the API omits.
type storedRun struct {
	*caisson.Run
	Plan **caisson.RunPlan `json:"plan"` // The plan of the run; nil if it has none.
}

// countLiveRuns counts the runs of an account that have not ended and have no parent.
const countLiveRuns = `SELECT count(*) FROM run WHERE account = ? AND ended_at IS NULL AND parent IS NULL`

// newRuns returns the part of the store for runs, with its statements prepared by p.
func newRuns(p *preparer, now func() time.Time) *runs {
	const one = `SELECT seq, children, doc FROM run WHERE id = ?1 AND (?2 IS NULL OR account = ?2)`
	s := &runs{
		now:              now,
		countLive:        p.write(countLiveRuns),
		ancestorState:    p.write(`SELECT seq, ended_at IS NOT NULL, children, most FROM run WHERE id = ? AND account = ?`),
		incrementSubRuns: p.write(`UPDATE run SET children = children + 1 WHERE seq = ?`),
		insertAncestor:   p.write(`INSERT INTO run_under (ancestor, run) VALUES (?, ?)`),
		events:           newRunEventStmts(p),
		removal:          newRunRemovalStmts(p),
	}
	s.idTable = newIDTable(p, "run", &idTable[caisson.Run]{
		docs: docs[caisson.Run]{
			noun: "run", fixedNames: "its id, account, parent or lineage",
			fixed: func(r *caisson.Run) []string {
				return []string{string(r.ID), r.Account, string(r.Parent), fmt.Sprintf("%q", r.Lineage)}
			},
			columns: func(r *caisson.Run) []any {
				return []any{r.Agent, string(r.State), nullable(string(r.Session)), s.endedAt(r), r.Children, r.Limits.StartableRuns()}
			},
			insert: p.write(`INSERT INTO run (id, account, agent, state, session, parent, ended_at, children, most, doc)
				VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`),
			update: p.write(
				`UPDATE run SET agent = ?, state = ?, session = ?, ended_at = ?, children = ?, most = ?, doc = ? WHERE seq = ?`),
			documentFor: func(r *caisson.Run) any { return &storedRun{r, &r.Plan} },
			fill:        func(r *caisson.Run, row row) { r.Children = row.children },
		},
		notFoundFormat: "there is no run %.40q; see caisson runs ls",
		get:            p.read(one),
		getTx:          p.write(one),
		scan:           scanRun,
		position: pagePosition{p.read(`SELECT max(seq) FROM (
			SELECT seq, account FROM run WHERE id = ?1 UNION ALL SELECT seq, account FROM run_gone WHERE id = ?1
		) WHERE ?2 IS NULL OR account = ?2`), "before", "%.40q is not in this list, or was long ago; start from the first page"},
	})
	s.appender.commit = s.appendAll
	return s
}

// Insert implements [caisson.RunStore]. The runs of which r is a sub-run, its lineage, must belong to the account of r. live is
// the maximum number of the account's unfinished runs, not counting sub-runs; 0 means no limit.
func (s *runs) Insert(ctx context.Context, r *caisson.Run, live int) error {
	if err := checkRun(r); err != nil {
		return err
	}
	doc, err := s.encode(r)
	if err != nil {
		return err
	}
	err = s.db.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		if err := s.admit(ctx, tx, r, live); err != nil {
			return err
		}
		res, err := tx.StmtContext(ctx, s.insert).ExecContext(ctx, string(r.ID), r.Account, r.Agent, string(r.State),
			nullable(string(r.Session)), nullable(string(r.Parent)), s.endedAt(r), r.Children, r.Limits.StartableRuns(), doc)
		if err != nil {
			return err
		}
		seq, err := res.LastInsertId()
		if err != nil {
			return err
		}
		under := tx.StmtContext(ctx, s.insertAncestor)
		for _, id := range r.Lineage {
			if _, err := under.ExecContext(ctx, string(id), seq); err != nil {
				return err
			}
		}
		return nil
	})
	return s.explainDuplicate(err, r)
}

// checkRun returns an error if a run has no id or account, or if its lineage is too long or inconsistent: the lineage must end
// with Parent and contain no id twice.
func checkRun(r *caisson.Run) error {
	var parent caisson.ID
	if n := len(r.Lineage); n > 0 {
		parent = r.Lineage[n-1]
	}
	all := slices.Sorted(slices.Values(append([]caisson.ID{r.ID}, r.Lineage...)))
	switch {
	case r.ID == "" || r.Account == "":
		return caisson.Errorf(caisson.Internal, "a run without an id or account cannot be stored")
	case len(r.Lineage) > caisson.MaxLineage:
		return caisson.Errorf(caisson.Exhausted, "runs can be nested at most %d levels deep; start this one from a run at a higher level", caisson.MaxLineage)
	case parent != r.Parent || slices.Contains(all, "") || len(slices.Compact(all)) != len(r.Lineage)+1:
		return caisson.Errorf(caisson.Internal, "run %s is part of runs that cannot be: %.200q", r.ID, r.Lineage)
	}
	return nil
}

// admit returns an error if r may not be started. live is the maximum number of unfinished runs of an account, not counting
// sub-runs; 0 means no limit. For a sub-run, admit checks that no ancestor has ended or reached its limit of sub-runs,
// and increments the number of sub-runs of each ancestor.
func (s *runs) admit(ctx context.Context, tx *sql.Tx, r *caisson.Run, live int) error {
	if len(r.Lineage) == 0 && live > 0 {
		var n int
		if err := tx.StmtContext(ctx, s.countLive).QueryRowContext(ctx, r.Account).Scan(&n); err != nil {
			return err
		}
		if n >= live {
			return caisson.Errorf(caisson.Exhausted, "%d runs wait or are under way, and more than %d are not taken; try again when some have ended", n, live)
		}
	}
	above, count := tx.StmtContext(ctx, s.ancestorState), tx.StmtContext(ctx, s.incrementSubRuns)
	for _, id := range r.Lineage {
		var seq, children, most int64
		var ended bool
		err := above.QueryRowContext(ctx, string(id), r.Account).Scan(&seq, &ended, &children, &most)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			return caisson.Errorf(caisson.Conflict, "the run %.40s has been removed, so none can be part of it; start this one by itself", id)
		case err != nil:
			return err
		case ended:
			return caisson.Errorf(caisson.Conflict, "the run %.40s has ended, so none can be part of it; start this one by itself", id)
		case children >= most:
			return caisson.Errorf(caisson.Exhausted, "the run %.40s has started %d of %d runs that may be part of it; ask for a higher limit of runs", id, children, most)
		}
		if _, err := count.ExecContext(ctx, seq); err != nil {
			return err
		}
	}
	return nil
}

// endedAt returns the value of the column ended_at for r. If r has ended and has no end time, that is the current time.
func (s *runs) endedAt(r *caisson.Run) sql.NullInt64 {
	if !r.State.Ended() {
		return sql.NullInt64{}
	}
	at := r.EndedAt
	if at.IsZero() {
		at = s.now()
	}
	return sql.NullInt64{Int64: at.UnixMicro(), Valid: true}
}

// Get implements [caisson.RunStore].
func (s *runs) Get(ctx context.Context, in caisson.Scope, id caisson.ID) (*caisson.Run, error) {
	return s.idTable.Get(ctx, in, string(id))
}

// scanRun reads the columns seq, children and doc of a run.
func scanRun(s scanner) (r row, err error) {
	err = s.Scan(&r.seq, &r.children, &r.doc)
	return r, err
}
