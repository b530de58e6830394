package llm

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
)

// A setup is the configuration of the gateway. It is immutable; a call uses the one in force when its body had been parsed.
type setup struct {
	models    map[string]*model         // configured models by alias
	providers map[string]*modelProvider // configured providers by name
	secrets   *secrets                  // finds the keys of all providers
}

// A model is a configured model.
type model struct {
	caisson.Model
	upstreamName string         // the provider's name of the model
	prices       caisson.Prices // prices of its tokens; zero if it is free or they are not known
	provider     *modelProvider // the provider that serves it
}

// A modelProvider is a configured provider.
type modelProvider struct {
	caisson.Provider
	base      *url.URL          // base URL of the API; its path does not end in a slash
	key       caisson.Secret    // API key; zero if the provider has none
	secrets   *secrets          // finds the key of this provider
	transport http.RoundTripper // sends requests to the provider
	script    string            // for providers of kind scripted; "" selects the default script
}

// Configure replaces providers, models and keys. Calls in progress continue with the previous configuration. Returns an Invalid
// error and changes nothing if the configuration is not valid.
func (g *Gateway) Configure(c caisson.GatewayConfig) error {
	g.configureMu.Lock()
	defer g.configureMu.Unlock()
	old := g.setup.Load()
	s := &setup{models: map[string]*model{}, providers: map[string]*modelProvider{}}
	var keys []string
	for _, p := range c.Providers {
		if s.providers[p.Name] != nil {
			return caisson.Invalidf("providers", "%.40q occurs twice", p.Name)
		}
		src, err := g.newProvider(p, c, old.providers[p.Name])
		if err != nil {
			return err
		}
		s.providers[p.Name] = src
		keys = append(keys, src.key.Reveal())
	}
	s.secrets = newSecrets(keys...)
	for _, m := range c.Models {
		src := s.providers[m.Provider]
		switch {
		case s.models[m.Alias] != nil:
			return caisson.Invalidf("models", "%.40q occurs twice", m.Alias)
		case src == nil:
			return caisson.Invalidf("models", "the provider of %.40q, %.40q, is not configured", m.Alias, m.Provider)
		}
		x := &model{Model: m, upstreamName: m.Upstream, provider: src}
		if x.upstreamName == "" {
			x.upstreamName = m.Alias
		}
		if m.Prices != nil && !m.Free {
			x.prices = *m.Prices
		}
		s.models[m.Alias] = x
	}
	g.setup.Store(s)
	for name, src := range old.providers {
		if t, ok := src.transport.(*http.Transport); ok && (s.providers[name] == nil || s.providers[name].transport != src.transport) {
			t.CloseIdleConnections()
		}
	}
	return nil
}

// newProvider returns a provider. It reuses the connections of old, which it replaces, if both have the same scheme and host.
func (g *Gateway) newProvider(p caisson.Provider, c caisson.GatewayConfig, old *modelProvider) (*modelProvider, error) {
	key := c.Keys[p.Name]
	src := &modelProvider{Provider: p, key: caisson.NewSecret(key), secrets: newSecrets(key), script: c.Scripts[p.Name]}
	if p.Kind == caisson.ProviderScripted {
		src.base = &url.URL{Scheme: "http", Host: "scripted.invalid"}
		if g.config.Local == nil {
			return nil, caisson.Invalidf("providers", "%.40q is scripted, which this gateway does not support", p.Name)
		}
		h, err := g.config.Local(p, src.script)
		if err != nil {
			return nil, caisson.Wrap(err, caisson.Invalid, "the script of provider %.40q cannot be used", p.Name)
		}
		src.transport = handlerTransport{h}
		return src, nil
	}
	u, err := url.Parse(p.BaseURL)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.RawPath != "" {
		return nil, caisson.Invalidf("providers", "the base URL of %.40q is not https://HOST/PATH; give it as the provider's documentation does", p.Name)
	}
	if strings.ContainsAny(key, "\r\n\x00") {
		return nil, caisson.Invalidf("providers", "the credential of %.40q has a line break in it; set it again", p.Name)
	}
	u.Path = strings.TrimSuffix(u.Path, "/")
	src.base = u
	src.MaxTokens = limitField(p, u.Hostname())
	if old != nil && old.base != nil && old.base.Scheme == u.Scheme && old.base.Host == u.Host {
		if _, ok := old.transport.(*http.Transport); ok {
			src.transport = old.transport
			return src, nil
		}
	}
	src.transport = g.transport()
	return src, nil
}

// limitField returns the name of the field that limits the output of chat completions. OpenAI's newer models reject the old name.
// Most other providers that implement its API ignore the new one, so that an answer would have no limit.
func limitField(p caisson.Provider, host string) string {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	switch {
	case p.MaxTokens != "":
		return p.MaxTokens
	case p.Kind == caisson.ProviderLiteLLM || host == "api.openai.com" || strings.HasSuffix(host, ".openai.azure.com"):
		return "max_completion_tokens"
	}
	return "max_tokens"
}

// transport returns the HTTP transport for one provider.
func (g *Gateway) transport() *http.Transport {
	dial, timeout := g.config.Dial, g.config.Timeouts.Connect
	return &http.Transport{
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			return dial(ctx, network, addr)
		},
		TLSClientConfig:        &tls.Config{RootCAs: g.config.Roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    timeout,
		ForceAttemptHTTP2:      true,
		DisableCompression:     true, // compressed answers cannot be metered
		MaxIdleConns:           512,
		MaxIdleConnsPerHost:    512,
		IdleConnTimeout:        30 * time.Second, // shorter than any provider's timeout, so that no closed connection is reused
		MaxResponseHeaderBytes: 64 << 10,
		WriteBufferSize:        16 << 10,
		ReadBufferSize:         16 << 10,
	}
}

// resolveModel returns the model for the requested name: the model with that alias if it is granted, otherwise the first
// granted model that the API serves. Names of models that exist but are not granted are treated like unknown names, so that a
// sandbox cannot find out which models exist.
func (s *setup) resolveModel(asked string, grant *caisson.ModelGrant, api *API) (*model, error) {
	if m := s.models[asked]; m != nil && slices.Contains(grant.Models, asked) {
		if !api.serves(m) {
			return nil, refuseParam(http.StatusNotFound, "not_found", "model", "model %.80q is served by a provider of kind %s; request it with that API", asked, m.provider.Kind)
		}
		return m, nil
	}
	for _, alias := range grant.Models {
		if m := s.models[alias]; m != nil && api.serves(m) {
			return m, nil
		}
	}
	return nil, refuseParam(http.StatusNotFound, "not_found", "model", "no model that is granted to this sandbox is configured for this API; ask for another model, or for a provider to be configured")
}

// serves reports whether the provider of m implements the API.
func (a *API) serves(m *model) bool {
	return m.provider.Kind == caisson.ProviderScripted || slices.Contains(a.Kinds, m.provider.Kind)
}

// list returns the models of a grant that an API serves.
func (s *setup) list(grant *caisson.ModelGrant, api *API) []caisson.Model {
	var all []caisson.Model
	for _, alias := range grant.Models {
		if m := s.models[alias]; m != nil && api.serves(m) {
			all = append(all, m.Model)
		}
	}
	return all
}

// url returns the URL of a call: the provider's base URL with path, in which upstreamName replaces "{model}", and query.
func (m *model) url(path, query string) *url.URL {
	u := &url.URL{Scheme: m.provider.base.Scheme, Host: m.provider.base.Host, RawQuery: query}
	path = m.provider.base.Path + path
	if strings.Contains(path, "{model}") {
		u.RawPath = strings.ReplaceAll(path, "{model}", url.PathEscape(m.upstreamName))
	}
	u.Path = strings.ReplaceAll(path, "{model}", m.upstreamName)
	return u
}
