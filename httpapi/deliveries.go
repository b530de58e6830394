package httpapi

import (
	"context"
	"net/http"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// deliveryRoutes serves deliveries: commits of runs and sandboxes on their way to the remotes of repositories.
type deliveryRoutes struct{ core caisson.Repos }

// deliveryBody is a response with a delivery.
type deliveryBody = body[*caisson.Delivery]

// DeliveryRef is the reference of a delivery in a path.
type DeliveryRef struct {
	Ref string `path:"ref" maxLength:"64" doc:"Id of the delivery, or of the run whose newest it is"`
}

// DeliveryParam is the id of a delivery in a path.
type DeliveryParam struct {
	ID string `path:"id" maxLength:"64" doc:"Id of the delivery"`
}

func (h deliveryRoutes) register(rt *router) {
	const tag = "deliveries"
	list := newOperation(http.MethodGet, "/deliveries", "list-deliveries", tag, "List deliveries, newest first")
	list.Description = "Findings are omitted, and long bodies are truncated."
	registerRoute(rt, list, h.list)
	registerRoute(rt, newOperation(http.MethodGet, "/deliveries/{ref}", "get-delivery", tag, "Get a delivery"), h.get)
	registerRoute(rt, newOperation(http.MethodPost, "/deliveries/{id}/retry", "retry-delivery", tag,
		"Send a delivery now that is held, has failed, or waits for its next try"), h.retry)
	registerRoute(rt, newOperation(http.MethodPost, "/deliveries/{id}/drop", "drop-delivery", tag, "Drop a delivery that has not been delivered"), h.drop)
}

func (h deliveryRoutes) list(ctx context.Context, in *struct {
	State []caisson.DeliveryState `query:"state,explode" enum:"held,waiting,sending,delivered,failed,dropped" doc:"Only those in one of these states"`
	Repo  string                  `query:"repo" maxLength:"64" doc:"Only of the repository with this name"`
	Run   string                  `query:"run" doc:"Only of the run with this id"`
	After string                  `query:"after" doc:"Value of next in the previous page"`
	Limit int                     `query:"limit" minimum:"0" maximum:"1000" doc:"Size of the page; 0 means 100"`
},
) (*body[protocol.Page[*caisson.Delivery]], error) {
	f := caisson.DeliveryFilter{States: in.State, Repo: in.Repo, Limit: in.Limit}
	for _, p := range []struct {
		field, prefix, value string
		to                   *caisson.ID
	}{{"run", caisson.RunPrefix, in.Run, &f.Run}, {"after", caisson.DeliveryPrefix, in.After, &f.Before}} {
		if p.value == "" {
			continue
		}
		id, err := caisson.ParseID(p.prefix, p.value)
		if err != nil {
			return nil, caisson.Invalidf(p.field, "%.40q is not an id of the form %s-xxxxxxxxxxxxxxxx", p.value, p.prefix)
		}
		*p.to = id
	}
	page, more, err := h.core.ListDeliveries(ctx, f)
	if err != nil {
		return nil, err
	}
	return pageOf(page, more, deliveryExcerpt, func(d *caisson.Delivery) caisson.ID { return d.ID }), nil
}

// deliveryExcerpt returns d as listings contain it: with a shortened body and without findings.
func deliveryExcerpt(d *caisson.Delivery) *caisson.Delivery {
	out := *d
	out.Body, out.Findings = excerpt(d.Body), nil
	return &out
}

// answerDelivery returns the response for the result of a core, or its error.
func answerDelivery(d *caisson.Delivery, err error) (*deliveryBody, error) {
	if err != nil {
		return nil, err
	}
	return &deliveryBody{d}, nil
}

func (h deliveryRoutes) get(ctx context.Context, in *DeliveryRef) (*deliveryBody, error) {
	return answerDelivery(h.core.GetDelivery(ctx, in.Ref))
}

// callWithID calls do with the id in the path. Returns NotFound if it is not a valid id.
func (in *DeliveryParam) callWithID(ctx context.Context, do func(context.Context, caisson.ID) (*caisson.Delivery, error)) (*deliveryBody, error) {
	id, err := caisson.ParseID(caisson.DeliveryPrefix, in.ID)
	if err != nil {
		return nil, caisson.Errorf(caisson.NotFound, "there is no delivery %.40q", in.ID)
	}
	return answerDelivery(do(ctx, id))
}

func (h deliveryRoutes) retry(ctx context.Context, in *DeliveryParam) (*deliveryBody, error) {
	return in.callWithID(ctx, h.core.RetryDelivery)
}

func (h deliveryRoutes) drop(ctx context.Context, in *DeliveryParam) (*deliveryBody, error) {
	return in.callWithID(ctx, h.core.DropDelivery)
}
