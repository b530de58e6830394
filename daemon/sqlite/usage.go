package sqlite

import (
	"context"
	"database/sql"
	"math"
	"strings"

	"github.com/caisson-dev/caisson"
)

// groupExpressions maps the values of UsageQuery.By to the SQL expressions by which usage is grouped.
var groupExpressions = map[string]string{
	"": `''`, "run": "run", "sandbox": "sandbox", "account": "account", "model": "model", "session": "session",
	"agent": "agent", "user": "user",
	"day": `strftime('%Y-%m-%d', at / 1000000, 'unixepoch')`,
}

// usageColumns are the columns of the table usage that contain sums. callColumns selects the values that one row of the table
// call adds to them.
const (
	usageColumns = `calls, failed, estimated, input, output, cache_read, cache_write, cost`
	callColumns  = `1 AS calls, failed, estimated, input, output, cache_read, cache_write, cost`
)

// summedColumns selects the sums of usageColumns over the rows of a group.
var summedColumns = `sum(calls), sum(failed), sum(estimated), ` + sumSQL("input") + `, ` + sumSQL("output") + `, ` +
	sumSQL("cache_read") + `, ` + sumSQL("cache_write") + `, ` + sumSQL("cost")

// Usage implements [caisson.LedgerStore]. Rows are sorted by key.
func (l *ledger) Usage(ctx context.Context, in caisson.Scope, q caisson.UsageQuery) ([]caisson.UsageRow, error) {
	group, ok := groupExpressions[q.By]
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

// usageQuery returns the query for the sums by group. The query sums whole hours from the table usage, and the remainders at the
// start and the end of the queried time from the table call.
func usageQuery(in caisson.Scope, q caisson.UsageQuery, group string) *query {
	since, until := int64(math.MinInt64), int64(math.MaxInt64)
	first, last := since, until // The range of whole hours.
	if !q.Since.IsZero() {
		since = q.Since.UnixMicro()
		first = since + (hourMicros-since%hourMicros)%hourMicros
	}
	if !q.Until.IsZero() {
		until = q.Until.UnixMicro()
		last = until - until%hourMicros
	}
	if first >= last {
		first, last = until, until
	}
	stmt := newQuery("SELECT " + group + ", " + summedColumns + " FROM (")
	part := func(columns, table string, from, to int64) {
		stmt.add("SELECT account, at, sandbox, run, session, agent, user, model, " + columns + " FROM " + table + " WHERE true")
		stmt.and("at >= ?", from)
		stmt.and("at < ?", to)
		stmt.inUsageQuery(in, q)
	}
	if first < last {
		part(usageColumns, "usage", first, last)
		stmt.add(" UNION ALL ")
	}
	part(callColumns, "call", since, first)
	stmt.add(" UNION ALL ")
	part(callColumns, "call", last, until)
	stmt.add(") GROUP BY 1 ORDER BY 1")
	return stmt
}

// inUsageQuery appends the conditions of a scope and of u, except those on the time.
func (q *query) inUsageQuery(in caisson.Scope, u caisson.UsageQuery) {
	q.inScope(in)
	q.andIfSet("account =", u.Account)
	q.andIfSet("run =", u.Run)
	q.andIfSet("sandbox =", string(u.Sandbox))
	q.andIfSet("agent =", u.Agent)
	q.andIfSet("model =", u.Model)
	if u.Under != "" {
		q.inRunTree(accountParam(in), u.Under)
	}
}

// inRunTree appends the condition that calls belong to the run with the given id of an account, or to a sub-run of it at any
// level.
func (q *query) inRunTree(account sql.NullString, run string) {
	q.and("run IN (SELECT ? UNION ALL SELECT run FROM lineage WHERE ancestor = ? AND account = coalesce(?, account))", run, run, account)
}

// Calls implements [caisson.LedgerStore]. Calls are in the order in which they were added to the ledger, so that a
// client that follows the list misses none, including calls that took long.
func (l *ledger) Calls(ctx context.Context, in caisson.Scope, u caisson.UsageQuery, after caisson.ID, limit int) (page []caisson.Call, more bool, err error) {
	if limit, err = pageLimit(limit); err != nil {
		return nil, false, err
	}
	q := newQuery("SELECT doc FROM call WHERE true")
	if err := q.startAfter(ctx, l.db, l.position, in, after); err != nil {
		return nil, false, err
	}
	q.inUsageQuery(in, u)
	if !u.Since.IsZero() {
		q.and("at >= ?", u.Since.UnixMicro())
	}
	if !u.Until.IsZero() {
		q.and("at < ?", u.Until.UnixMicro())
	}
	q.add(" ORDER BY seq LIMIT ?", limit+1)
	page, more, err = readPage(func(s scanner, n int) (c caisson.Call, err error) {
		if n == limit {
			return c, errPageFull
		}
		err = scanDoc(s, "call", &c)
		return c, err
	})(q.rows(ctx, l.db))
	return page, more, l.db.explain(err)
}

// likePattern converts s to a LIKE pattern with the escape character \ that matches strings containing s.
func likePattern(s string) string {
	return "%" + strings.NewReplacer(`\`, `\\`, "%", `\%`, "_", `\_`).Replace(s) + "%"
}
