package sqlite

import (
	"context"

	"github.com/caisson-dev/caisson"
)

// List implements [caisson.RunStore]. A page of very long runs has fewer than asked for.
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

// query asks for the runs of a page and one more. The runs are chosen by index before any is read: sorting them would take
// all that match, with everything they said, into memory.
func (s *runs) query(ctx context.Context, in caisson.Scope, f caisson.RunFilter) (*query, error) {
	q := newQuery("SELECT seq, children, doc FROM run WHERE seq IN (SELECT seq FROM run WHERE true")
	q.in(in)
	q.is("agent =", f.Agent)
	q.is("session =", string(f.Session))
	q.is("parent =", string(f.Parent))
	if f.Under != "" {
		q.and("seq IN (SELECT seq FROM run WHERE id = ? UNION ALL SELECT run FROM run_under WHERE ancestor = ?)", string(f.Under), string(f.Under))
	}
	oneOf(q, "state", f.States)
	if err := q.from(ctx, s.db, s.place, in, f.Before); err != nil {
		return nil, err
	}
	q.add(" ORDER BY seq DESC LIMIT ?) ORDER BY seq DESC", f.Limit+1)
	return q, nil
}
