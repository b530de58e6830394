// Package models configures the model gateway: it holds the catalog of models with their prices and credentials, the settings of
// the wire process, the runs on other machines that this gateway serves, and the registrations of local sandboxes at a gateway on
// another machine.
package models

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/ledger"
	"github.com/caisson-dev/caisson/wire/llm/prices"
)

// WireProcess informs the wire process, which serves model calls, of changed settings, gateway runs and budgets.
type WireProcess interface {
	// Refresh sends the process its current settings.
	Refresh(ctx context.Context) error
	// ChangeRuns informs the process of changed gateway runs.
	ChangeRuns(ctx context.Context, change caisson.GatewayRunChange) error
	// Forget makes the process discard its cached state of the budgets with these keys.
	Forget(ctx context.Context, budgets ...string) error
}

// Prices is the part of the store of the ledger that has the imported price lists.
type Prices interface {
	Price(ctx context.Context, provider, model string) (*caisson.ListedPrice, error) // the best match for a model
	Prices(ctx context.Context, match string) ([]caisson.ListedPrice, error)         // of models whose name contains match
	PutPrices(ctx context.Context, source string, list []caisson.ListedPrice) error  // replaces the prices of a source
}

// CatalogConfig configures a Catalog. All fields but Roots, WarmModel and ServedRemotely are required.
type CatalogConfig struct {
	Offer
	Roots          string          // PEM of certificate authorities to trust for providers, in addition to the host's
	WarmModel      string          // alias of the scripted model for warm snapshots; it may be granted but is not listed
	ServedRemotely bool            // a gateway on another machine serves the local sandboxes and checks the names of models
	Secrets        caisson.Secrets // values of credentials
	Prices         Prices          // imported price lists
	Wire           WireProcess     // informs the wire process of changed settings
	Events         caisson.Publisher
}

// Catalog resolves models to their providers, prices and credentials. It is safe for concurrent use.
type Catalog struct {
	CatalogConfig                       // its field Offer is only the initial offer; Offered returns the current one
	offered       atomic.Pointer[Offer] // current offer; never nil
}

// NewCatalog returns a Catalog.
func NewCatalog(cfg CatalogConfig) *Catalog {
	c := &Catalog{CatalogConfig: cfg}
	c.offered.Store(&cfg.Offer)
	return c
}

// Offered returns the current offer.
func (c *Catalog) Offered() Offer { return *c.offered.Load() }

// SetOffer replaces the offer, and informs the wire process. After an error the former offer is in force.
func (c *Catalog) SetOffer(ctx context.Context, o Offer) error {
	old := c.offered.Swap(&o)
	err := c.Wire.Refresh(ctx)
	if err != nil && c.offered.CompareAndSwap(&o, old) {
		// The wire process may have received the offer in a concurrent refresh. If this refresh also fails, the next one corrects
		// the offer.
		_ = c.Wire.Refresh(ctx)
	}
	return err
}

var _ caisson.Models = (*Catalog)(nil)

// resolved returns the models of an offer in their order, each with its price and, if it cannot be called, the reason.
func (c *Catalog) resolved(ctx context.Context, offer Offer) ([]caisson.GatewayModel, error) {
	list := []caisson.GatewayModel{}
	for _, model := range offer.Models {
		g := caisson.GatewayModel{Model: model}
		if g.Upstream == "" {
			g.Upstream = g.Alias
		}
		i := slices.IndexFunc(offer.Providers, func(p caisson.Provider) bool { return p.Name == model.Provider })
		if i < 0 {
			return nil, caisson.Invalidf("models", "model %s has the provider %s, which is not configured", model.Alias, model.Provider)
		}
		p := offer.Providers[i]
		g.Kind = p.Kind
		listed, err := c.Prices.Price(ctx, p.Name, g.Upstream)
		if caisson.KindOf(err) == caisson.NotFound {
			listed, err = c.Prices.Price(ctx, p.Kind, g.Upstream)
		}
		if err != nil && caisson.KindOf(err) != caisson.NotFound {
			return nil, err
		}
		if err == nil {
			if g.Context == 0 {
				g.Context = listed.Context
			}
			if g.Output == 0 {
				g.Output = listed.Output
			}
		}
		switch {
		case g.Free:
			g.PriceSource = "free"
		case g.Prices != nil && (offer.Builtin == "" || err != nil): // imported prices replace only built-in prices
			g.PriceSource = cmp.Or(offer.Builtin, "config")
		case err == nil:
			g.Prices, g.PriceSource = &listed.Prices, listed.Source
			if listed.Context > 0 {
				g.Context = min(g.Context, listed.Context) // the price of the list may not apply to longer contexts
			}
		default:
			g.Problem = "no price is known; set prices, or free: true, in the configuration, or run caisson model import-prices"
		}
		if p.Credential != "" {
			if _, err := c.key(ctx, p); caisson.KindOf(err) == caisson.NotFound {
				g.Problem = fmt.Sprintf("its provider's credential is missing; run caisson credential set %s", p.Credential)
			} else if err != nil {
				g.Problem = caisson.MessageOf(err)
			}
		}
		list = append(list, g)
	}
	return list, nil
}

// key returns the API key of a provider. Returns an Invalid error if the key contains a control character: such a key cannot be
// sent in a header, and the gateway would reject all settings because of it.
func (c *Catalog) key(ctx context.Context, p caisson.Provider) (caisson.Secret, error) {
	key, err := c.Secrets.Secret(ctx, credentialAccount(p), p.Credential)
	if err == nil && strings.ContainsFunc(key.Reveal(), unicode.IsControl) {
		return caisson.Secret{}, caisson.Errorf(caisson.Invalid,
			"its provider's credential has a line break or another control character in it; run caisson credential rotate %s", p.Credential)
	}
	return key, err
}

// credentialAccount returns the account of a provider's credential: the account of the provider, or the local account if the
// provider has none.
func credentialAccount(p caisson.Provider) string {
	if p.Account == "" {
		return caisson.LocalAccount
	}
	return p.Account
}

// mayUse reports whether an account may use a model. A provider without an account belongs to the operator, and all accounts
// may use its models.
func (c *Catalog) mayUse(account string, model caisson.Model) bool {
	return slices.ContainsFunc(c.Offered().Providers, func(p caisson.Provider) bool {
		return p.Name == model.Provider && (p.Account == "" || p.Account == account)
	})
}

// ListModels implements [caisson.Models]. Callers with a token receive only the models that their account may use.
func (c *Catalog) ListModels(ctx context.Context) ([]caisson.GatewayModel, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	list, err := c.resolved(ctx, c.Offered())
	if err != nil || caller.Local {
		return list, err
	}
	return slices.DeleteFunc(list, func(g caisson.GatewayModel) bool { return !c.mayUse(caller.Account, g.Model) }), nil
}

// ImportPrices implements [caisson.Models].
func (c *Catalog) ImportPrices(ctx context.Context, source string, data []byte) (int, error) {
	if err := caisson.LocalOnly(ctx); err != nil {
		return 0, err
	}
	list, err := prices.Parse(source, data)
	if err != nil {
		return 0, err
	}
	at := time.Now().UTC()
	for i := range list {
		list[i].At = at
	}
	if err := c.Prices.PutPrices(ctx, source, list); err != nil {
		return 0, err
	}
	// The import is published as an event, because prices determine how much a budget affords.
	c.Events.Publish(ctx, caisson.LocalAccount, "prices.imported", source, map[string]string{"models": strconv.Itoa(len(list))})
	return len(list), c.Wire.Refresh(ctx)
}

// ListPrices implements [caisson.Models].
func (c *Catalog) ListPrices(ctx context.Context, match string) ([]caisson.ListedPrice, error) {
	if _, err := caisson.CallerOf(ctx); err != nil {
		return nil, err
	}
	return c.Prices.Prices(ctx, match)
}

// Check returns an error if the account of the caller may not have the grant g.
func (c *Catalog) Check(ctx context.Context, g *caisson.ModelGrant) error {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return err
	}
	if len(g.Models) == 0 {
		return caisson.Invalidf("models", "names no model; caisson model ls lists them")
	}
	for _, alias := range g.Models {
		if alias != "" && alias == c.WarmModel {
			continue // The model is free and only follows a script, so every account may use it.
		}
		known := func(model caisson.Model) bool { return model.Alias == alias && c.mayUse(caller.Account, model) }
		if !c.ServedRemotely && !slices.ContainsFunc(c.Offered().Models, known) {
			return caisson.Invalidf("models", "there is no model %.60q; caisson model ls lists them", alias)
		}
	}
	for _, name := range g.Allow {
		if !slices.Contains(caisson.GrantNames, name) {
			return caisson.Invalidf("allow", "%.60q is not one of %s", name, strings.Join(caisson.GrantNames, ", "))
		}
	}
	b := g.Budget
	if b.USD != nil && *b.USD < 0 || b.Tokens != nil && *b.Tokens < 0 || b.Calls != nil && *b.Calls < 0 {
		return caisson.Invalidf("budget", "must not be negative")
	}
	if g.Rate.Requests < 0 || g.Rate.Tokens < 0 {
		return caisson.Invalidf("rate", "must not be negative")
	}
	return nil
}

// SpendLogs fetches the spend logs of a configured LiteLLM proxy. Returns NotFound if the provider is not a LiteLLM proxy.
func (c *Catalog) SpendLogs(ctx context.Context, provider, _ string, since time.Time) ([]ledger.SpendLog, error) {
	providers := c.Offered().Providers
	i := slices.IndexFunc(providers, func(p caisson.Provider) bool { return p.Name == provider })
	if i < 0 || providers[i].Kind != caisson.ProviderLiteLLM {
		return nil, caisson.Errorf(caisson.NotFound, "there is no provider %.40q of kind litellm", provider)
	}
	p := providers[i]
	key, err := c.key(ctx, p)
	if err != nil {
		return nil, err
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		return nil, err
	}
	pool.AppendCertsFromPEM([]byte(c.Roots))
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}
	defer transport.CloseIdleConnections()
	return ledger.FetchSpendLogs(ctx, &http.Client{Transport: transport}, p.BaseURL, key, since, time.Now())
}
