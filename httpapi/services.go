package httpapi

import (
	"context"
	"io"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// serviceRoutes serves the services of sandboxes.
type serviceRoutes struct{ core caisson.Services }

// ServiceRef is the reference of a service in a path.
type ServiceRef struct {
	RefParam
	ID string `path:"id" maxLength:"64" doc:"Id of the service"`
}

func (h serviceRoutes) register(rt *router) {
	const tag = "services"
	registerListRoute(rt, getOp("/sandboxes/{ref}/services", "list-services", tag, "List the services of a sandbox with their conditions"),
		byRef[RefParam](h.core.ListServices))
	registerListRoute(rt, putOp("/sandboxes/{ref}/services", "apply-services", tag, "Add and change services of a sandbox"), h.apply)
	registerActionRoute(rt, deleteOp("/sandboxes/{ref}/services/{id}", "remove-service", tag, "End a service and remove it"), h.remove)
	registerActionRoute(rt, postOp("/sandboxes/{ref}/services/{id}/restart", "restart-service", tag, "End a service, if it runs, and start it"), h.restart)
	registerDownloadRoute(rt, getOp("/sandboxes/{ref}/services/{id}/logs", "get-service-logs", tag, "Get the last output of a service"),
		protocol.BinaryType, "Standard output and error, interleaved", h.logs)
}

// apply adds and changes services of a sandbox, and responds with the status of its services.
func (h serviceRoutes) apply(ctx context.Context, in *struct {
	RefParam
	Body caisson.ServicesRequest
},
) ([]caisson.ServiceStatus, error) {
	return h.core.ApplyServices(ctx, in.Ref, in.Body)
}

func (h serviceRoutes) remove(ctx context.Context, in *ServiceRef) error {
	return h.core.RemoveService(ctx, in.Ref, in.ID)
}

func (h serviceRoutes) restart(ctx context.Context, in *ServiceRef) error {
	return h.core.RestartService(ctx, in.Ref, in.ID)
}

func (h serviceRoutes) logs(ctx context.Context, in *struct {
	ServiceRef
	Follow bool `query:"follow" doc:"Follow the output until the sandbox stops or the service is removed"`
},
) (io.ReadCloser, error) {
	return h.core.ServiceLogs(ctx, in.Ref, in.ID, in.Follow)
}
