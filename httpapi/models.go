package httpapi

import (
	"context"
	"errors"
	"io"
	"net/http"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// modelRoutes serves the models and prices of the model gateway.
type modelRoutes struct{ core caisson.Models }

func (h modelRoutes) register(rt *router) {
	const tag = "models"
	registerRoute(rt, newOperation(http.MethodGet, "/models", "list-models", tag, "List the models that can be granted, in the order of the configuration"), h.list)
	registerRoute(rt, newOperation(http.MethodGet, "/models/prices", "list-prices", tag, "List imported prices, by model"), h.prices)
	registerStreamRoute(rt, withJSONResponse[protocol.Imported](rt, withUpload(newOperation(http.MethodPost, "/models/prices", "import-prices", tag,
		"Replace the imported price list of a source with LiteLLM's or a list of ListedPrice (unix socket only)"), protocol.BinaryType)), h.importPrices(rt))
}

func (h modelRoutes) list(ctx context.Context, _ *struct{}) (*body[protocol.Page[caisson.GatewayModel]], error) {
	list, err := h.core.ListModels(ctx)
	if err != nil {
		return nil, err
	}
	return wholeList(list), nil
}

func (h modelRoutes) prices(ctx context.Context, in *struct {
	Match string `query:"match" maxLength:"256" doc:"Only models with this in their name"`
},
) (*body[protocol.Page[caisson.ListedPrice]], error) {
	list, err := h.core.ListPrices(ctx, in.Match)
	if err != nil {
		return nil, err
	}
	return wholeList(list), nil
}

// importInput is a request to import a price list.
type importInput struct {
	Source string `query:"source" required:"true" minLength:"1" maxLength:"1024" doc:"Where the list is from: its URL, or the name of its file"`
}

// importPrices returns the handler that imports the price list in the body of the request.
func (h modelRoutes) importPrices(rt *router) func(http.ResponseWriter, *http.Request, *importInput) error {
	return func(w http.ResponseWriter, r *http.Request, in *importInput) error {
		if err := requireLocal(r.Context()); err != nil { // checked before a body of up to 16 MiB is read
			return err
		}
		data, err := io.ReadAll(upload(w, r, protocol.MaxPriceList))
		if _, large := errors.AsType[*http.MaxBytesError](err); large {
			return caisson.Invalidf("data", "a price list has at most %s", caisson.Size(protocol.MaxPriceList))
		} else if err != nil {
			return caisson.Wrap(err, caisson.Unavailable, "the upload broke off")
		}
		n, err := h.core.ImportPrices(r.Context(), in.Source, data)
		if err != nil {
			return err
		}
		return rt.writeJSON(w, protocol.Imported{Models: n})
	}
}
