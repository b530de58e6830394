package client

import (
	"context"
	"net/http"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// agents implements [caisson.Agents] by requests to a daemon.
type agents struct{ c *requester }

// ListAgents implements [caisson.Agents].
func (a agents) ListAgents(ctx context.Context) ([]*caisson.Agent, error) {
	return callList[*caisson.Agent](ctx, a.c, request{method: http.MethodGet, path: []string{"agents"}})
}

// GetAgent implements [caisson.Agents].
func (a agents) GetAgent(ctx context.Context, id string) (*caisson.Agent, error) {
	return call[*caisson.Agent](ctx, a.c, request{method: http.MethodGet, path: []string{"agents", id}})
}

// PutAgent implements [caisson.Agents].
func (a agents) PutAgent(ctx context.Context, agent caisson.Agent) (*caisson.Agent, error) {
	agent.Status = caisson.AgentStatus{} // only the daemon sets it
	return call[*caisson.Agent](ctx, a.c, request{method: http.MethodPut, path: []string{"agents", agent.ID}, jsonBody: agent})
}

// RemoveAgent implements [caisson.Agents].
func (a agents) RemoveAgent(ctx context.Context, id string) error {
	return a.c.do(ctx, request{method: http.MethodDelete, path: []string{"agents", id}})
}

// BuildAgent implements [caisson.Agents].
func (a agents) BuildAgent(ctx context.Context, id string, progress func(caisson.Progress)) (*caisson.Agent, error) {
	return callWithProgress[*caisson.Agent](ctx, a.c, request{method: http.MethodPost, path: []string{"agents", id, "build"}}, progress)
}

// WarmAgent implements [caisson.Agents].
func (a agents) WarmAgent(ctx context.Context, id string, progress func(caisson.Progress)) (*caisson.Agent, error) {
	return callWithProgress[*caisson.Agent](ctx, a.c, request{method: http.MethodPost, path: []string{"agents", id, "warm"}}, progress)
}

// SetAgentPool implements [caisson.Agents].
func (a agents) SetAgentPool(ctx context.Context, id string, size int) (*caisson.Agent, error) {
	return call[*caisson.Agent](ctx, a.c, request{method: http.MethodPut, path: []string{"agents", id, "pool"}, jsonBody: protocol.PoolSize{Size: size}})
}

// CheckAgent implements [caisson.Agents].
func (a agents) CheckAgent(ctx context.Context, id string) ([]caisson.AgentCheck, error) {
	return callList[caisson.AgentCheck](ctx, a.c, request{method: http.MethodGet, path: []string{"agents", id, "check"}})
}
