package httpapi

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// agentRoutes serves the requests about agents.
type agentRoutes struct{ core caisson.Agents }

// AgentParam is the id of an agent in a path.
type AgentParam struct {
	ID string `path:"id" maxLength:"63" doc:"Id of the agent"`
}

// ref returns the id in the path; see [refParam].
func (p AgentParam) ref() string { return p.ID }

func (h agentRoutes) register(rt *router) {
	const tag = "agents"
	registerListRoute(rt, getOp("/agents", "list-agents", tag, "List agents, by id"), withoutInput(h.core.ListAgents))
	registerRoute(rt, getOp("/agents/{id}", "get-agent", tag, "Get an agent"), byRef[AgentParam](h.core.GetAgent))
	registerRoute(rt, putOp("/agents/{id}", "put-agent", tag, "Create or replace an agent"), h.put)
	registerActionRoute(rt, deleteOp("/agents/{id}", "remove-agent", tag, "Delete an agent"), removeByRef[AgentParam](h.core.RemoveAgent))
	registerListRoute(rt, getOp("/agents/{id}/check", "check-agent", tag, "Check the requirements of an agent and its skills"),
		byRef[AgentParam](h.core.CheckAgent))
	registerRoute(rt, putOp("/agents/{id}/pool", "set-agent-pool", tag, "Set how many forks of an agent's warm snapshot are kept ready"), h.setPool)
	registerProgressRoute(rt, postOp("/agents/{id}/build", "build-agent", tag, "Build the root file system of an agent"), "Agent", h.build)
	registerProgressRoute(rt, postOp("/agents/{id}/warm", "warm-agent", tag, "Rebuild an agent's warm snapshot"), "Agent", h.warm)
}

func (h agentRoutes) put(ctx context.Context, in *struct {
	AgentParam
	Body caisson.Agent
},
) (*caisson.Agent, error) {
	a := in.Body
	if a.ID != in.ID {
		return nil, caisson.Invalidf("id", "must be %q, the id in the path", in.ID)
	}
	// A client can send back an agent that it has read: fields that only Caisson sets are ignored.
	a.Account, a.Status, a.CreatedAt = "", caisson.AgentStatus{}, time.Time{}
	return h.core.PutAgent(ctx, a)
}

func (h agentRoutes) setPool(ctx context.Context, in *struct {
	AgentParam
	Body protocol.PoolSize
},
) (*caisson.Agent, error) {
	return h.core.SetAgentPool(ctx, in.ID, in.Body.Size)
}

func (h agentRoutes) build(ctx context.Context, in *AgentParam, progress func(caisson.Progress)) (*caisson.Agent, error) {
	return h.core.BuildAgent(ctx, in.ID, progress)
}

func (h agentRoutes) warm(ctx context.Context, in *AgentParam, progress func(caisson.Progress)) (*caisson.Agent, error) {
	return h.core.WarmAgent(ctx, in.ID, progress)
}

// newAgentCatalog returns agents in the format of GET /ai/agents, sorted by name. fallback is the id of the default agent for
// chats.
func newAgentCatalog(agents []*caisson.Agent, fallback string) protocol.AgentCatalog {
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
