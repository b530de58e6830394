package sqlite

import (
	"context"
	"database/sql"
	"strings"

	"github.com/caisson-dev/caisson"
)

// maxRunPage bounds the bytes of a page of runs, whose prompts and answers can be long: a page ends early behind it.
const maxRunPage = 16 << 20

// List implements [caisson.RunStore]. A page of very long runs has fewer than asked for.
func (s *runs) List(ctx context.Context, in caisson.Scope, f caisson.RunFilter) (page []*caisson.Run, more bool, err error) {
	switch {
	case f.Limit == 0:
		f.Limit = defaultPage
	case f.Limit < 0 || f.Limit > maxPage:
		return nil, false, caisson.Invalidf("limit", "a page has 1 to %d entries", maxPage)
	}
	q, err := s.query(ctx, in, f)
	if err != nil {
		return nil, false, err
	}
	page, more, err = s.page(ctx, q, f.Limit)
	return page, more, s.db.explain(err)
}

// query asks for the runs of a page and one more. The runs are chosen by index before any is read: sorting them would take
// all that match, with everything they said, into memory.
func (s *runs) query(ctx context.Context, in caisson.Scope, f caisson.RunFilter) (*query, error) {
	q := &query{}
	q.sql.WriteString("SELECT seq, children, doc FROM run WHERE seq IN (SELECT seq FROM run WHERE true")
	if account := accountOf(in); account.Valid {
		q.and("account = ?", account)
	}
	for _, c := range [][2]string{{"agent", f.Agent}, {"session", string(f.Session)}, {"parent", string(f.Parent)}} {
		if c[1] != "" {
			q.and(c[0]+" = ?", c[1])
		}
	}
	if f.Under != "" {
		q.and("seq IN (SELECT seq FROM run WHERE id = ? UNION ALL SELECT run FROM run_under WHERE ancestor = ?)", string(f.Under), string(f.Under))
	}
	if len(f.States) > 0 {
		states := make([]any, len(f.States))
		for i, st := range f.States {
			states[i] = string(st)
		}
		q.and("state IN (?"+strings.Repeat(", ?", len(states)-1)+")", states...)
	}
	if f.Before != "" {
		var seq sql.NullInt64
		if err := s.place.QueryRowContext(ctx, string(f.Before), accountOf(in)).Scan(&seq); err != nil {
			return nil, s.db.explain(err)
		}
		if !seq.Valid {
			return nil, caisson.Invalidf("before", "%.40q is not in this list, or was long ago; start from the first page", string(f.Before))
		}
		q.and("seq < ?", seq)
	}
	q.sql.WriteString(" ORDER BY seq DESC LIMIT ?) ORDER BY seq DESC")
	q.args = append(q.args, f.Limit+1)
	return q, nil
}

func (s *runs) page(ctx context.Context, q *query, limit int) (page []*caisson.Run, more bool, err error) {
	rows, err := s.db.reader.QueryContext(ctx, q.sql.String(), q.args...)
	if err != nil {
		return nil, false, err
	}
	defer rows.Close()
	size := 0
	for rows.Next() {
		if len(page) == limit || size > maxRunPage {
			return page, true, nil
		}
		var row runRow
		if err := rows.Scan(&row.seq, &row.children, &row.doc); err != nil {
			return nil, false, err
		}
		r, err := row.decode()
		if err != nil {
			return nil, false, err
		}
		size += len(row.doc)
		page = append(page, r)
	}
	return page, false, rows.Err()
}
