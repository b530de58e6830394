package httpapi

import (
	"context"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// deliveryRoutes serves deliveries: commits of runs and sandboxes on their way to the remotes of repositories.
type deliveryRoutes struct{ core caisson.Repos }

// DeliveryRef is the id of a delivery, or of its run, in a path.
type DeliveryRef struct {
	Ref string `path:"ref" maxLength:"64" doc:"Id of the delivery, or of the run whose newest it is"`
}

// ref returns the id in the path; see [refParam].
func (p DeliveryRef) ref() string { return p.Ref }

// DeliveryParam is the id of a delivery in a path.
type DeliveryParam struct {
	ID string `path:"id" maxLength:"64" doc:"Id of the delivery"`
}

// id returns the id in the path; see [idParam].
func (p DeliveryParam) id() (caisson.ID, error) {
	return parseIDParam(caisson.DeliveryPrefix, "delivery", p.ID)
}

func (h deliveryRoutes) register(rt *router) {
	const tag = "deliveries"
	list := getOp("/deliveries", "list-deliveries", tag, "List deliveries, newest first")
	list.Description = "Findings are omitted, and long bodies are truncated."
	registerRoute(rt, list, h.list)
	registerRoute(rt, getOp("/deliveries/{ref}", "get-delivery", tag, "Get a delivery"), byRef[DeliveryRef](h.core.GetDelivery))
	registerRoute(rt, postOp("/deliveries/{id}/retry", "retry-delivery", tag,
		"Send a delivery now that is held, has failed, or waits for its next try"), byID[DeliveryParam](h.core.RetryDelivery))
	registerRoute(rt, postOp("/deliveries/{id}/drop", "drop-delivery", tag, "Drop a delivery that has not been delivered"),
		byID[DeliveryParam](h.core.DropDelivery))
}

func (h deliveryRoutes) list(ctx context.Context, in *struct {
	State []caisson.DeliveryState `query:"state,explode" enum:"held,waiting,sending,delivered,failed,dropped" doc:"Only those in one of these states"`
	Repo  string                  `query:"repo" maxLength:"64" doc:"Only of the repository with this name"`
	Run   string                  `query:"run" doc:"Only of the run with this id"`
	After string                  `query:"after" doc:"Value of next in the previous page"`
	Limit int                     `query:"limit" minimum:"0" maximum:"1000" doc:"Size of the page; 0 means 100"`
},
) (protocol.Page[*caisson.Delivery], error) {
	f := caisson.DeliveryFilter{States: in.State, Repo: in.Repo, Limit: in.Limit}
	err := parseIDs(idQuery{"run", caisson.RunPrefix, in.Run, &f.Run}, idQuery{"after", caisson.DeliveryPrefix, in.After, &f.Before})
	if err != nil {
		return protocol.Page[*caisson.Delivery]{}, err
	}
	page, more, err := h.core.ListDeliveries(ctx, f)
	return newPage(page, more, deliveryExcerpt, func(d *caisson.Delivery) caisson.ID { return d.ID }), err
}

// deliveryExcerpt returns d as lists contain it: with a shortened body and without findings.
func deliveryExcerpt(d *caisson.Delivery) *caisson.Delivery {
	out := *d
	out.Body, out.Findings = excerpt(d.Body), nil
	return &out
}
