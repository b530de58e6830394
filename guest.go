package caisson

import (
	"context"
	"strconv"
)

// MaxLineage is how many runs a run can be part of at most.
const MaxLineage = 8

// A Guest is who speaks on a wire, and so who is charged. The wire decides it, or a signed run token does; nothing in a
// request can.
type Guest struct {
	Sandbox ID     `json:"sandbox"`
	Account string `json:"account"`
	Run     string `json:"run,omitempty" doc:"The run that the sandbox serves; for one without a run, its own id"`
	Attempt int    `json:"attempt,omitempty"`
	Session string `json:"session,omitempty"`
	Agent   string `json:"agent,omitempty"`
	User    string `json:"user,omitempty" doc:"The account's own name for the person behind the run"`
	Lineage string `json:"lineage,omitempty" doc:"Ids of the runs that this one is part of, outermost first, with spaces between"`
	Trace   string `json:"trace,omitempty" doc:"Names all that is recorded for the attempt"`
}

// Reference returns "run/attempt/call", which together with the source of a charge is unique.
func (g Guest) Reference(call ID) string {
	run := g.Run
	if run == "" {
		run = string(g.Sandbox)
	}
	return run + "/" + strconv.Itoa(g.Attempt) + "/" + string(call)
}

type guestKey struct{}

// WithGuest returns a context that carries g. Only wires and gateways that have verified a run token call it.
func WithGuest(ctx context.Context, g Guest) context.Context {
	return context.WithValue(ctx, guestKey{}, g)
}

// GuestOf returns the guest in ctx, or an Unauthed error: there is no default guest.
func GuestOf(ctx context.Context) (Guest, error) {
	g, ok := ctx.Value(guestKey{}).(Guest)
	if !ok || g.Account == "" {
		return Guest{}, Errorf(Unauthed, "this request did not come over a wire")
	}
	return g, nil
}

// A WireSpec is what a wire is for one sandbox: whose it is and what it leads to. It can change while the sandbox runs.
type WireSpec struct {
	Guest  Guest       `json:"guest"`
	Policy Policy      `json:"policy"`
	Models *ModelGrant `json:"models,omitempty"` // nil: no model gateway
	Tools  bool        `json:"tools,omitempty"`  // whether runs of other agents may be started
}
