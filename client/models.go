package client

import (
	"bytes"
	"context"
	"net/http"
	"net/url"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// models implements [caisson.Models] by requests to a daemon.
type models struct{ c *requester }

// ListModels implements [caisson.Models].
func (m models) ListModels(ctx context.Context) ([]caisson.GatewayModel, error) {
	return callList[caisson.GatewayModel](ctx, m.c, request{method: http.MethodGet, path: []string{"models"}})
}

// ImportPrices implements [caisson.Models].
func (m models) ImportPrices(ctx context.Context, source string, data []byte) (int, error) {
	if len(data) > protocol.MaxPriceList {
		return 0, caisson.Invalidf("data", "a price list has at most %s", caisson.Size(protocol.MaxPriceList))
	}
	done, err := call[protocol.Imported](ctx, m.c, request{
		method: http.MethodPost, path: []string{"models", "prices"}, query: url.Values{"source": {source}},
		body: bytes.NewReader(data), contentType: protocol.BinaryType,
	})
	return done.Models, err
}

// ListPrices implements [caisson.Models].
func (m models) ListPrices(ctx context.Context, match string) ([]caisson.ListedPrice, error) {
	query := url.Values{}
	if match != "" {
		query.Set("match", match)
	}
	return callList[caisson.ListedPrice](ctx, m.c, request{method: http.MethodGet, path: []string{"models", "prices"}, query: query})
}
