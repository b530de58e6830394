package models

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/sqlite/sqlitetest"
)

// TestBuiltin checks that the built-in offer is one that a configuration could have, that every price in it is known, and that its
// prices have a source and a date.
func TestBuiltin(t *testing.T) {
	o := Builtin()
	if err := Validate(o.Providers, o.Models); err != nil {
		t.Error(err)
	}
	source, date := o.Builtin, ""
	if i := strings.LastIndex(source, ", "); i >= 0 {
		source, date = source[:i], source[i+2:]
	}
	if _, err := time.Parse(time.DateOnly, date); err != nil || source == "" {
		t.Errorf("the source of the prices is %q: %v", o.Builtin, err)
	}
	for _, m := range o.Models {
		if m.Free || m.Prices == nil || m.Prices.Input == 0 || m.Prices.Output < m.Prices.Input || m.Context < 100_000 || m.Output == 0 {
			t.Errorf("%+v", m)
		}
	}
	for _, p := range o.Providers {
		if !strings.HasPrefix(p.BaseURL, "https://") || p.Credential == "" || p.Account != "" {
			t.Errorf("%+v", p)
		}
	}
}

// noWire is the wire process of tests without one.
type noWire struct{ WireProcess }

func (noWire) Refresh(context.Context) error { return nil }

// deafWire is a wire process that cannot be configured.
type deafWire struct{ noWire }

func (deafWire) Refresh(context.Context) error { return errors.New("deaf") }

// TestBuiltinDependsOnKeys checks that models without a key are listed and refused, that a key changes that, that a price list that
// was imported is preferred, and that an offer can be replaced.
func TestBuiltinDependsOnKeys(t *testing.T) {
	secrets, prices := secretMap{"local/OPENAI_API_KEY": "sk-1"}, sqlitetest.New(t).Ledger()
	c := NewCatalog(CatalogConfig{Offer: Builtin(), Secrets: secrets, Prices: prices, Wire: noWire{}})
	usable := func() (aliases []string) {
		t.Helper()
		list, err := c.ListModels(as(t, "team-a", false))
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range list {
			switch {
			case g.Problem == "":
				aliases = append(aliases, g.Alias)
			case !strings.Contains(g.Problem, "caisson credential set "):
				t.Errorf("%s: %s", g.Alias, g.Problem)
			}
		}
		return aliases
	}
	if got := usable(); len(got) < 2 || got[0] != "gpt-5.4" {
		t.Errorf("with OpenAI's key there are %q", got)
	}
	secrets["local/ANTHROPIC_API_KEY"] = "sk-2"
	if got := usable(); got[0] != "claude-sonnet-5" {
		t.Errorf("with Anthropic's key, too, there are %q", got)
	}
	if err := prices.PutPrices(t.Context(), "new", []caisson.ListedPrice{{Model: "gpt-5.4", Provider: "openai", Prices: caisson.Prices{Input: 1, Output: 2}, Source: "new", At: time.Now()}}); err != nil {
		t.Fatal(err)
	}
	list, err := c.ListModels(as(t, "team-a", false))
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range list {
		if g.Alias == "gpt-5.4" && (g.PriceSource != "new" || g.Prices.Output != 2) || g.Alias == "gpt-5.5" && !strings.Contains(g.PriceSource, "LiteLLM") {
			t.Errorf("%+v", g)
		}
	}
	local := Offer{
		Providers: []caisson.Provider{{Name: "openai", Kind: caisson.ProviderOpenAI, BaseURL: "http://127.0.0.1:1/v1"}},
		Models:    []caisson.Model{{Alias: "mine", Provider: "openai", Free: true}},
	}
	if err := c.SetOffer(t.Context(), Builtin().With(local)); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(usable(), " "); !strings.HasSuffix(got, " mine") || strings.Contains(got, "gpt") {
		t.Errorf("with a server of one's own there are %s", got)
	}
	c.Wire = deafWire{}
	if err := c.SetOffer(t.Context(), Builtin()); err == nil || !strings.HasSuffix(strings.Join(usable(), " "), " mine") {
		t.Errorf("an offer that the wire process does not get is in force: %v, %q", err, usable())
	}
	if b := Builtin(); b.Providers[1].Credential == "" {
		t.Error("With has changed the built-in offer")
	}
}
