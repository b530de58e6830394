package apitest

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-dev/caisson"
)

func testRoutes(t *testing.T, ctx context.Context, c Cores) {
	sb := createSandbox(t, ctx, c, caisson.CreateRequest{})
	spec := caisson.RouteSpec{
		Host: strings.TrimPrefix(string(sb.ID), "sb-") + ".localhost", Path: "/api", Sandbox: string(sb.ID), Port: 3000, Methods: []string{"GET"}, StripPrefix: true,
		Auth: caisson.RouteAuth{Kind: caisson.RouteAuthNone}, Resume: true, Timeout: 1e9, IdleTimeout: 2e9, MaxBody: 5,
		CORS:    &caisson.RouteCORS{Origins: []string{"https://a.example"}, Credentials: true},
		Limits:  caisson.RouteLimits{Client: caisson.RouteRate{PerSecond: 0.5, Burst: 2}, MaxRequests: 3, MaxClient: 4},
		Headers: &caisson.RouteHeaders{Set: map[string]string{"X-A": "b"}}, ResponseHeaders: &caisson.RouteHeaders{Strip: []string{"X-B"}},
	}
	r := must(c.Routes.PutRoute(ctx, "web", spec))(t)
	if diff := cmp.Diff(spec, r.Spec); diff != "" || r.Name != "web" || r.CreatedAt.IsZero() {
		t.Errorf("%+v: %s", r, diff)
	}
	spec.Port = 4000
	if again := must(c.Routes.PutRoute(ctx, "web", spec))(t); again.ID != r.ID || again.Spec.Port != 4000 {
		t.Errorf("%+v", again)
	}
	for _, ref := range []string{"web", string(r.ID)} {
		if got := must(c.Routes.GetRoute(ctx, ref))(t); got.ID != r.ID || got.Spec.Port != 4000 {
			t.Errorf("%+v", got)
		}
	}
	_, err := c.Routes.PutRoute(ctx, "other", spec)
	Fails(t, err, caisson.Conflict, "")
	bad := spec
	bad.Auth.Kind = caisson.RouteAuthBearer
	_, err = c.Routes.PutRoute(ctx, "web", bad)
	Fails(t, err, caisson.Invalid, "auth.hashes")
	missing := spec
	missing.Sandbox = "nowhere"
	_, err = c.Routes.PutRoute(ctx, "web", missing)
	Fails(t, err, caisson.NotFound, "")
	page, more, err := c.Routes.ListRoutes(ctx, caisson.Filter{})
	if err != nil || more || len(page) != 1 || page[0].ID != r.ID {
		t.Errorf("%v, %t, %v", page, more, err)
	}
	if log := must(c.Routes.RouteLog(ctx, "web"))(t); len(log) != 0 {
		t.Errorf("%v", log)
	}
	_, err = c.Routes.SignURL(ctx, caisson.SignRequest{Sandbox: string(sb.ID), Port: 3000})
	Fails(t, err, caisson.Conflict, "") // no ingress is configured
	_, err = c.Routes.SignURL(ctx, caisson.SignRequest{Sandbox: string(sb.ID), Port: 3000, TTL: 1})
	Fails(t, err, caisson.Invalid, "ttl")
	succeeds(t, c.Routes.RemoveRoute(ctx, "web"))
	Fails(t, c.Routes.RemoveRoute(ctx, "web"), caisson.NotFound, "")
	_, err = c.Routes.RouteLog(ctx, "web")
	Fails(t, err, caisson.NotFound, "")
}
