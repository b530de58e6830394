package sqlite

import (
	"context"

	"github.com/caisson-dev/caisson"
)

// List implements [caisson.RunStore]. A page of very long runs has fewer entries than requested.
func (s *runs) List(ctx context.Context, in caisson.Scope, f caisson.RunFilter) (page []*caisson.Run, more bool, err error) {
	if f.Limit, err = pageLimit(f.Limit); err != nil {
		return nil, false, err
	}
	q, err := s.query(ctx, in, f)
	if err != nil {
		return nil, false, err
	}
	return s.page(ctx, q, f.Limit, scanRun)
}

// query returns the query for the runs of a page and one run after them. The inner query selects the runs by index before any
// document is read: to sort complete rows, SQLite would read all matching runs, with their documents, into memory.
func (s *runs) query(ctx context.Context, in caisson.Scope, f caisson.RunFilter) (*query, error) {
	q := newQuery("SELECT seq, children, doc FROM run WHERE seq IN (SELECT seq FROM run WHERE true")
	q.inScope(in)
	q.andIfSet("agent =", f.Agent)
	q.andIfSet("session =", string(f.Session))
	q.andIfSet("parent =", string(f.Parent))
	if f.Under != "" {
		q.and("seq IN (SELECT seq FROM run WHERE id = ? UNION ALL SELECT run FROM run_under WHERE ancestor = ?)", string(f.Under), string(f.Under))
	}
	oneOf(q, "state", f.States)
	if err := q.startAfter(ctx, s.db, s.position, in, f.Before); err != nil {
		return nil, err
	}
	q.add(" ORDER BY seq DESC LIMIT ?) ORDER BY seq DESC", f.Limit+1)
	return q, nil
}
