package httpapi

import (
	"context"
	"net/http"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// sessionRoutes serves sessions, which are conversations with agents.
type sessionRoutes struct{ core caisson.Runs }

func (h sessionRoutes) register(rt *router) {
	const tag = "sessions"
	registerRoute(rt, newOperation(http.MethodGet, "/sessions", "list-sessions", tag, "List conversations"), h.list)
	registerRoute(rt, newOperation(http.MethodDelete, "/sessions/{id}", "remove-session", tag, "End a conversation and delete its sandbox; its runs are kept"), h.remove)
}

func (h sessionRoutes) list(ctx context.Context, in *struct {
	Agent string `query:"agent" maxLength:"63" doc:"Only with this agent"`
	User  string `query:"user" maxLength:"256" doc:"Only of this user"`
	Key   string `query:"key" maxLength:"512" doc:"Only with this key"`
},
) (*body[protocol.Page[*caisson.Session]], error) {
	list, err := h.core.ListSessions(ctx, caisson.SessionFilter{Agent: in.Agent, User: in.User, Key: in.Key})
	if err != nil {
		return nil, err
	}
	return wholeList(list), nil
}

func (h sessionRoutes) remove(ctx context.Context, in *struct {
	ID string `path:"id" maxLength:"64" doc:"Id of the session"`
},
) (*noContent, error) {
	id, err := caisson.ParseID(caisson.SessionPrefix, in.ID)
	if err != nil {
		return nil, caisson.Errorf(caisson.NotFound, "there is no session %.40q", in.ID)
	}
	return nil, h.core.RemoveSession(ctx, id)
}
