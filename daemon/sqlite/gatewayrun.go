package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"time"

	"github.com/caisson-dev/caisson"
)

// gatewayRuns implements [caisson.GatewayRunStore].
type gatewayRuns struct {
	db    *db
	put   *sql.Stmt // Inserts a run, or replaces a run of the same account and clears the time of its end.
	get   *sql.Stmt // Returns a run that has not ended.
	list  *sql.Stmt // Returns the runs that have not ended.
	count *sql.Stmt // Counts the runs that have not ended.
	end   *sql.Stmt // Sets the time of the end of a run.
	owner *sql.Stmt // Returns the account of a run, even if the run has ended.
	trim  *sql.Stmt // Deletes runs that ended before a time.
}

var _ caisson.GatewayRunStore = (*gatewayRuns)(nil)

// newGatewayRuns returns the part of the store for gateway runs, with its statements prepared by p.
func newGatewayRuns(p *preparer) *gatewayRuns {
	const live = `FROM gateway_run WHERE ended_at IS NULL AND (?1 IS NULL OR account = ?1)`
	return &gatewayRuns{
		db: p.db,
		put: p.write(`INSERT INTO gateway_run (run, account, ended_at, doc) VALUES (?1, ?2, NULL, ?3)
			ON CONFLICT (run) DO UPDATE SET ended_at = NULL, doc = excluded.doc WHERE account = excluded.account`),
		get:   p.read(`SELECT account, doc ` + live + ` AND run = ?2`),
		list:  p.read(`SELECT account, doc ` + live + ` ORDER BY run`),
		count: p.read(`SELECT count(*) ` + live),
		end:   p.write(`UPDATE gateway_run SET ended_at = ?3 WHERE ended_at IS NULL AND (?1 IS NULL OR account = ?1) AND run = ?2`),
		owner: p.read(`SELECT account FROM gateway_run WHERE run = ?`),
		trim:  p.write(`DELETE FROM gateway_run WHERE ended_at < ?`),
	}
}

// Put implements [caisson.GatewayRunStore].
func (s *gatewayRuns) Put(ctx context.Context, in caisson.Scope, r *caisson.GatewayRun) error {
	switch {
	case r.Run == "" || r.Account == "":
		return caisson.Errorf(caisson.Internal, "a run without an id or account cannot be stored")
	case !in.Covers(r.Account):
		return caisson.Errorf(caisson.NotFound, "there is no account %.40q", r.Account)
	}
	doc, err := json.Marshal(r)
	if err != nil {
		return err
	}
	taken := caisson.Errorf(caisson.Conflict, "the run %.80q is another account's", r.Run)
	return s.db.writeFound(ctx, taken, s.put, r.Run, r.Account, string(doc))
}

// Get implements [caisson.GatewayRunStore].
func (s *gatewayRuns) Get(ctx context.Context, in caisson.Scope, run string) (*caisson.GatewayRun, error) {
	r, err := scanGatewayRun(s.get.QueryRowContext(ctx, accountParam(in), run))
	return r, s.db.explainRow(err, noGatewayRun(run))
}

// List implements [caisson.GatewayRunStore].
func (s *gatewayRuns) List(ctx context.Context, in caisson.Scope) ([]*caisson.GatewayRun, error) {
	all, err := readRows(scanGatewayRun)(s.list.QueryContext(ctx, accountParam(in)))
	return all, s.db.explain(err)
}

// Count implements [caisson.GatewayRunStore].
func (s *gatewayRuns) Count(ctx context.Context, in caisson.Scope) (n int, err error) {
	err = s.count.QueryRowContext(ctx, accountParam(in)).Scan(&n)
	return n, s.db.explain(err)
}

// End implements [caisson.GatewayRunStore].
func (s *gatewayRuns) End(ctx context.Context, in caisson.Scope, run string, at time.Time) error {
	return s.db.writeFound(ctx, noGatewayRun(run), s.end, accountParam(in), run, at.UnixMicro())
}

// Owner implements [caisson.GatewayRunStore].
func (s *gatewayRuns) Owner(ctx context.Context, run string) (account string, err error) {
	err = s.owner.QueryRowContext(ctx, run).Scan(&account)
	return account, s.db.explainRow(err, noGatewayRun(run))
}

// Trim implements [caisson.GatewayRunStore].
func (s *gatewayRuns) Trim(ctx context.Context, before time.Time) error {
	_, err := s.db.writeOne(ctx, s.trim, before.UnixMicro())
	return err
}

// noGatewayRun returns the error for a run that does not exist in the scope or has ended.
func noGatewayRun(run string) error {
	return caisson.Errorf(caisson.NotFound, "there is no run %.80q; see caisson gateway run ls", run)
}

// scanGatewayRun reads a row of the table gateway_run. The account comes from the column, not from the document.
func scanGatewayRun(s scanner) (*caisson.GatewayRun, error) {
	var account string
	r := &caisson.GatewayRun{}
	if err := scanDoc(s, "run", r, &account); err != nil {
		return nil, err
	}
	r.Account = account
	return r, nil
}
