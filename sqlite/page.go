package sqlite

import (
	"context"
	"database/sql"

	"github.com/caisson-dev/caisson"
)

// docPage completes a query for documents, and reads a page of them, the newest first. The table has the columns seq, id and
// account; place returns the seq of an id in an account.
func docPage[T any](ctx context.Context, d *db, q *query, in caisson.Scope, before caisson.ID, limit int, place *sql.Stmt,
	decode func([]byte) (*T, error)) (page []*T, more bool, err error) {
	switch {
	case limit == 0:
		limit = defaultPage
	case limit < 0 || limit > maxPage:
		return nil, false, caisson.Invalidf("limit", "a page has 1 to %d entries", maxPage)
	}
	if account := accountOf(in); account.Valid {
		q.and("account = ?", account)
	}
	if before != "" {
		var seq sql.NullInt64
		if err := place.QueryRowContext(ctx, string(before), accountOf(in)).Scan(&seq); err != nil {
			return nil, false, d.explain(err)
		}
		if !seq.Valid {
			return nil, false, caisson.Invalidf("before", "%.40q is not in this list, or not any more; start from the first page", string(before))
		}
		q.and("seq < ?", seq)
	}
	q.sql.WriteString(" ORDER BY seq DESC LIMIT ?")
	q.args = append(q.args, limit+1)
	rows, err := d.reader.QueryContext(ctx, q.sql.String(), q.args...)
	if err != nil {
		return nil, false, d.explain(err)
	}
	defer rows.Close()
	size := 0
	for rows.Next() {
		if len(page) == limit || size > maxDocPage {
			return page, true, nil
		}
		var doc sql.RawBytes
		if err := rows.Scan(&doc); err != nil {
			return nil, false, d.explain(err)
		}
		size += len(doc)
		obj, err := decode(doc)
		if err != nil {
			return nil, false, err
		}
		page = append(page, obj)
	}
	return page, false, d.explain(rows.Err())
}
