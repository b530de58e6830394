package sqlite

import (
	"context"
	"database/sql"
	"strings"

	"github.com/caisson-dev/caisson"
)

const (
	defaultPage = 100
	maxPage     = 1000
)

// List implements [caisson.Table].
func (t *table[T]) List(ctx context.Context, in caisson.Scope, f caisson.Filter) (page []*T, more bool, err error) {
	switch {
	case f.Limit == 0:
		f.Limit = defaultPage
	case f.Limit < 0 || f.Limit > maxPage:
		return nil, false, caisson.Invalidf("limit", "a page has 1 to %d entries", maxPage)
	}
	q, err := t.query(ctx, in, f)
	if err != nil {
		return nil, false, err
	}
	page, more, err = t.page(ctx, q, f.Limit)
	return page, more, t.db.explain(err)
}

// query asks for everything from the page's first object on.
func (t *table[T]) query(ctx context.Context, in caisson.Scope, f caisson.Filter) (*query, error) {
	q := &query{}
	q.sql.WriteString(t.sql("SELECT name, doc FROM TABLE WHERE true"))
	if account := accountOf(in); account.Valid {
		q.and("account = ?", account)
	}
	if err := t.after(ctx, q, in, f.After); err != nil {
		return nil, err
	}
	q.filter(f)
	if t.named {
		q.sql.WriteString(" ORDER BY name, account")
	} else {
		q.sql.WriteString(" ORDER BY seq")
	}
	return q, nil
}

// after makes q begin behind the object that ended the previous page, even if it has been deleted since.
func (t *table[T]) after(ctx context.Context, q *query, in caisson.Scope, after caisson.ID) error {
	if after == "" {
		return nil
	}
	if t.named {
		q.and("name > ?", string(after))
		return nil
	}
	var seq sql.NullInt64
	if err := t.position.QueryRowContext(ctx, string(after), accountOf(in)).Scan(&seq); err != nil {
		return t.db.explain(err)
	}
	if !seq.Valid {
		return caisson.Invalidf("after", "%.40q is not in this list, or was long ago; start from the first page", string(after))
	}
	q.and("seq > ?", seq)
	return nil
}

// page reads a page and looks whether there is more behind it.
//
// The next page begins after a name, so objects of one name that several accounts have stay on one page, which may
// exceed limit for that. It happens only where every account is in scope.
func (t *table[T]) page(ctx context.Context, q *query, limit int) (page []*T, more bool, err error) {
	rows, err := t.db.reader.QueryContext(ctx, q.sql.String(), q.args...)
	if err != nil {
		return nil, false, err
	}
	defer rows.Close()
	var last string
	for rows.Next() {
		var name sql.NullString
		var doc sql.RawBytes
		if err := rows.Scan(&name, &doc); err != nil {
			return nil, false, err
		}
		if len(page) >= limit && !(t.named && name.String == last) {
			return page, true, nil
		}
		obj, err := t.decode(doc)
		if err != nil {
			return nil, false, err
		}
		page, last = append(page, obj), name.String
	}
	return page, false, rows.Err()
}

// query is a statement that grows.
type query struct {
	sql  strings.Builder
	args []any
}

// and adds a condition with its arguments. The condition is program text, never input.
func (q *query) and(condition string, args ...any) {
	q.sql.WriteString(" AND " + condition)
	q.args = append(q.args, args...)
}

// filter adds what f asks for, its page aside.
func (q *query) filter(f caisson.Filter) {
	if f.Name != "" {
		q.and("name = ?", f.Name)
	}
	if len(f.States) > 0 {
		states := make([]any, len(f.States))
		for i, s := range f.States {
			states[i] = string(s)
		}
		q.and("state IN (?"+strings.Repeat(", ?", len(states)-1)+")", states...)
	}
	for k, v := range f.Labels {
		// json_each and not a JSON path: a label may contain anything, and a path would have to quote it.
		q.and("EXISTS (SELECT 1 FROM json_each(doc, '$.labels') AS label WHERE label.key = ? AND label.value = ?)", k, v)
	}
}
