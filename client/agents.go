package client

import (
	"context"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// agents implements [caisson.Agents] by requests to a daemon.
type agents struct{ c *requester }

// ListAgents implements [caisson.Agents].
func (a agents) ListAgents(ctx context.Context) ([]*caisson.Agent, error) {
	return callList[*caisson.Agent](ctx, a.c, get("agents"))
}

// GetAgent implements [caisson.Agents].
func (a agents) GetAgent(ctx context.Context, id string) (*caisson.Agent, error) {
	return call[*caisson.Agent](ctx, a.c, get("agents", id))
}

// PutAgent implements [caisson.Agents].
func (a agents) PutAgent(ctx context.Context, agent caisson.Agent) (*caisson.Agent, error) {
	agent.Status = caisson.AgentStatus{} // not sent, because only the daemon sets the status
	return call[*caisson.Agent](ctx, a.c, put(agent, "agents", agent.ID))
}

// RemoveAgent implements [caisson.Agents].
func (a agents) RemoveAgent(ctx context.Context, id string) error {
	return a.c.do(ctx, remove("agents", id))
}

// BuildAgent implements [caisson.Agents].
func (a agents) BuildAgent(ctx context.Context, id string, progress func(caisson.Progress)) (*caisson.Agent, error) {
	return callWithProgress[*caisson.Agent](ctx, a.c, post(nil, "agents", id, "build"), progress)
}

// WarmAgent implements [caisson.Agents].
func (a agents) WarmAgent(ctx context.Context, id string, progress func(caisson.Progress)) (*caisson.Agent, error) {
	return callWithProgress[*caisson.Agent](ctx, a.c, post(nil, "agents", id, "warm"), progress)
}

// SetAgentPool implements [caisson.Agents].
func (a agents) SetAgentPool(ctx context.Context, id string, size int) (*caisson.Agent, error) {
	return call[*caisson.Agent](ctx, a.c, put(protocol.PoolSize{Size: size}, "agents", id, "pool"))
}

// CheckAgent implements [caisson.Agents].
func (a agents) CheckAgent(ctx context.Context, id string) ([]caisson.AgentCheck, error) {
	return callList[caisson.AgentCheck](ctx, a.c, get("agents", id, "check"))
}
