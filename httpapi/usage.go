package httpapi

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
	"github.com/caisson-dev/caisson/internal/usagecsv"
)

// usageRoutes serves the ledger and its budgets.
type usageRoutes struct{ core caisson.Ledger }

func (h usageRoutes) register(rt *router) {
	const tag = "usage"
	registerStreamRoute(rt, withTableResponse[caisson.UsageRow](rt, getOp("/usage", "usage", tag, "Sum up the calls of models")), h.usage)
	registerStreamRoute(rt, withTableResponse[caisson.Call](rt, getOp("/usage/calls", "list-calls", tag,
		"List model calls in the order of the ledger")), h.calls)
	registerStreamRoute(rt, withTableResponse[caisson.Receipt](rt, getOp("/usage/receipts", "list-receipts", tag,
		"List the charges for calls; source and reference are unique")), h.receipts)
	registerListRoute(rt, postOp("/usage/reconcile", "reconcile-usage", tag, "Compare the ledger with LiteLLM's spend logs"), h.reconcile)
	registerListRoute(rt, getOp("/budgets", "list-budgets", tag, "List budgets by key"), withoutInput(h.core.ListBudgets))
	registerRoute(rt, putOp("/budgets", "set-budget", tag, "Create a budget, or change its limits and period"), h.setBudget)
	registerActionRoute(rt, deleteOp("/budgets/{kind}/{name}", "remove-budget", tag, "Remove a budget"), h.removeBudget)
}

// UsageParams select calls of models, and the format of the response.
type UsageParams struct {
	Account string     `query:"account" maxLength:"32" doc:"Another account, or * for all of them (unix socket only)"`
	Run     string     `query:"run" maxLength:"128" doc:"Only calls of this run"`
	Under   string     `query:"under" maxLength:"128" doc:"Only calls of this run and of its sub-runs"`
	Agent   string     `query:"agent" maxLength:"128" doc:"Only calls of this agent"`
	Sandbox caisson.ID `query:"sandbox" maxLength:"19" doc:"Only calls of this sandbox, by id"`
	Model   string     `query:"model" maxLength:"256" doc:"Only calls of the model with this alias"`
	Since   time.Time  `query:"since" doc:"Only calls accepted then or later"`
	Until   time.Time  `query:"until" doc:"Only calls accepted earlier"`
	Format  string     `query:"format" enum:"json,csv" default:"json" doc:"Form of the answer"`
}

// query returns p as a query of the ledger, without the format.
func (p UsageParams) query() caisson.UsageQuery {
	return caisson.UsageQuery{
		Account: p.Account, Run: p.Run, Under: p.Under, Agent: p.Agent, Sandbox: p.Sandbox, Model: p.Model, Since: p.Since, Until: p.Until,
	}
}

// callsInput is a request to list calls of models, or the charges for them.
type callsInput struct {
	UsageParams
	After string `query:"after" maxLength:"256" doc:"Value of next in the previous page"`
	Limit int    `query:"limit" minimum:"0" maximum:"1000" doc:"Size of the page; 0 means 100"`
}

// withTableResponse returns o with a response that is one page of T, as JSON or, if the request selects that, as CSV.
func withTableResponse[T any](rt *router, o huma.Operation) huma.Operation {
	o = withJSONResponse[protocol.Page[T]](rt, o)
	o.Responses["200"].Content[protocol.CSVType] = &huma.MediaType{Schema: &huma.Schema{Type: huma.TypeString}}
	return o
}

// writeTable writes a page in the given format, "json" or "csv". The function csv encodes the page as CSV; in this format, the
// field next of the page becomes a header.
func writeTable[T any](w http.ResponseWriter, format string, p protocol.Page[T], csv func(io.Writer, []T) error) error {
	if format != "csv" {
		return writeJSON(w, http.StatusOK, p)
	}
	w.Header().Set("Content-Type", protocol.CSVType)
	if p.Next != "" {
		w.Header().Set(protocol.NextHeader, string(p.Next))
	}
	return csv(w, p.Items)
}

// usage responds with sums of calls of models.
func (h usageRoutes) usage(w http.ResponseWriter, r *http.Request, in *struct {
	By string `query:"by" enum:"run,sandbox,account,model,day,session,agent,user" doc:"How calls are grouped; absent: one sum of all"`
	UsageParams
},
) error {
	q := in.query()
	q.By = in.By
	rows, err := h.core.Usage(r.Context(), q)
	if err != nil {
		return err
	}
	return writeTable(w, in.Format, newPage(rows, false, asIs, nil), usagecsv.WriteRows)
}

// calls responds with a list of calls of models.
func (h usageRoutes) calls(w http.ResponseWriter, r *http.Request, in *callsInput) error {
	var after caisson.ID
	if in.After != "" {
		id, err := caisson.ParseID(caisson.CallPrefix, in.After)
		if err != nil {
			return caisson.Invalidf("after", "%.40q is not the end of a page", in.After)
		}
		after = id
	}
	list, more, err := h.core.Calls(r.Context(), in.query(), after, in.Limit)
	if err != nil {
		return err
	}
	return writeTable(w, in.Format, newPage(list, more, asIs, func(c caisson.Call) caisson.ID { return c.ID }), usagecsv.WriteCalls)
}

// receipts responds with a list of charges for calls of models.
func (h usageRoutes) receipts(w http.ResponseWriter, r *http.Request, in *callsInput) error {
	list, more, err := h.core.Receipts(r.Context(), in.query(), in.After, in.Limit)
	if err != nil {
		return err
	}
	p := newPage(list, more, asIs, func(c caisson.Receipt) caisson.ID { return caisson.ID(c.Reference) })
	return writeTable(w, in.Format, p, usagecsv.WriteReceipts)
}

// reconcile compares the calls of a provider in the ledger with LiteLLM's spend logs, and responds with the differences.
func (h usageRoutes) reconcile(ctx context.Context, in *body[protocol.ReconcileRequest]) ([]caisson.Discrepancy, error) {
	return h.core.Reconcile(ctx, in.Body.Provider, in.Body.Since)
}

func (h usageRoutes) setBudget(ctx context.Context, in *body[protocol.BudgetRequest]) (*caisson.Budget, error) {
	req := in.Body
	return h.core.SetBudget(ctx, caisson.Budget{Key: req.Key, Account: req.Account, Limits: req.Limits, Period: req.Period})
}

func (h usageRoutes) removeBudget(ctx context.Context, in *struct {
	Kind string `path:"kind" enum:"account,session,run,sandbox"`
	Name string `path:"name" maxLength:"128"`
},
) error {
	return h.core.RemoveBudget(ctx, in.Kind+"/"+in.Name)
}
