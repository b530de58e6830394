package apitest

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-dev/caisson"
)

func testModels(t *testing.T, ctx context.Context, c Cores) {
	list := must(c.Models.ListModels(ctx))(t)
	want := []caisson.GatewayModel{
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
	if len(list) == 3 {
		list[2].Problem, _, _ = strings.Cut(list[2].Problem, ";") // the remedy after the semicolon is not compared
	}
	if diff := cmp.Diff(want, list); diff != "" {
		t.Error(diff)
	}
	names := func(match string) (out []string) {
		for _, p := range must(c.Models.ListPrices(ctx, match))(t) {
			if p.Prices.Input != 1000 || p.Prices.Output != 2000 || p.At.IsZero() {
				t.Errorf("%+v", p)
			}
			out = append(out, p.Source+" "+p.Model)
		}
		return out
	}
	if got := names(""); got != nil {
		t.Errorf("prices before there are any: %q", got)
	}
	if caller := must(caisson.CallerOf(ctx))(t); !caller.Local {
		_, err := c.Models.ImportPrices(ctx, "one", []byte("a"))
		Fails(t, err, caisson.Denied, "")
		_, err = c.Models.ImportPrices(ctx, "one", bytes.Repeat([]byte("a"), 8<<20))
		Fails(t, err, caisson.Denied, "")
		return
	}
	_, err := c.Models.ImportPrices(ctx, "one", nil)
	Fails(t, err, caisson.Invalid, "data")
	for _, imp := range []struct {
		source, data string
		want         int
	}{{"https://example.com/a?b=c&d", "b/x\na/y", 2}, {"two", "a/z", 1}, {"two", "a/&z", 1}} {
		if n := must(c.Models.ImportPrices(ctx, imp.source, priceList(imp.data, "")))(t); n != imp.want {
			t.Errorf("%d models of %q", n, imp.data)
		}
	}
	if got := names(""); !cmp.Equal(got, []string{"two a/&z", "https://example.com/a?b=c&d a/y", "https://example.com/a?b=c&d b/x"}) {
		t.Errorf("%q", got)
	}
	if got := names("/&"); !cmp.Equal(got, []string{"two a/&z"}) {
		t.Errorf("%q", got)
	}
	if n := must(c.Models.ImportPrices(ctx, "large", priceList("m/n", strings.Repeat("x", 16<<20-200))))(t); n != 1 {
		t.Errorf("of 16 MiB %d arrived", n)
	}
}

// priceList returns a price list in LiteLLM's format with one model for each line of names, all at the same price. comment is
// added to each model, so that tests can make the list longer.
func priceList(names, comment string) []byte {
	list := map[string]any{}
	for name := range strings.Lines(names) {
		list[strings.TrimSpace(name)] = map[string]any{
			"input_cost_per_token": 1e-12, "output_cost_per_token": 2e-12, "litellm_provider": "p", "mode": "chat", "comment": comment,
		}
	}
	b, err := json.Marshal(list)
	if err != nil {
		panic(err) // cannot happen: the list has only strings and numbers
	}
	return b
}
