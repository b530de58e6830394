package sqlite

import (
	"context"
	"database/sql"
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
	rows, err := readRows(func(s scanner) (r caisson.UsageRow, err error) {
		err = s.Scan(&r.Key, &r.Calls, &r.Failed, &r.Estimated, &r.Tokens.Input, &r.Tokens.Output,
			&r.Tokens.CacheRead, &r.Tokens.CacheWrite, (*int64)(&r.Cost))
		return r, err
	})(usageQuery(in, q, group).rows(ctx, l.db))
	return rows, l.db.explain(err)
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
	stmt := newQuery("SELECT " + group + ", " + addedUp + " FROM (")
	part := func(columns, table string, from, to int64) {
		stmt.add("SELECT account, at, sandbox, run, session, agent, user, model, " + columns + " FROM " + table + " WHERE true")
		stmt.and("at >= ?", from)
		stmt.and("at < ?", to)
		stmt.usage(in, q)
	}
	if first < last {
		part(sums, "usage", first, last)
		stmt.add(" UNION ALL ")
	}
	part(sumsOfOne, "call", since, first)
	stmt.add(" UNION ALL ")
	part(sumsOfOne, "call", last, until)
	stmt.add(") GROUP BY 1 ORDER BY 1")
	return stmt
}

// usage adds what q asks for, its times aside.
func (q *query) usage(in caisson.Scope, u caisson.UsageQuery) {
	q.in(in)
	q.is("account =", u.Account)
	q.is("run =", u.Run)
	q.is("sandbox =", string(u.Sandbox))
	q.is("agent =", u.Agent)
	q.is("model =", u.Model)
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
	if limit, err = pageLimit(limit); err != nil {
		return nil, false, err
	}
	q := newQuery("SELECT doc FROM call WHERE true")
	if err := q.from(ctx, l.db, l.place, in, after); err != nil {
		return nil, false, err
	}
	q.usage(in, u)
	if !u.Since.IsZero() {
		q.and("at >= ?", u.Since.UnixMicro())
	}
	if !u.Until.IsZero() {
		q.and("at < ?", u.Until.UnixMicro())
	}
	q.add(" ORDER BY seq LIMIT ?", limit+1)
	page, more, err = readPage(func(s scanner, n int) (c caisson.Call, err error) {
		if n == limit {
			return c, errEnough
		}
		err = scanDoc(s, "call", &c)
		return c, err
	})(q.rows(ctx, l.db))
	return page, more, l.db.explain(err)
}

// like escapes s for a LIKE pattern with the escape character \.
func like(s string) string {
	return "%" + strings.NewReplacer(`\`, `\\`, "%", `\%`, "_", `\_`).Replace(s) + "%"
}
