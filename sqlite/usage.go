package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/caisson-dev/caisson"
)

// groups are the expressions that usage can be summed up by.
var groups = map[string]string{
	"": `''`, "run": "run", "sandbox": "sandbox", "account": "account", "model": "model", "session": "session",
	"agent": "agent", "user": "user",
	"day": `strftime('%Y-%m-%d', at / 1000000, 'unixepoch')`,
}

// sums are the columns of usage that are added up; of call they are asked for as of one.
const (
	sums      = `calls, failed, estimated, input, output, cache_read, cache_write, cost`
	sumsOfOne = `1 AS calls, failed, estimated, input, output, cache_read, cache_write, cost`
)

var addedUp = `sum(calls), sum(failed), sum(estimated), ` + total("input") + `, ` + total("output") + `, ` +
	total("cache_read") + `, ` + total("cache_write") + `, ` + total("cost")

// Usage implements [caisson.LedgerStore]; rows are in the order of their keys.
func (l *ledger) Usage(ctx context.Context, in caisson.Scope, q caisson.UsageQuery) ([]caisson.UsageRow, error) {
	group, ok := groups[q.By]
	if !ok {
		return nil, caisson.Invalidf("by", "%.40q is not run, sandbox, account, model, day, session, agent or user", q.By)
	}
	stmt := usageQuery(in, q, group)
	rows, err := l.db.reader.QueryContext(ctx, stmt.sql.String(), stmt.args...)
	if err != nil {
		return nil, l.db.explain(err)
	}
	defer rows.Close()
	var out []caisson.UsageRow
	for rows.Next() {
		var r caisson.UsageRow
		err := rows.Scan(&r.Key, &r.Calls, &r.Failed, &r.Estimated, &r.Tokens.Input, &r.Tokens.Output,
			&r.Tokens.CacheRead, &r.Tokens.CacheWrite, (*int64)(&r.Cost))
		if err != nil {
			return nil, l.db.explain(err)
		}
		out = append(out, r)
	}
	return out, l.db.explain(rows.Err())
}

// usageQuery adds up whole hours from usage, and what is left over at both ends from call.
func usageQuery(in caisson.Scope, q caisson.UsageQuery, group string) *query {
	since, until := int64(math.MinInt64), int64(math.MaxInt64)
	first, last := since, until // the whole hours between
	if !q.Since.IsZero() {
		since = q.Since.UnixMicro()
		first = since + (hour-since%hour)%hour
	}
	if !q.Until.IsZero() {
		until = q.Until.UnixMicro()
		last = until - until%hour
	}
	if first >= last {
		first, last = until, until
	}
	stmt := &query{}
	stmt.sql.WriteString("SELECT " + group + ", " + addedUp + " FROM (")
	part := func(columns, table string, from, to int64) {
		stmt.sql.WriteString("SELECT account, at, sandbox, run, session, agent, user, model, " + columns + " FROM " + table + " WHERE true")
		stmt.and("at >= ?", from)
		stmt.and("at < ?", to)
		stmt.usage(in, q)
	}
	if first < last {
		part(sums, "usage", first, last)
		stmt.sql.WriteString(" UNION ALL ")
	}
	part(sumsOfOne, "call", since, first)
	stmt.sql.WriteString(" UNION ALL ")
	part(sumsOfOne, "call", last, until)
	stmt.sql.WriteString(") GROUP BY 1 ORDER BY 1")
	return stmt
}

// usage adds what q asks for, its times aside.
func (q *query) usage(in caisson.Scope, u caisson.UsageQuery) {
	if account := accountOf(in); account.Valid {
		q.and("account = ?", account)
	}
	for _, c := range [][2]string{
		{"account", u.Account}, {"run", u.Run}, {"sandbox", string(u.Sandbox)}, {"agent", u.Agent}, {"model", u.Model},
	} {
		if c[1] != "" {
			q.and(c[0]+" = ?", c[1])
		}
	}
	if u.Under != "" {
		q.under(accountOf(in), u.Under)
	}
}

// under asks for calls of a run of an account, and of those that are part of it.
func (q *query) under(account sql.NullString, run string) {
	q.and("run IN (SELECT ? UNION ALL SELECT run FROM lineage WHERE ancestor = ? AND account = coalesce(?, account))", run, run, account)
}

// Calls implements [caisson.LedgerStore]. Calls are in the order in which they came into the ledger, so that whoever
// follows it misses none, not even one that took long.
func (l *ledger) Calls(ctx context.Context, in caisson.Scope, u caisson.UsageQuery, after caisson.ID, limit int) (page []caisson.Call, more bool, err error) {
	switch {
	case limit == 0:
		limit = defaultPage
	case limit < 0 || limit > maxPage:
		return nil, false, caisson.Invalidf("limit", "a page has 1 to %d entries", maxPage)
	}
	q := &query{}
	q.sql.WriteString("SELECT doc FROM call WHERE true")
	if after != "" {
		var seq int64
		err := l.position.QueryRowContext(ctx, string(after), accountOf(in)).Scan(&seq)
		if errors.Is(err, sql.ErrNoRows) {
			return nil, false, caisson.Invalidf("after", "%.40q is not a call of this list; start from the first page", string(after))
		}
		if err != nil {
			return nil, false, l.db.explain(err)
		}
		q.and("seq > ?", seq)
	}
	q.usage(in, u)
	if !u.Since.IsZero() {
		q.and("at >= ?", u.Since.UnixMicro())
	}
	if !u.Until.IsZero() {
		q.and("at < ?", u.Until.UnixMicro())
	}
	q.sql.WriteString(" ORDER BY seq LIMIT ?")
	q.args = append(q.args, limit+1)
	rows, err := l.db.reader.QueryContext(ctx, q.sql.String(), q.args...)
	if err != nil {
		return nil, false, l.db.explain(err)
	}
	defer rows.Close()
	for rows.Next() {
		if len(page) == limit {
			return page, true, nil
		}
		var doc sql.RawBytes
		if err := rows.Scan(&doc); err != nil {
			return nil, false, l.db.explain(err)
		}
		var c caisson.Call
		if err := json.Unmarshal(doc, &c); err != nil {
			return nil, false, fmt.Errorf("decode stored call: %w", err)
		}
		page = append(page, c)
	}
	return page, false, l.db.explain(rows.Err())
}

// like escapes s for a LIKE pattern with the escape character \.
func like(s string) string {
	return "%" + strings.NewReplacer(`\`, `\\`, "%", `\%`, "_", `\_`).Replace(s) + "%"
}
