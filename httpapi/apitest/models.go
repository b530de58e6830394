package apitest

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/llm/prices"
)

// modelCore has two models, and the prices that are imported: the data of a list is the names of its models, one a line.
type modelCore struct{ m *Memory }

func gatewayModels() []caisson.GatewayModel {
	return []caisson.GatewayModel{
		{
			Model: caisson.Model{
				Alias: "large", Provider: "cloud", Upstream: "cloud-large", Context: 200_000, Output: 64_000,
				Prices: &caisson.Prices{Input: 3 * caisson.Dollar, Output: 15 * caisson.Dollar, CacheRead: 3 * caisson.Dollar / 10},
			},
			Kind: caisson.ProviderOpenAI, PriceSource: "config",
		},
		{Model: caisson.Model{Alias: "small", Provider: "local", Upstream: "small", Free: true}, Kind: caisson.ProviderOpenAI, PriceSource: "free"},
		{Model: caisson.Model{Alias: "dear", Provider: "local", Upstream: "dear"}, Kind: caisson.ProviderOpenAI, Problem: "no price is known"},
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
	list, err := prices.Parse(source, data)
	if err != nil {
		return 0, err
	}
	c.m.prices = slices.DeleteFunc(c.m.prices, func(p caisson.ListedPrice) bool { return p.Source == source })
	for _, p := range list {
		p.At = time.Now().UTC()
		c.m.prices = append(c.m.prices, p)
	}
	return len(list), nil
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
	slices.SortFunc(out, func(a, b caisson.ListedPrice) int { return strings.Compare(a.Model+a.Source, b.Model+b.Source) })
	return out, nil
}
