package apitest

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
)

// modelCore has two models, and the prices that are imported: the data of a list is the names of its models, one a line.
type modelCore struct{ m *Memory }

func gatewayModels() []caisson.GatewayModel {
	return []caisson.GatewayModel{
		{
			Model: caisson.Model{
				Alias: "large", Provider: "anthropic", Upstream: "claude-large", Context: 200_000, Output: 64_000,
				Prices: &caisson.Prices{Input: 3 * caisson.Dollar, Output: 15 * caisson.Dollar, CacheRead: 3 * caisson.Dollar / 10},
			},
			Kind: caisson.ProviderAnthropic, PriceSource: "config",
		},
		{Model: caisson.Model{Alias: "small", Provider: "local"}, Kind: caisson.ProviderOpenAI, Problem: "no price is known"},
	}
}

func (c modelCore) ListModels(ctx context.Context) ([]caisson.GatewayModel, error) {
	if _, err := caisson.CallerOf(ctx); err != nil {
		return nil, err
	}
	return gatewayModels(), nil
}

func (c modelCore) ImportPrices(ctx context.Context, source string, data []byte) (int, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return 0, err
	}
	if !caller.Local {
		return 0, caisson.Errorf(caisson.Denied, "this is possible only over the unix socket")
	}
	if len(data) == 0 {
		return 0, caisson.Invalidf("data", "the price list is empty")
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	c.m.prices = slices.DeleteFunc(c.m.prices, func(p caisson.ListedPrice) bool { return p.Source == source })
	n := 0
	for line := range strings.Lines(string(data)) {
		n++
		c.m.prices = append(c.m.prices, caisson.ListedPrice{
			Model: strings.TrimSpace(line), Prices: caisson.Prices{Input: 1, Output: 2}, Source: source, At: time.Now().UTC(),
		})
	}
	return n, nil
}

func (c modelCore) ListPrices(ctx context.Context, match string) ([]caisson.ListedPrice, error) {
	if _, err := caisson.CallerOf(ctx); err != nil {
		return nil, err
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	var out []caisson.ListedPrice
	for _, p := range c.m.prices {
		if strings.Contains(p.Model, match) {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b caisson.ListedPrice) int { return strings.Compare(a.Model, b.Model) })
	return out, nil
}
