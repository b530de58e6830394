package httpapi

import (
	"context"

	"github.com/caisson-dev/caisson"
)

// ingressRoutes serves the management of routes, which the ingress serves to clients outside.
type ingressRoutes struct{ core caisson.Routes }

// RouteRef is the reference of a route in a path.
type RouteRef struct {
	Ref string `path:"ref" maxLength:"128" doc:"Id or name of the route"`
}

// ref returns the id or name in the path; see [refParam].
func (p RouteRef) ref() string { return p.Ref }

func (h ingressRoutes) register(rt *router) {
	const tag = "routes"
	registerRoute(rt, getOp("/routes", "list-routes", tag, "List routes, oldest first"),
		listPages[PageParams](caisson.RoutePrefix, h.core.ListRoutes, asIs, func(r *caisson.Route) caisson.ID { return r.ID }))
	registerRoute(rt, putOp("/routes/{ref}", "put-route", tag, "Add or replace the route of that name; it is served when this returns"), h.put)
	registerRoute(rt, getOp("/routes/{ref}", "get-route", tag, "Get a route"), byRef[RouteRef](h.core.GetRoute))
	registerActionRoute(rt, deleteOp("/routes/{ref}", "remove-route", tag, "Remove a route and end its requests"),
		removeByRef[RouteRef](h.core.RemoveRoute))
	registerListRoute(rt, getOp("/routes/{ref}/requests", "list-route-requests", tag, "List recent requests of a route, the newest last"),
		byRef[RouteRef](h.core.RouteLog))
	registerRoute(rt, postOp("/signed-urls", "sign-url", tag, "Make a URL that gives its holder access to a port of a sandbox, or to a route"), h.sign)
}

func (h ingressRoutes) put(ctx context.Context, in *struct {
	RouteRef
	Body caisson.RouteSpec
},
) (*caisson.Route, error) {
	return h.core.PutRoute(ctx, in.Ref, in.Body)
}

func (h ingressRoutes) sign(ctx context.Context, in *body[caisson.SignRequest]) (*caisson.SignedURL, error) {
	return h.core.SignURL(ctx, in.Body)
}
