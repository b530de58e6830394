package httpapi

import (
	"context"
	"net/http"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// serviceRoutes serves the services of sandboxes.
type serviceRoutes struct{ core caisson.Services }

// servicesBody is a response with all services of a sandbox.
type servicesBody = body[protocol.Page[caisson.ServiceStatus]]

// ServiceRef is the reference of a service in a path.
type ServiceRef struct {
	RefParam
	ID string `path:"id" maxLength:"64" doc:"Id of the service"`
}

func (h serviceRoutes) register(rt *router) {
	const tag = "services"
	registerRoute(rt, newOperation(http.MethodGet, "/sandboxes/{ref}/services", "list-services", tag, "List the services of a sandbox with their conditions"), h.list)
	registerRoute(rt, newOperation(http.MethodPut, "/sandboxes/{ref}/services", "apply-services", tag, "Add and change services of a sandbox"), h.apply)
	registerRoute(rt, newOperation(http.MethodDelete, "/sandboxes/{ref}/services/{id}", "remove-service", tag, "End a service and remove it"), h.remove)
	registerRoute(rt, newOperation(http.MethodPost, "/sandboxes/{ref}/services/{id}/restart", "restart-service", tag, "End a service, if it runs, and start it"), h.restart)
	registerStreamRoute(rt, withResponse(newOperation(http.MethodGet, "/sandboxes/{ref}/services/{id}/logs", "get-service-logs", tag, "Get the last output of a service"),
		http.StatusOK, protocol.BinaryType, "Standard output and error, interleaved"), h.logs)
}

// answerServices returns the response for the result of a core, or its error.
func answerServices(list []caisson.ServiceStatus, err error) (*servicesBody, error) {
	if err != nil {
		return nil, err
	}
	return wholeList(list), nil
}

func (h serviceRoutes) list(ctx context.Context, in *RefParam) (*servicesBody, error) {
	return answerServices(h.core.ListServices(ctx, in.Ref))
}

func (h serviceRoutes) apply(ctx context.Context, in *struct {
	RefParam
	Body caisson.ServicesRequest
},
) (*servicesBody, error) {
	return answerServices(h.core.ApplyServices(ctx, in.Ref, in.Body))
}

func (h serviceRoutes) remove(ctx context.Context, in *ServiceRef) (*noContent, error) {
	return nil, h.core.RemoveService(ctx, in.Ref, in.ID)
}

func (h serviceRoutes) restart(ctx context.Context, in *ServiceRef) (*noContent, error) {
	return nil, h.core.RestartService(ctx, in.Ref, in.ID)
}

func (h serviceRoutes) logs(w http.ResponseWriter, r *http.Request, in *struct {
	ServiceRef
	Follow bool `query:"follow" doc:"Follow the output until the sandbox stops or the service is removed"`
},
) error {
	log, err := h.core.ServiceLogs(r.Context(), in.Ref, in.ID, in.Follow)
	if err != nil {
		return err
	}
	return streamBody(w, log, protocol.BinaryType)
}
