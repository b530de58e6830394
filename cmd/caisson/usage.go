package main

import (
	"cmp"
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/usagecsv"
)

// usageCmd shows the usage of models.
type usageCmd struct {
	By       string `help:"Group sums by: ${enum}." enum:"run,agent,user,account,model,day,sandbox,session,total" default:"model" placeholder:"WHAT"`
	Since    string `help:"Only calls since then: 24h, 7d, 2026-05-01 or 2026-05-01T12:00:00Z; default all, for lists 24h." placeholder:"TIME"`
	Until    string `help:"Only calls before then." placeholder:"TIME"`
	OfRun    string `name:"run" help:"Only calls of this run." placeholder:"RUN"`
	Under    string `help:"Only calls of this run and its sub-runs." placeholder:"RUN"`
	Agent    string `help:"Only calls of this agent." placeholder:"AGENT"`
	Sandbox  string `help:"Only calls of this sandbox." placeholder:"ID" complete:"sandbox"`
	Model    string `help:"Only calls of this model." placeholder:"ALIAS" complete:"model"`
	All      bool   `help:"All accounts." short:"a"`
	Compare  string `name:"reconcile" help:"Instead of sums, print the differences from the spend logs of this LiteLLM provider." placeholder:"PROVIDER"`
	Calls    bool   `help:"List calls instead of sums."`
	Receipts bool   `help:"List charges instead of sums."`
	CSV      bool   `name:"csv" help:"Print CSV."`
}

func (c *usageCmd) Help() string {
	return examples("caisson usage", "caisson usage --by day --since 30d --all", "caisson usage --calls --since 1h -o json",
		"caisson usage --receipts --since 2026-05-01 --until 2026-06-01 --csv", "caisson usage --reconcile litellm --since 7d")
}

// maxListed is the maximum number of calls or charges that are listed; a longer list is an error.
const maxListed = 100_000

// ProvideQuery checks the flags and returns the query that they specify, without the value of --sandbox, which Run adds.
func (c *usageCmd) ProvideQuery() (q caisson.UsageQuery, err error) {
	if c.Calls && c.Receipts || c.Compare != "" && (c.Calls || c.Receipts || c.CSV) {
		return q, usagef("usage", "--calls, --receipts and --reconcile exclude each other")
	}
	return c.query(time.Now())
}

func (c *usageCmd) Run(ctx context.Context, a *app, q caisson.UsageQuery, api api) (err error) {
	if c.Sandbox != "" {
		// A removed sandbox can only be identified by its id.
		if q.Sandbox, err = caisson.ParseID(caisson.SandboxPrefix, c.Sandbox); err != nil {
			s, err := api.Get(ctx, c.Sandbox)
			if err != nil {
				return err
			}
			q.Sandbox = s.ID
		}
	}
	switch {
	case c.Calls:
		return c.calls(ctx, a, api, q)
	case c.Receipts:
		return c.receipts(ctx, a, api, q)
	case c.Compare != "":
		return c.reconcile(ctx, a, api, q.Since)
	}
	rows, err := api.Usage(ctx, q)
	if err != nil {
		return err
	}
	if c.CSV {
		return usagecsv.WriteRows(a.out, rows)
	}
	return c.print(a, rows)
}

// query returns the query that the flags other than --sandbox specify.
func (c *usageCmd) query(now time.Time) (q caisson.UsageQuery, err error) {
	q = caisson.UsageQuery{Run: c.OfRun, Under: c.Under, Agent: c.Agent, Model: c.Model}
	if c.All {
		q.Account = "*"
	}
	sums := !c.Calls && !c.Receipts && c.Compare == ""
	if c.Since == "" && !sums {
		c.Since = "24h"
	}
	if q.Since, err = parseMoment("since", c.Since, now); err != nil {
		return q, err
	}
	if q.Until, err = parseMoment("until", c.Until, now); err != nil {
		return q, err
	}
	if c.By != "total" && sums {
		q.By = c.By
	}
	return q, nil
}

// parseMoment parses a point in time: a duration before now, a date or a time. "" is the zero time. field is the name of the flag
// in errors.
func parseMoment(field, s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if d, err := caisson.ParseDuration(s); err == nil {
		return now.Add(-time.Duration(d)), nil
	}
	for _, layout := range []string{time.DateOnly, time.RFC3339} {
		if t, err := time.Parse(layout, s); err == nil {
			return t, nil
		}
	}
	return time.Time{}, caisson.Invalidf(field, "%.40q is not a time; write for example 24h, 7d, 2026-05-01 or 2026-05-01T12:00:00Z", s)
}

// print prints sums of calls of models.
func (c *usageCmd) print(a *app, rows []caisson.UsageRow) error {
	count := func(of func(caisson.UsageRow) int64) func(caisson.UsageRow) string {
		return func(r caisson.UsageRow) string { return strconv.FormatInt(of(r), 10) }
	}
	return printList(a, rows, []column[caisson.UsageRow]{
		{name: strings.ToUpper(c.By), value: func(r caisson.UsageRow) string { return r.Key }},
		{name: "CALLS", value: count(func(r caisson.UsageRow) int64 { return r.Calls })},
		{name: "FAILED", value: count(func(r caisson.UsageRow) int64 { return r.Failed })},
		{name: "ESTIMATED", value: count(func(r caisson.UsageRow) int64 { return r.Estimated })},
		{name: "INPUT", value: count(func(r caisson.UsageRow) int64 { return r.Tokens.Input })},
		{name: "CACHED", value: count(func(r caisson.UsageRow) int64 { return r.Tokens.CacheRead + r.Tokens.CacheWrite })},
		{name: "OUTPUT", value: count(func(r caisson.UsageRow) int64 { return r.Tokens.Output })},
		{name: "USD", value: func(r caisson.UsageRow) string { return r.Cost.String() }},
	})
}

// listAtMost returns all items of a list, of which read requests one page that follows the item with the id after. It returns
// Invalid if the list has more than maxListed items.
func listAtMost[T any](id func(T) string, read func(after string, limit int) ([]T, bool, error)) ([]T, error) {
	list, err := collectPages(maxListed+1, id, read)
	if err == nil && len(list) > maxListed {
		err = caisson.Errorf(caisson.Invalid, "there are more than %d entries; narrow the period with --since and --until", maxListed)
	}
	return list, err
}

// calls prints the list of calls that q selects.
func (c *usageCmd) calls(ctx context.Context, a *app, api api, q caisson.UsageQuery) error {
	id := func(c caisson.Call) string { return string(c.ID) }
	list, err := listAtMost(id, func(after string, limit int) ([]caisson.Call, bool, error) {
		return api.Calls(ctx, q, caisson.ID(after), limit)
	})
	if err != nil {
		return err
	}
	if c.CSV {
		return usagecsv.WriteCalls(a.out, list)
	}
	return printList(a, list, []column[caisson.Call]{
		{name: "CALL", value: id},
		{name: "AT", value: func(c caisson.Call) string { return formatTime(c.At) }},
		{name: "SANDBOX", value: func(c caisson.Call) string { return string(c.Sandbox) }},
		{name: "MODEL", value: func(c caisson.Call) string { return c.Model }},
		{name: "STATUS", value: func(c caisson.Call) string {
			if c.Error != "" {
				return strconv.Itoa(c.Status) + " " + c.Error
			}
			return strconv.Itoa(c.Status)
		}},
		{name: "TOKENS", value: func(c caisson.Call) string { return strconv.FormatInt(c.Tokens.Total(), 10) }},
		{name: "USD", value: func(c caisson.Call) string {
			if c.Estimated {
				return "~" + c.Cost.String()
			}
			return c.Cost.String()
		}},
		{name: "TOOK", value: func(c caisson.Call) string { return time.Duration(c.Duration).Round(time.Millisecond).String() }},
	})
}

// receipts prints the list of charges for the calls that q selects.
func (c *usageCmd) receipts(ctx context.Context, a *app, api api, q caisson.UsageQuery) error {
	reference := func(r caisson.Receipt) string { return r.Reference }
	list, err := listAtMost(reference, func(after string, limit int) ([]caisson.Receipt, bool, error) {
		return api.Receipts(ctx, q, after, limit)
	})
	if err != nil {
		return err
	}
	if c.CSV {
		return usagecsv.WriteReceipts(a.out, list)
	}
	return printList(a, list, []column[caisson.Receipt]{
		{name: "SOURCE", value: func(r caisson.Receipt) string { return r.Source }},
		{name: "REFERENCE", value: reference, id: reference},
		{name: "ACCOUNT", value: func(r caisson.Receipt) string { return r.Account }},
		{name: "AT", value: func(r caisson.Receipt) string { return formatTime(r.At) }},
		{name: "USD", value: func(r caisson.Receipt) string { return r.Cost.String() }},
	})
}

// reconcile prints the differences between the ledger and the spend logs of the LiteLLM provider c.Compare, for calls since a
// time.
func (c *usageCmd) reconcile(ctx context.Context, a *app, api api, since time.Time) error {
	id := func(d caisson.Discrepancy) string { return cmp.Or(string(d.Call), d.UpstreamID) }
	return asList(a, []column[caisson.Discrepancy]{
		{name: "CALL", id: id, value: func(d caisson.Discrepancy) string { return string(d.Call) }},
		{name: "UPSTREAM ID", value: func(d caisson.Discrepancy) string { return d.UpstreamID }},
		{name: "PROBLEM", value: func(d caisson.Discrepancy) string { return d.Problem }},
		{name: "HERE", value: func(d caisson.Discrepancy) string { return d.Here.String() }},
		{name: "UPSTREAM", value: func(d caisson.Discrepancy) string { return d.Upstream.String() }},
	})(api.Reconcile(ctx, c.Compare, since))
}
