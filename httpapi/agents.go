package httpapi

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// agentRoutes serves the catalog of agents.
type agentRoutes struct{ core caisson.Agents }

// AgentParam is the id of an agent in a path.
type AgentParam struct {
	ID string `path:"id" maxLength:"63" doc:"Id of the agent"`
}

// agentBody is a response with an agent.
type agentBody = body[*caisson.Agent]

func (h agentRoutes) register(rt *router) {
	const tag = "agents"
	const progress = "Events named progress (Progress), then one named result (Agent) or error (Problem)"
	registerRoute(rt, newOperation(http.MethodGet, "/agents", "list-agents", tag, "List the agents that there are, by id"), h.list)
	registerRoute(rt, newOperation(http.MethodGet, "/agents/{id}", "get-agent", tag, "Get an agent"), h.get)
	registerRoute(rt, newOperation(http.MethodPut, "/agents/{id}", "put-agent", tag, "Create or replace an agent"), h.put)
	registerRoute(rt, newOperation(http.MethodDelete, "/agents/{id}", "remove-agent", tag, "Delete an agent"), h.remove)
	registerRoute(rt, newOperation(http.MethodGet, "/agents/{id}/check", "check-agent", tag, "Check the requirements of an agent and its skills"), h.check)
	registerRoute(rt, newOperation(http.MethodPut, "/agents/{id}/pool", "set-agent-pool", tag, "Set how many forks of an agent's warm snapshot are kept ready"), h.setPool)
	registerStreamRoute(rt, withEventStream(newOperation(http.MethodPost, "/agents/{id}/build", "build-agent", tag, "Build the root file system of an agent"),
		progress), serveAgent(rt, h.core.BuildAgent))
	registerStreamRoute(rt, withEventStream(newOperation(http.MethodPost, "/agents/{id}/warm", "warm-agent", tag, "Rebuild an agent's warm snapshot"),
		progress), serveAgent(rt, h.core.WarmAgent))
}

func (h agentRoutes) list(ctx context.Context, _ *struct{}) (*body[protocol.Page[*caisson.Agent]], error) {
	list, err := h.core.ListAgents(ctx)
	if err != nil {
		return nil, err
	}
	return wholeList(list), nil
}

// answerAgent returns the response for the result of a core, or its error.
func answerAgent(a *caisson.Agent, err error) (*agentBody, error) {
	if err != nil {
		return nil, err
	}
	return &agentBody{a}, nil
}

func (h agentRoutes) get(ctx context.Context, in *AgentParam) (*agentBody, error) {
	return answerAgent(h.core.GetAgent(ctx, in.ID))
}

func (h agentRoutes) put(ctx context.Context, in *struct {
	AgentParam
	Body caisson.Agent
},
) (*agentBody, error) {
	a := in.Body
	if a.ID != in.ID {
		return nil, caisson.Invalidf("id", "must be %q, the id in the path", in.ID)
	}
	// A client can send back an agent that it has read: fields that only Caisson sets are ignored.
	a.Account, a.Status, a.CreatedAt = "", caisson.AgentStatus{}, time.Time{}
	return answerAgent(h.core.PutAgent(ctx, a))
}

func (h agentRoutes) remove(ctx context.Context, in *AgentParam) (*noContent, error) {
	return nil, h.core.RemoveAgent(ctx, in.ID)
}

func (h agentRoutes) setPool(ctx context.Context, in *struct {
	AgentParam
	Body protocol.PoolSize
},
) (*agentBody, error) {
	return answerAgent(h.core.SetAgentPool(ctx, in.ID, in.Body.Size))
}

func (h agentRoutes) check(ctx context.Context, in *AgentParam) (*body[protocol.Page[caisson.AgentCheck]], error) {
	list, err := h.core.CheckAgent(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	return wholeList(list), nil
}

// serveAgent returns the handler of a long operation on an agent, which work executes. The response is that of [serveProgress].
func serveAgent(rt *router, work func(context.Context, string, func(caisson.Progress)) (*caisson.Agent, error)) func(http.ResponseWriter, *http.Request, *AgentParam) error {
	return func(w http.ResponseWriter, r *http.Request, in *AgentParam) error {
		return serveProgress(rt, w, r, func(ctx context.Context, progress func(caisson.Progress)) (*caisson.Agent, error) {
			return work(ctx, in.ID, progress)
		})
	}
}

// catalogOf returns agents in the format of GET /ai/agents, sorted by name. fallback is the id of the default agent.
func catalogOf(agents []*caisson.Agent, fallback string) protocol.AgentCatalog {
	c := protocol.AgentCatalog{Agents: make([]protocol.CatalogAgent, 0, len(agents))}
	for _, a := range agents {
		entry := protocol.CatalogAgent{AgentID: a.ID, GraphID: protocol.GraphPrefix + a.ID, Name: cmp.Or(a.Name, a.ID)}
		if a.Description != "" {
			entry.Description = &a.Description
		}
		if a.ID == fallback {
			c.DefaultAgentID = &a.ID
		}
		c.Agents = append(c.Agents, entry)
	}
	slices.SortFunc(c.Agents, func(a, b protocol.CatalogAgent) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.AgentID, b.AgentID))
	})
	return c
}
