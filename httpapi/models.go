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
	registerListRoute(rt, getOp("/models", "list-models", tag, "List the models that can be granted, in the order of the configuration"),
		withoutInput(h.core.ListModels))
	registerListRoute(rt, getOp("/models/prices", "list-prices", tag, "List imported prices, by model"), h.prices)
	registerStreamRoute(rt, withJSONResponse[protocol.Imported](rt, withUpload(postOp("/models/prices", "import-prices", tag,
		"Replace the imported price list of a source with LiteLLM's or a list of ListedPrice (unix socket only)"), protocol.BinaryType)), h.importPrices)
}

func (h modelRoutes) prices(ctx context.Context, in *struct {
	Match string `query:"match" maxLength:"256" doc:"Only models with this in their name"`
},
) ([]caisson.ListedPrice, error) {
	return h.core.ListPrices(ctx, in.Match)
}

// importPrices imports the price list in the body of the request.
func (h modelRoutes) importPrices(w http.ResponseWriter, r *http.Request, in *struct {
	Source string `query:"source" required:"true" minLength:"1" maxLength:"1024" doc:"Where the list is from: its URL, or the name of its file"`
},
) error {
	if err := requireLocal(r.Context()); err != nil { // check this before a body of up to 16 MiB is read
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
	return writeJSON(w, http.StatusOK, protocol.Imported{Models: n})
}
