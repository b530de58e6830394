package client

import (
	"context"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// gatewayRuns implements [caisson.GatewayRuns] by requests to a daemon.
type gatewayRuns struct{ c *requester }

// PutGatewayRun implements [caisson.GatewayRuns].
func (g gatewayRuns) PutGatewayRun(ctx context.Context, r caisson.GatewayRun) (*caisson.GatewayRun, error) {
	in := protocol.GatewayRunRequest{
		Attempt: r.Attempt, Account: r.Account, Session: r.Session, Agent: r.Agent, User: r.User, Models: r.Models,
	}
	if !r.ExpiresAt.IsZero() {
		in.ExpiresAt = &r.ExpiresAt
	}
	return call[*caisson.GatewayRun](ctx, g.c, put(in, "gateway", "runs", r.Run))
}

// ListGatewayRuns implements [caisson.GatewayRuns].
func (g gatewayRuns) ListGatewayRuns(ctx context.Context) ([]*caisson.GatewayRun, error) {
	return callList[*caisson.GatewayRun](ctx, g.c, get("gateway", "runs"))
}

// RemoveGatewayRun implements [caisson.GatewayRuns].
func (g gatewayRuns) RemoveGatewayRun(ctx context.Context, run string) error {
	return g.c.do(ctx, remove("gateway", "runs", run))
}
