package client

import (
	"bytes"
	"context"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// models implements [caisson.Models] by requests to a daemon.
type models struct{ c *requester }

// ListModels implements [caisson.Models].
func (m models) ListModels(ctx context.Context) ([]caisson.GatewayModel, error) {
	return callList[caisson.GatewayModel](ctx, m.c, get("models"))
}

// ImportPrices implements [caisson.Models].
func (m models) ImportPrices(ctx context.Context, source string, data []byte) (int, error) {
	if len(data) > protocol.MaxPriceList {
		return 0, caisson.Invalidf("data", "a price list has at most %s", caisson.Size(protocol.MaxPriceList))
	}
	req := post(nil, "models", "prices").withParam("source", source)
	req.body, req.contentType = bytes.NewReader(data), protocol.BinaryType
	done, err := call[protocol.Imported](ctx, m.c, req)
	return done.Models, err
}

// ListPrices implements [caisson.Models].
func (m models) ListPrices(ctx context.Context, match string) ([]caisson.ListedPrice, error) {
	return callList[caisson.ListedPrice](ctx, m.c, get("models", "prices").withParam("match", match))
}
