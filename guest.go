package caisson

import (
	"context"
	"strconv"
)

// MaxLineage is the maximum number of ancestors of a sub-run: the run that started it, the run that started that one, and so on.
const MaxLineage = 8

// A Guest identifies the sandbox or run on a wire, and thus the account that is charged. It comes from the wire or from
// a signed run token, never from the content of a request.
type Guest struct {
	Sandbox ID     `json:"sandbox"` // "" for a run of another machine
	Account string `json:"account"`
	Run     string `json:"run,omitempty" doc:"The run that the sandbox serves; for one without a run, its own id"`
	Attempt int    `json:"attempt,omitempty"`
	Session string `json:"session,omitempty"`
	Agent   string `json:"agent,omitempty"`
	User    string `json:"user,omitempty" doc:"The account's name for the person on whose behalf the run is made"`
	Lineage string `json:"lineage,omitempty" doc:"Ids of the runs that this one is part of, outermost first, with spaces between"`
	Trace   string `json:"trace,omitempty" doc:"Trace id of all records of the attempt"`
}

// Reference returns "run/attempt/call", which identifies the charge for a call among those with the same source, which is the
// component that metered the call. For a sandbox without a run, its id takes the place of the run's id.
func (g Guest) Reference(call ID) string {
	run := g.Run
	if run == "" {
		run = string(g.Sandbox)
	}
	return run + "/" + strconv.Itoa(g.Attempt) + "/" + string(call)
}

// guestKey is the key of the Guest in a context.
type guestKey struct{}

// WithGuest returns a context that carries g. Only wires call it, and model gateways that have verified a run token.
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

// A WireSpec is the configuration of one sandbox's wire. It can change while the sandbox runs.
type WireSpec struct {
	Guest  Guest       `json:"guest"`
	Policy Policy      `json:"policy"`
	Models *ModelGrant `json:"models,omitempty"` // nil: the sandbox has no model gateway
	Tools  bool        `json:"tools,omitempty"`  // the guest may start sub-runs
}
