package client

import (
	"context"

	"github.com/caisson-dev/caisson"
)

// routes implements [caisson.Routes] by requests to a daemon.
type routes struct{ c *requester }

// ListRoutes implements [caisson.Routes].
func (r routes) ListRoutes(ctx context.Context, f caisson.Filter) (page []*caisson.Route, more bool, err error) {
	if len(f.States) > 0 {
		return nil, false, caisson.Invalidf("state", "routes have no states")
	}
	return callFiltered[*caisson.Route](ctx, r.c, "routes", f)
}

// PutRoute implements [caisson.Routes].
func (r routes) PutRoute(ctx context.Context, name string, spec caisson.RouteSpec) (*caisson.Route, error) {
	return call[*caisson.Route](ctx, r.c, put(spec, "routes", name))
}

// GetRoute implements [caisson.Routes].
func (r routes) GetRoute(ctx context.Context, ref string) (*caisson.Route, error) {
	return call[*caisson.Route](ctx, r.c, get("routes", ref))
}

// RemoveRoute implements [caisson.Routes].
func (r routes) RemoveRoute(ctx context.Context, ref string) error {
	return r.c.do(ctx, remove("routes", ref))
}

// SignURL implements [caisson.Routes].
func (r routes) SignURL(ctx context.Context, req caisson.SignRequest) (*caisson.SignedURL, error) {
	return call[*caisson.SignedURL](ctx, r.c, post(req, "signed-urls"))
}

// RouteLog implements [caisson.Routes].
func (r routes) RouteLog(ctx context.Context, ref string) ([]caisson.RouteRequest, error) {
	return callList[caisson.RouteRequest](ctx, r.c, get("routes", ref, "requests"))
}
