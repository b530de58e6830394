package httpapi

import (
	"context"
	"net/http"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// gatewayRoutes serves the management of runs on other machines that use this daemon's model gateway.
type gatewayRoutes struct{ core caisson.GatewayRuns }

func (h gatewayRoutes) register(rt *router) {
	const tag = "gateway"
	registerRoute(rt, newOperation(http.MethodGet, "/gateway/runs", "list-gateway-runs", tag, "List the runs on other machines that may use this model gateway, sorted by id"), h.list)
	registerRoute(rt, newOperation(http.MethodPut, "/gateway/runs/{run}", "put-gateway-run", tag,
		"Make a run on another machine known, or replace what is known of it; another attempt ends the one before"), h.put)
	registerRoute(rt, newOperation(http.MethodDelete, "/gateway/runs/{run}", "remove-gateway-run", tag, "End a run on another machine, and remove its budget"), h.remove)
}

// RunParam is the id of a run in a path.
type RunParam struct {
	Run string `path:"run" maxLength:"64" doc:"Letters, digits, '_' and '-'; unique among all accounts"`
}

func (h gatewayRoutes) list(ctx context.Context, _ *struct{}) (*body[protocol.Page[*caisson.GatewayRun]], error) {
	list, err := h.core.ListGatewayRuns(ctx)
	if err != nil {
		return nil, err
	}
	return wholeList(list), nil
}

func (h gatewayRoutes) put(ctx context.Context, in *struct {
	RunParam
	Body protocol.GatewayRunRequest
},
) (*body[*caisson.GatewayRun], error) {
	req := in.Body
	run := caisson.GatewayRun{
		Run: in.Run, Attempt: req.Attempt, Account: req.Account, Session: req.Session, Agent: req.Agent, User: req.User, Models: req.Models,
	}
	if req.ExpiresAt != nil {
		run.ExpiresAt = *req.ExpiresAt
	}
	r, err := h.core.PutGatewayRun(ctx, run)
	return &body[*caisson.GatewayRun]{r}, err
}

func (h gatewayRoutes) remove(ctx context.Context, in *RunParam) (*noContent, error) {
	return nil, h.core.RemoveGatewayRun(ctx, in.Run)
}
