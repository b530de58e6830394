package subruns

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"unicode/utf8"

	"github.com/caisson-dev/caisson"
)

// An Executor is the engine's side of sub-runs: it executes the requests of agents in sandboxes. The requests are untrusted; they
// arrive from a process that parses untrusted input.
type Executor struct {
	Guests  caisson.GuestRuns // starts, finds and cancels sub-runs
	Budgets Budgets
	Ingest  func(ctx context.Context) error // reads finished model calls into the ledger
	Log     *slog.Logger
}

// Budgets reads the budgets that model calls are charged to; see [caisson.LedgerStore].
type Budgets interface {
	GetBudget(ctx context.Context, in caisson.Scope, key string) (*caisson.Budget, error)
}

// Limits of the descriptions of runs and agents in a response. A message to the wire process holds at most 120 KiB. The limits
// count bytes in JSON encoding, in which a text of angle brackets is six times as long.
const (
	maxAnswer      = 72 << 10 // bytes of the answer of a run
	maxErrorText   = 8 << 10  // bytes of the message of an error
	maxName        = 60       // bytes of the name of an agent
	maxDescription = 300      // bytes of the description of an agent
	maxAgents      = 200      // agents in a list
)

// describeRun returns the description of a run for a guest, with its answer if it has ended.
func describeRun(r *caisson.Run) run {
	g := run{ID: r.ID, Agent: r.Agent, State: r.State}
	if r.Result != nil && r.State.Ended() {
		g.Cost = max(r.Usage.Cost, r.Result.Usage.Cost).String() // cost of all attempts
		g.Answer, g.Truncated = cutJSON(r.Result.Answer, maxAnswer)
		if e := r.Result.Error; e != nil {
			msg, _ := cutJSON(e.Message, maxErrorText)
			if e.Code == caisson.RunProvider {
				// The message may contain hosts and parts of credentials, which must not reach a sandbox.
				msg = "a model provider failed; the user who started the first run can see the details with caisson runs show " + string(r.ID)
			}
			g.Error = &caisson.RunError{Code: e.Code, Message: msg}
		}
	}
	return g
}

// cutJSON returns the longest prefix of s that takes at most n bytes in JSON encoding, and whether it is shorter than s.
func cutJSON(s string, n int) (string, bool) {
	took := 0
	for i, r := range s {
		switch {
		case r == '"' || r == '\\':
			took += 2
		case r < ' ' || r == '<' || r == '>' || r == '&' || r == utf8.RuneError || r == 0x2028 || r == 0x2029:
			took += 6
		default:
			took += utf8.RuneLen(r)
		}
		if took > n {
			return s[:i], true
		}
	}
	return s, false
}

// describeAgents returns the descriptions of at most maxAgents agents for a guest.
func describeAgents(list []*caisson.Agent) []agent {
	agents := make([]agent, 0, len(list))
	for _, a := range list[:min(len(list), maxAgents)] {
		name, _ := cutJSON(a.Name, maxName)
		about, _ := cutJSON(a.Description, maxDescription)
		agents = append(agents, agent{a.ID, name, about})
	}
	return agents
}

// Call executes a request of the guest in ctx: "agents", "start", "run" or "cancel". It does not wait for runs to end.
func (h *Executor) Call(ctx context.Context, name string, in json.RawMessage) (json.RawMessage, error) {
	var out any
	switch name {
	case "agents":
		list, err := h.Guests.GuestAgents(ctx)
		if err != nil {
			return nil, err
		}
		out = describeAgents(list)
	case "start":
		var req startRequest
		if err := decode(in, true, &req); err != nil {
			return nil, err
		}
		var err error
		if out, err = h.start(ctx, &req); err != nil {
			return nil, err
		}
	case "run", "cancel":
		var id caisson.ID
		if err := decode(in, true, &id); err != nil {
			return nil, err
		}
		get := h.Guests.GuestRun
		if name == "cancel" {
			get = h.Guests.CancelGuestRun
		}
		r, err := get(ctx, id)
		if err != nil {
			return nil, err
		}
		out = describeRun(r)
	default:
		return nil, caisson.Errorf(caisson.NotFound, "there is no tool %.40q", name)
	}
	return json.Marshal(out)
}

// start starts a run, unless a budget that its calls would be charged to is used up.
func (h *Executor) start(ctx context.Context, req *startRequest) (any, error) {
	// Check first that the guest may start runs at all: other guests must not learn whether a budget is used up.
	if _, err := h.Guests.GuestAgents(ctx); err != nil {
		return nil, err
	}
	g, err := caisson.GuestOf(ctx)
	if err != nil {
		return nil, err
	}
	// An error is not fatal: calls that could not be read are charged later, and the budget then refuses the run's first call.
	if err := h.Ingest(ctx); err != nil {
		h.Log.WarnContext(ctx, "the calls of a run cannot be read before it starts another", "run", g.Run, "err", err)
	}
	for _, key := range g.Budgets() {
		b, err := h.Budgets.GetBudget(ctx, caisson.In(g.Account), key)
		switch {
		case caisson.KindOf(err) == caisson.NotFound:
			continue
		case err != nil:
			return nil, err
		}
		if what := exhaustedLimit(b); what != "" {
			return budgetSpent{fmt.Sprintf("nothing is left of the %s of %s, which the run would be charged to", what, key)}, nil
		}
	}
	r, err := h.Guests.StartGuestRun(ctx, caisson.RunRequest{
		Agent: req.Agent, Persona: req.Persona, Prompt: req.Prompt, History: req.History, Model: req.Model, Env: req.Env, Limits: req.Limits,
	})
	if err != nil {
		return nil, err
	}
	return describeRun(r), nil
}

// exhaustedLimit returns the name of the first limit of a budget that is used up, or "" if none is.
func exhaustedLimit(b *caisson.Budget) string {
	switch l := b.Limits; {
	case l.USD != nil && b.Used.USD >= *l.USD:
		return "budget of dollars"
	case l.Tokens != nil && b.Used.Tokens >= *l.Tokens:
		return "budget of tokens"
	case l.Calls != nil && b.Used.Calls >= *l.Calls:
		return "budget of calls"
	}
	return ""
}
