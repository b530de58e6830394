package httpapi

import (
	"context"

	"github.com/caisson-dev/caisson"
)

// sessionRoutes serves sessions, which are conversations with agents.
type sessionRoutes struct{ core caisson.Runs }

func (h sessionRoutes) register(rt *router) {
	const tag = "sessions"
	registerListRoute(rt, getOp("/sessions", "list-sessions", tag, "List conversations"), h.list)
	registerActionRoute(rt, deleteOp("/sessions/{id}", "remove-session", tag, "End a conversation and delete its sandbox; its runs are kept"),
		removeByID[SessionParam](h.core.RemoveSession))
}

// SessionParam is the id of a session in a path.
type SessionParam struct {
	ID string `path:"id" maxLength:"64" doc:"Id of the session"`
}

// id returns the id in the path; see [idParam].
func (p SessionParam) id() (caisson.ID, error) {
	return parseIDParam(caisson.SessionPrefix, "session", p.ID)
}

func (h sessionRoutes) list(ctx context.Context, in *struct {
	Agent string `query:"agent" maxLength:"63" doc:"Only with this agent"`
	User  string `query:"user" maxLength:"256" doc:"Only of this user"`
	Key   string `query:"key" maxLength:"512" doc:"Only with this key"`
},
) ([]*caisson.Session, error) {
	return h.core.ListSessions(ctx, caisson.SessionFilter{Agent: in.Agent, User: in.User, Key: in.Key})
}
