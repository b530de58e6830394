package sqlite

import (
	"context"
	"database/sql"
	"strings"

	"github.com/caisson-dev/caisson"
)

// List implements [caisson.Table].
//
// If objects are listed by name, the next page starts after a name. Objects of several accounts with the same name therefore stay
// on one page, which may exceed the limit. This happens only if all accounts are in scope.
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
		if n >= f.Limit && !(t.kind.byName && name.String == last) {
			return nil, errPageFull
		}
		last = name.String
		return t.decode(r)
	})(q.rows(ctx, t.db))
	return page, more, t.db.explain(err)
}

// query returns the query for the objects that f selects, from the first object of the page to the end of the list.
func (t *table[T]) query(ctx context.Context, in caisson.Scope, f caisson.Filter) (*query, error) {
	q := newQuery(t.kind.sql("SELECT name, doc FROM TABLE WHERE true"))
	q.inScope(in)
	order := " ORDER BY seq"
	if t.kind.byName {
		q.andIfSet("name >", string(f.After))
		order = " ORDER BY name, account"
	} else if err := q.startAfter(ctx, t.db, t.position, in, f.After); err != nil {
		return nil, err
	}
	q.andIfSet("name =", f.Name)
	oneOf(q, "state", f.States)
	for k, v := range f.Labels {
		// A label may contain any character and would have to be quoted in a JSON path; json_each needs no quoting.
		q.and("EXISTS (SELECT 1 FROM json_each(doc, '$.labels') AS label WHERE label.key = ? AND label.value = ?)", k, v)
	}
	q.add(order)
	return q, nil
}

// query is an SQL statement under construction. Its text never contains input.
type query struct {
	sql  strings.Builder // The text of the statement so far.
	args []any           // The arguments for the placeholders in the text.
}

// newQuery returns a query that begins with text.
func newQuery(text string) *query {
	q := &query{}
	q.add(text)
	return q
}

// add appends text, and arguments for the placeholders in it.
func (q *query) add(text string, args ...any) {
	q.sql.WriteString(text)
	q.args = append(q.args, args...)
}

// and appends "AND" with a condition, and arguments for the placeholders in it.
func (q *query) and(condition string, args ...any) { q.add(" AND "+condition, args...) }

// andIfSet appends a condition such as "name = ?" with the argument value, unless value is "". comparison is the part before the
// placeholder.
func (q *query) andIfSet(comparison, value string) {
	if value != "" {
		q.and(comparison+" ?", value)
	}
}

// inScope appends the condition that rows belong to the account of a scope, unless the scope has all accounts.
func (q *query) inScope(scope caisson.Scope) {
	if account := accountParam(scope); account.Valid {
		q.and("account = ?", account)
	}
}

// oneOf appends the condition that a column has one of values, unless values is empty.
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

// pagePosition describes how the start of a page of a list is found from the ID of the object before it.
type pagePosition struct {
	stmt           *sql.Stmt // Returns seq of an object by ID and account; NULL or no row if the object is not in the list.
	field          string    // Parameter with the ID: "before" in lists with the newest object first, otherwise "after".
	notFoundFormat string    // A format for the error if the object is not in the list.
}

// startAfter appends the condition that rows come after the object with the given ID in the list, unless id is "". p.field
// determines the order of the list.
func (q *query) startAfter(ctx context.Context, d *db, p pagePosition, in caisson.Scope, id caisson.ID) error {
	if id == "" {
		return nil
	}
	var seq sql.NullInt64
	if err := noRows(p.stmt.QueryRowContext(ctx, string(id), accountParam(in)).Scan(&seq)); err != nil {
		return d.explain(err)
	}
	if !seq.Valid {
		return caisson.Invalidf(p.field, p.notFoundFormat, string(id))
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
