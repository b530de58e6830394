package tools

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"unicode/utf8"

	"github.com/caisson-dev/caisson"
)

// A Host is the engine's end: it does what agents in sandboxes ask for. What is asked comes from a process that reads what
// strangers wrote.
type Host struct {
	Guests  caisson.GuestRuns
	Budgets Budgets
	Ingest  func(ctx context.Context) error // reads the calls that have ended into the ledger
	Log     *slog.Logger
}

// Budgets are what calls of models are charged to; see [caisson.LedgerStore].
type Budgets interface {
	GetBudget(ctx context.Context, in caisson.Scope, key string) (*caisson.Budget, error)
}

// Bounds of what one agent is told of others. A message to the wire process has 120 KiB at most, and bytes count as they are written in
// JSON: an answer that is nothing but angle brackets is six times as long there.
const (
	mostAnswer = 72 << 10
	mostError  = 8 << 10
	mostName   = 60
	mostAbout  = 300
	mostAgents = 200
)

func tell(r *caisson.Run) run {
	g := run{ID: r.ID, Agent: r.Agent, State: r.State}
	if r.Result != nil && r.State.Ended() {
		g.Cost = max(r.Usage.Cost, r.Result.Usage.Cost).String() // of all attempts
		g.Answer, g.Cut = cutJSON(r.Result.Answer, mostAnswer)
		if e := r.Result.Error; e != nil {
			msg, _ := cutJSON(e.Message, mostError)
			if e.Code == caisson.RunProvider {
				// It names hosts and credentials, which are nothing for a sandbox.
				msg = "a provider of models failed; whoever started the first run finds out more with caisson runs show " + string(r.ID)
			}
			g.Error = &caisson.RunError{Code: e.Code, Message: msg}
		}
	}
	return g
}

// cutJSON returns the beginning of s that takes at most n bytes as JSON, and whether something is missing.
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

func tellAgents(list []*caisson.Agent) []agent {
	agents := make([]agent, 0, len(list))
	for _, a := range list[:min(len(list), mostAgents)] {
		name, _ := cutJSON(a.Name, mostName)
		about, _ := cutJSON(a.Description, mostAbout)
		agents = append(agents, agent{a.ID, name, about})
	}
	return agents
}

// Call implements [Call] for the guest in ctx. It never waits for a run.
func (h *Host) Call(ctx context.Context, name string, in json.RawMessage) (json.RawMessage, error) {
	var out any
	switch name {
	case "agents":
		list, err := h.Guests.GuestAgents(ctx)
		if err != nil {
			return nil, err
		}
		out = tellAgents(list)
	case "start":
		var req start
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
		out = tell(r)
	default:
		return nil, caisson.Errorf(caisson.NotFound, "there is no tool %.40q", name)
	}
	return json.Marshal(out)
}

// start starts a run, unless a budget that its calls would come out of has nothing left.
func (h *Host) start(ctx context.Context, req *start) (any, error) {
	// Whether the guest may start any comes first: only who may is told of budgets.
	if _, err := h.Guests.GuestAgents(ctx); err != nil {
		return nil, err
	}
	g, err := caisson.GuestOf(ctx)
	if err != nil {
		return nil, err
	}
	// What is not read counts when the first call is made: then the budget says so.
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
		if what := usedUp(b); what != "" {
			return spent{fmt.Sprintf("nothing is left of the %s of %s, which the run would be charged to", what, key)}, nil
		}
	}
	r, err := h.Guests.StartGuestRun(ctx, caisson.RunRequest{
		Agent: req.Agent, Persona: req.Persona, Prompt: req.Prompt, History: req.History, Model: req.Model, Env: req.Env, Limits: req.Limits,
	})
	if err != nil {
		return nil, err
	}
	return tell(r), nil
}

// usedUp says which of a budget's limits has nothing left, "" for none.
func usedUp(b *caisson.Budget) string {
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
