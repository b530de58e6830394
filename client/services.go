package client

import (
	"context"
	"io"

	"github.com/caisson-dev/caisson"
)

// services implements [caisson.Services] by requests to a daemon.
type services struct{ c *requester }

// ListServices implements [caisson.Services].
func (s services) ListServices(ctx context.Context, ref string) ([]caisson.ServiceStatus, error) {
	return callList[caisson.ServiceStatus](ctx, s.c, get("sandboxes", ref, "services"))
}

// ApplyServices implements [caisson.Services].
func (s services) ApplyServices(ctx context.Context, ref string, req caisson.ServicesRequest) ([]caisson.ServiceStatus, error) {
	return callList[caisson.ServiceStatus](ctx, s.c, put(req, "sandboxes", ref, "services"))
}

// RemoveService implements [caisson.Services].
func (s services) RemoveService(ctx context.Context, ref, id string) error {
	return s.c.do(ctx, remove("sandboxes", ref, "services", id))
}

// RestartService implements [caisson.Services].
func (s services) RestartService(ctx context.Context, ref, id string) error {
	return s.c.do(ctx, post(nil, "sandboxes", ref, "services", id, "restart"))
}

// ServiceLogs implements [caisson.Services].
func (s services) ServiceLogs(ctx context.Context, ref, id string, follow bool) (io.ReadCloser, error) {
	return s.c.openStream(ctx, get("sandboxes", ref, "services", id, "logs").withFlag("follow", follow))
}
