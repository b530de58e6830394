package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/caisson-dev/caisson"
)

// guestRequest is what an agent may say of the run that it starts.
type guestRequest struct {
	Agent   string              `json:"agent"`
	Persona string              `json:"persona,omitempty"`
	Prompt  string              `json:"prompt"`
	History []caisson.Message   `json:"history,omitempty"`
	Model   string              `json:"model,omitempty"`
	Env     map[string]string   `json:"env,omitempty"`
	Limits  caisson.AgentLimits `json:"limits,omitzero"`
}

// guestAgent is what an agent is told of another.
type guestAgent struct {
	ID          string `json:"id"`
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
}

// guestRun is what an agent is told of a run.
type guestRun struct {
	ID     caisson.ID        `json:"id"`
	Agent  string            `json:"agent"`
	State  caisson.RunState  `json:"state"`
	Answer string            `json:"answer,omitempty"`
	Cut    bool              `json:"cut,omitempty"` // the answer was longer
	Error  *caisson.RunError `json:"error,omitempty"`
	Cost   string            `json:"cost,omitempty"`
}

// guestSpent is said instead of a run that nothing is left for.
type guestSpent struct {
	Spent string `json:"spent"`
}

// Bounds of what one agent is told of others. A message to the wire process has 120 KiB at most, and bytes count as they are written in
// JSON: an answer that is nothing but angle brackets is six times as long there.
const (
	maxGuestAnswer = 72 << 10
	maxGuestError  = 8 << 10
	maxGuestName   = 60
	maxGuestAbout  = 300
	maxGuestAgents = 200
)

func tellGuest(r *caisson.Run) guestRun {
	g := guestRun{ID: r.ID, Agent: r.Agent, State: r.State}
	if r.Result != nil && r.State.Ended() {
		g.Cost = max(r.Usage.Cost, r.Result.Usage.Cost).String() // of all attempts
		g.Answer, g.Cut = cutJSON(r.Result.Answer, maxGuestAnswer)
		if e := r.Result.Error; e != nil {
			msg, _ := cutJSON(e.Message, maxGuestError)
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

func tellAgents(list []*caisson.Agent) []guestAgent {
	agents := make([]guestAgent, 0, len(list))
	for _, a := range list[:min(len(list), maxGuestAgents)] {
		name, _ := cutJSON(a.Name, maxGuestName)
		about, _ := cutJSON(a.Description, maxGuestAbout)
		agents = append(agents, guestAgent{a.ID, name, about})
	}
	return agents
}

// guestTool does what an agent asks for, whose guest is in ctx. It never waits for a run.
func (e *Engine) guestTool(ctx context.Context, name string, in json.RawMessage) (json.RawMessage, error) {
	var out any
	switch name {
	case "agents":
		list, err := e.tasks.Guests().GuestAgents(ctx)
		if err != nil {
			return nil, err
		}
		out = tellAgents(list)
	case "start":
		var req guestRequest
		if err := decodeGuest(in, &req); err != nil {
			return nil, err
		}
		var err error
		if out, err = startGuest(ctx, e, &req); err != nil {
			return nil, err
		}
	case "run", "cancel":
		var id caisson.ID
		if err := decodeGuest(in, &id); err != nil {
			return nil, err
		}
		get := e.tasks.Guests().GuestRun
		if name == "cancel" {
			get = e.tasks.Guests().CancelGuestRun
		}
		r, err := get(ctx, id)
		if err != nil {
			return nil, err
		}
		out = tellGuest(r)
	default:
		return nil, caisson.Errorf(caisson.NotFound, "there is no tool %.40q", name)
	}
	return json.Marshal(out)
}

// decodeGuest reads what an agent says: every field known, and nothing behind it.
func decodeGuest(in json.RawMessage, v any) error {
	d := json.NewDecoder(bytes.NewReader(in))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return caisson.Wrap(err, caisson.Invalid, "the request makes no sense: it takes agent, prompt, persona, history, model, env and limits")
	}
	if _, err := d.Token(); err != io.EOF {
		return caisson.Invalidf("body", "there is something behind the request")
	}
	return nil
}

// startGuest starts a run, unless a budget that its calls would come out of has nothing left.
func startGuest(ctx context.Context, e *Engine, req *guestRequest) (any, error) {
	// Whether the guest may start any comes first: only who may is told of budgets.
	if _, err := e.tasks.Guests().GuestAgents(ctx); err != nil {
		return nil, err
	}
	g, err := caisson.GuestOf(ctx)
	if err != nil {
		return nil, err
	}
	// What is not read counts when the first call is made: then the budget says so.
	if err := e.book.Ingest(ctx); err != nil {
		e.cfg.Log.WarnContext(ctx, "the calls of a run cannot be read before it starts another", "run", g.Run, "err", err)
	}
	for _, key := range g.Budgets() {
		b, err := e.Store.Ledger().GetBudget(ctx, caisson.In(g.Account), key)
		switch {
		case caisson.KindOf(err) == caisson.NotFound:
			continue
		case err != nil:
			return nil, err
		}
		if what := usedUp(b); what != "" {
			return guestSpent{fmt.Sprintf("nothing is left of the %s of %s, which the run would be charged to", what, key)}, nil
		}
	}
	r, err := e.tasks.Guests().StartGuestRun(ctx, caisson.RunRequest{
		Agent: req.Agent, Persona: req.Persona, Prompt: req.Prompt, History: req.History, Model: req.Model, Env: req.Env, Limits: req.Limits,
	})
	if err != nil {
		return nil, err
	}
	return tellGuest(r), nil
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
