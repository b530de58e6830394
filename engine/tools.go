package engine

import (
	"bytes"
	"context"
	"encoding/json"

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

// maxGuestAnswer bounds what one agent is told of another's answer.
const maxGuestAnswer = 48 << 10

func tellGuest(r *caisson.Run) guestRun {
	g := guestRun{ID: r.ID, Agent: r.Agent, State: r.State}
	if r.Result != nil && r.State.Ended() {
		g.Answer, g.Error, g.Cost = r.Result.Answer, r.Result.Error, r.Result.Usage.Cost.String()
		if len(g.Answer) > maxGuestAnswer {
			g.Answer, g.Cut = string(bytes.ToValidUTF8([]byte(g.Answer[:maxGuestAnswer]), nil)), true
		}
	}
	return g
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
		agents := make([]guestAgent, len(list))
		for i, a := range list {
			agents[i] = guestAgent{a.ID, a.Name, a.Description}
		}
		out = agents
	case "start":
		var req guestRequest
		if err := decodeGuest(in, &req); err != nil {
			return nil, err
		}
		r, err := e.tasks.Guests().StartGuestRun(ctx, caisson.RunRequest{
			Agent: req.Agent, Persona: req.Persona, Prompt: req.Prompt, History: req.History, Model: req.Model, Env: req.Env, Limits: req.Limits,
		})
		if err != nil {
			return nil, err
		}
		out = tellGuest(r)
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
	if d.More() {
		return caisson.Invalidf("body", "there is something behind the request")
	}
	return nil
}
