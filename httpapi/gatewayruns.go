package httpapi

import (
	"context"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// gatewayRoutes serves the management of gateway runs, which are runs on other machines that use this daemon's model gateway.
type gatewayRoutes struct{ core caisson.GatewayRuns }

func (h gatewayRoutes) register(rt *router) {
	const tag = "gateway"
	registerListRoute(rt, getOp("/gateway/runs", "list-gateway-runs", tag, "List the runs on other machines that may use this model gateway, sorted by id"),
		withoutInput(h.core.ListGatewayRuns))
	registerRoute(rt, putOp("/gateway/runs/{run}", "put-gateway-run", tag,
		"Register a run on another machine, or update it; a new attempt ends the previous one"), h.put)
	registerActionRoute(rt, deleteOp("/gateway/runs/{run}", "remove-gateway-run", tag, "End a run on another machine, and remove its budget"),
		removeByRef[RunParam](h.core.RemoveGatewayRun))
}

// RunParam is the id of a gateway run in a path.
type RunParam struct {
	Run string `path:"run" maxLength:"64" doc:"Letters, digits, '_' and '-'; unique among all accounts"`
}

// ref returns the id in the path; see [refParam].
func (p RunParam) ref() string { return p.Run }

func (h gatewayRoutes) put(ctx context.Context, in *struct {
	RunParam
	Body protocol.GatewayRunRequest
},
) (*caisson.GatewayRun, error) {
	req := in.Body
	run := caisson.GatewayRun{
		Run: in.Run, Attempt: req.Attempt, Account: req.Account, Session: req.Session, Agent: req.Agent, User: req.User, Models: req.Models,
	}
	if req.ExpiresAt != nil {
		run.ExpiresAt = *req.ExpiresAt
	}
	return h.core.PutGatewayRun(ctx, run)
}
