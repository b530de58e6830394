package client

import (
	"context"
	"io"
	"net/http"
	"net/url"

	"github.com/caisson-dev/caisson"
)

// services implements [caisson.Services] by requests to a daemon.
type services struct{ c *requester }

// ListServices implements [caisson.Services].
func (s services) ListServices(ctx context.Context, ref string) ([]caisson.ServiceStatus, error) {
	return callList[caisson.ServiceStatus](ctx, s.c, request{method: http.MethodGet, path: []string{"sandboxes", ref, "services"}})
}

// ApplyServices implements [caisson.Services].
func (s services) ApplyServices(ctx context.Context, ref string, req caisson.ServicesRequest) ([]caisson.ServiceStatus, error) {
	return callList[caisson.ServiceStatus](ctx, s.c, request{method: http.MethodPut, path: []string{"sandboxes", ref, "services"}, jsonBody: req})
}

// RemoveService implements [caisson.Services].
func (s services) RemoveService(ctx context.Context, ref, id string) error {
	return s.c.do(ctx, request{method: http.MethodDelete, path: []string{"sandboxes", ref, "services", id}})
}

// RestartService implements [caisson.Services].
func (s services) RestartService(ctx context.Context, ref, id string) error {
	return s.c.do(ctx, request{method: http.MethodPost, path: []string{"sandboxes", ref, "services", id, "restart"}})
}

// ServiceLogs implements [caisson.Services].
func (s services) ServiceLogs(ctx context.Context, ref, id string, follow bool) (io.ReadCloser, error) {
	q := url.Values{}
	if follow {
		q.Set("follow", "true")
	}
	return s.c.openStream(ctx, request{method: http.MethodGet, path: []string{"sandboxes", ref, "services", id, "logs"}, query: q})
}
