package sqlite

import (
	"context"
	"database/sql"
	"strings"

	"github.com/caisson-dev/caisson"
)

// List implements [caisson.Table].
//
// The next page begins after a name, so objects of one name that several accounts have stay on one page, which may
// exceed the limit for that. It happens only where every account is in scope.
func (t *table[T]) List(ctx context.Context, in caisson.Scope, f caisson.Filter) (page []*T, more bool, err error) {
	if f.Limit, err = pageLimit(f.Limit); err != nil {
		return nil, false, err
	}
	q, err := t.query(ctx, in, f)
	if err != nil {
		return nil, false, err
	}
	var last string
	page, more, err = readPage(func(s scanner, n int) (*T, error) {
		var name sql.NullString
		var r row
		if err := s.Scan(&name, &r.doc); err != nil {
			return nil, err
		}
		if n >= f.Limit && !(t.kind.named && name.String == last) {
			return nil, errEnough
		}
		last = name.String
		return t.decode(r)
	})(q.rows(ctx, t.db))
	return page, more, t.db.explain(err)
}

// query asks for everything from the page's first object on.
func (t *table[T]) query(ctx context.Context, in caisson.Scope, f caisson.Filter) (*query, error) {
	q := newQuery(t.kind.sql("SELECT name, doc FROM TABLE WHERE true"))
	q.in(in)
	order := " ORDER BY seq"
	if t.kind.named {
		q.is("name >", string(f.After))
		order = " ORDER BY name, account"
	} else if err := q.from(ctx, t.db, t.place, in, f.After); err != nil {
		return nil, err
	}
	q.is("name =", f.Name)
	oneOf(q, "state", f.States)
	for k, v := range f.Labels {
		// json_each and not a JSON path: a label may contain anything, and a path would have to quote it.
		q.and("EXISTS (SELECT 1 FROM json_each(doc, '$.labels') AS label WHERE label.key = ? AND label.value = ?)", k, v)
	}
	q.add(order)
	return q, nil
}

// query is a statement that grows. Its text is program text, never input.
type query struct {
	sql  strings.Builder
	args []any
}

func newQuery(text string) *query {
	q := &query{}
	q.add(text)
	return q
}

// add adds text with its arguments.
func (q *query) add(text string, args ...any) {
	q.sql.WriteString(text)
	q.args = append(q.args, args...)
}

// and adds a condition with its arguments.
func (q *query) and(condition string, args ...any) { q.add(" AND "+condition, args...) }

// is adds that a comparison with value holds, unless value is "".
func (q *query) is(comparison, value string) {
	if value != "" {
		q.and(comparison+" ?", value)
	}
}

// in adds that rows are of the account of a scope.
func (q *query) in(scope caisson.Scope) {
	if account := accountOf(scope); account.Valid {
		q.and("account = ?", account)
	}
}

// oneOf adds that a column has one of some values, if there are any.
func oneOf[S ~string](q *query, column string, values []S) {
	if len(values) == 0 {
		return
	}
	args := make([]any, len(values))
	for i, v := range values {
		args[i] = string(v)
	}
	q.and(column+" IN (?"+strings.Repeat(", ?", len(args)-1)+")", args...)
}

// place is where a page of a list begins.
type place struct {
	stmt  *sql.Stmt // seq of an object by its ID and the scope; NULL or no row if it is not in the list
	field string    // before or after
	gone  string    // the error for an ID that is not in the list, as a format
}

// from adds that rows are before or after the object with the ID id, unless that is "".
func (q *query) from(ctx context.Context, d *db, p place, in caisson.Scope, id caisson.ID) error {
	if id == "" {
		return nil
	}
	var seq sql.NullInt64
	if err := noRows(p.stmt.QueryRowContext(ctx, string(id), accountOf(in)).Scan(&seq)); err != nil {
		return d.explain(err)
	}
	if !seq.Valid {
		return caisson.Invalidf(p.field, p.gone, string(id))
	}
	if p.field == "before" {
		q.and("seq < ?", seq)
	} else {
		q.and("seq > ?", seq)
	}
	return nil
}

// rows runs the query.
func (q *query) rows(ctx context.Context, d *db) (*sql.Rows, error) {
	return d.reader.QueryContext(ctx, q.sql.String(), q.args...)
}
