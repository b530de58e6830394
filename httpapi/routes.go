package httpapi

import (
	"context"
	"net/http"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// ingressRoutes serves the management of routes, which the ingress serves.
type ingressRoutes struct{ core caisson.Routes }

// routeBody is a response with a route.
type routeBody = body[*caisson.Route]

// RouteRef is the reference of a route in a path.
type RouteRef struct {
	Ref string `path:"ref" maxLength:"128" doc:"Id or name of the route"`
}

func (h ingressRoutes) register(rt *router) {
	const tag = "routes"
	registerRoute(rt, newOperation(http.MethodGet, "/routes", "list-routes", tag, "List routes, oldest first"), h.list)
	registerRoute(rt, newOperation(http.MethodPut, "/routes/{ref}", "put-route", tag, "Add or replace the route of that name; it is served when this returns"), h.put)
	registerRoute(rt, newOperation(http.MethodGet, "/routes/{ref}", "get-route", tag, "Get a route"), h.get)
	registerRoute(rt, newOperation(http.MethodDelete, "/routes/{ref}", "remove-route", tag, "Remove a route and end its requests"), h.remove)
	registerRoute(rt, newOperation(http.MethodGet, "/routes/{ref}/requests", "list-route-requests", tag, "List recent requests of a route, the newest last"), h.requests)
	registerRoute(rt, newOperation(http.MethodPost, "/signed-urls", "sign-url", tag, "Make a URL that gives its holder access to a port of a sandbox, or to a route"), h.sign)
}

func (h ingressRoutes) list(ctx context.Context, in *PageParams) (*body[protocol.Page[*caisson.Route]], error) {
	f, err := in.filter(caisson.RoutePrefix)
	if err != nil {
		return nil, err
	}
	page, more, err := h.core.ListRoutes(ctx, f)
	if err != nil {
		return nil, err
	}
	return pageOf(page, more, asIs, func(r *caisson.Route) caisson.ID { return r.ID }), nil
}

// answerRoute returns the response for the result of a core, or its error.
func answerRoute(r *caisson.Route, err error) (*routeBody, error) {
	if err != nil {
		return nil, err
	}
	return &routeBody{r}, nil
}

func (h ingressRoutes) put(ctx context.Context, in *struct {
	RouteRef
	Body caisson.RouteSpec
},
) (*routeBody, error) {
	return answerRoute(h.core.PutRoute(ctx, in.Ref, in.Body))
}

func (h ingressRoutes) get(ctx context.Context, in *RouteRef) (*routeBody, error) {
	return answerRoute(h.core.GetRoute(ctx, in.Ref))
}

func (h ingressRoutes) remove(ctx context.Context, in *RouteRef) (*noContent, error) {
	return nil, h.core.RemoveRoute(ctx, in.Ref)
}

func (h ingressRoutes) requests(ctx context.Context, in *RouteRef) (*body[protocol.Page[caisson.RouteRequest]], error) {
	list, err := h.core.RouteLog(ctx, in.Ref)
	if err != nil {
		return nil, err
	}
	return wholeList(list), nil
}

func (h ingressRoutes) sign(ctx context.Context, in *struct{ Body caisson.SignRequest }) (*body[*caisson.SignedURL], error) {
	u, err := h.core.SignURL(ctx, in.Body)
	if err != nil {
		return nil, err
	}
	return &body[*caisson.SignedURL]{u}, nil
}
