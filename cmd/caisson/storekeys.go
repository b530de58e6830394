package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/models"
	"github.com/caisson-dev/caisson/internal/durable"
	"github.com/caisson-dev/caisson/internal/reach"
)

// keyVariables are the names of the environment variables for one built-in provider. The client libraries of its vendor use the
// same names.
type keyVariables struct {
	provider string   // name of the built-in provider
	vendor   string   // the vendor's name, for messages
	keys     []string // variables that can contain the key; the first one that is set is used
	baseURL  string   // variable with the base URL of another server with the same API; "" if there is no such variable
}

// openAIBaseURL is the environment variable with the URL of a server with OpenAI's API. Such servers, for example Ollama and
// vLLM, often need no key.
const openAIBaseURL = "OPENAI_BASE_URL"

// providerVariables are the environment variables of the built-in providers.
var providerVariables = []keyVariables{
	{"anthropic", "Anthropic", []string{"ANTHROPIC_API_KEY"}, "ANTHROPIC_BASE_URL"},
	{"openai", "OpenAI", []string{"OPENAI_API_KEY"}, openAIBaseURL},
	{"gemini", "Google Gemini", []string{"GEMINI_API_KEY", "GOOGLE_API_KEY"}, "GOOGLE_GEMINI_BASE_URL"},
	{"openrouter", "OpenRouter", []string{"OPENROUTER_API_KEY"}, ""},
}

// storeKeys stores a key of the environment as a credential if the configuration has no models and no stored key allows the run
// to call a model. It prints which key it has stored, and which variables of the environment are not used.
//
// It stores keys only for the daemon of the data directory, so that a key never leaves this machine without the user's consent.
// It does nothing if CI is set, because the stored key could outlive the CI job, nor for accounts other than the local one,
// because built-in providers use the keys of the local account.
func storeKeys(ctx context.Context, a *app, api api, agent, model string) error {
	cfg := a.cfg
	configured := !models.Offer{Providers: cfg.Providers, Models: cfg.Models}.IsZero() || cfg.Gateway.RemoteURL != ""
	if cfg.Host != "" || configured || a.getenv("CI") != "" || cfg.Account != "" && cfg.Account != caisson.LocalAccount {
		return nil
	}
	k, err := newKeyStore(a, api)
	if err != nil {
		return err
	}
	wanted, err := k.usableProviders(ctx, agent, model)
	if err != nil || len(wanted) == 0 {
		return err
	}
	stored, err := api.ListCredentials(ctx)
	if err != nil {
		return err
	}
	for _, w := range wanted {
		p := findProvider(k.offer, w.provider)
		if p.Credential == "" || slices.ContainsFunc(stored, func(c *caisson.Credential) bool { return c.Name == p.Credential }) {
			return k.noteDifferences(ctx, w, p)
		}
	}
	for _, w := range wanted {
		if name, _ := k.key(w); name != "" || w.baseURL == openAIBaseURL && a.getenv(w.baseURL) != "" {
			return k.store(ctx, w)
		}
	}
	return nil
}

// keyStore stores keys from the environment as credentials, and servers from the environment as own providers.
type keyStore struct {
	a     *app
	api   api
	own   models.Offer // the own providers and their models
	offer models.Offer // the built-in offer, in which own providers replace those of the same name
}

// newKeyStore returns a keyStore with the present content of the file of own providers.
func newKeyStore(a *app, api api) (*keyStore, error) {
	own, err := a.cfg.ownProviders()
	return &keyStore{a: a, api: api, own: own, offer: models.Builtin().With(own)}, err
}

// key returns the name of the environment variable with a provider's key, and the key. name is "" if no such variable is set.
func (k *keyStore) key(v keyVariables) (name string, key caisson.Secret) {
	for _, name := range v.keys {
		if value := strings.TrimSpace(k.a.getenv(name)); value != "" {
			return name, caisson.NewSecret(value)
		}
	}
	return "", key
}

// findProvider returns the provider of an offer with this name, or the zero provider if there is none.
func findProvider(o models.Offer, name string) (p caisson.Provider) {
	if i := slices.IndexFunc(o.Providers, func(p caisson.Provider) bool { return p.Name == name }); i >= 0 {
		p = o.Providers[i]
	}
	return p
}

// usableProviders returns the providers whose models the run can call: the provider of the model, if model is not "", otherwise
// those whose API the agent speaks, in the order of the offer.
func (k *keyStore) usableProviders(ctx context.Context, agent, model string) (list []keyVariables, err error) {
	var usable func(caisson.Model) bool
	if model != "" {
		usable = func(m caisson.Model) bool { return m.Alias == model }
	} else {
		a, err := k.api.GetAgent(ctx, agent)
		if caisson.KindOf(err) == caisson.NotFound {
			return nil, nil // the request that starts the run will fail with this error
		}
		if err != nil {
			return nil, err
		}
		usable = func(m caisson.Model) bool {
			api := caisson.GatewayModel{Model: m, Kind: findProvider(k.offer, m.Provider).Kind}.API()
			return a.SupportsAPI(api) && (len(a.Models) == 0 || slices.Contains(a.Models, m.Alias))
		}
	}
	for _, v := range providerVariables {
		if slices.ContainsFunc(k.offer.Models, func(m caisson.Model) bool { return m.Provider == v.provider && usable(m) }) {
			list = append(list, v)
		} else if model != "" && v.baseURL == openAIBaseURL && k.a.getenv(openAIBaseURL) != "" {
			list = append(list, v) // the server in OPENAI_BASE_URL, whose models are not known yet, may have the model
		}
	}
	return list, nil
}

// noteDifferences prints a message if the environment names another server than that of p or contains another key than the stored
// one. The server of p and the stored key are used.
func (k *keyStore) noteDifferences(ctx context.Context, v keyVariables, p caisson.Provider) error {
	if u := k.a.getenv(v.baseURL); u != "" && u != p.BaseURL {
		k.a.infof("caisson: %s is not used: calls go to %s, as when the key was stored; see %s", v.baseURL, p.BaseURL, k.howToChange(p))
	}
	name, key := k.key(v)
	if name == "" || p.Credential == "" {
		return nil
	}
	same, err := k.api.MatchCredential(ctx, p.Credential, key)
	if err != nil {
		return err
	}
	if !same {
		k.a.infof("caisson: %s is another key than the stored one, which is used; to replace that: caisson credential rotate %s --env %s", name, p.Credential, name)
	}
	return nil
}

// howToChange returns the part of a message that explains how to use another server instead of p.
func (k *keyStore) howToChange(p caisson.Provider) string {
	if p.Credential == "" {
		return "the file " + k.a.cfg.ownProvidersFile() + ", which you can remove"
	}
	return "caisson credential rm " + p.Credential + ", after which the next run takes both from the environment"
}

// store stores the key of a provider as a credential, and makes the server that the environment names, if any, an own provider.
func (k *keyStore) store(ctx context.Context, v keyVariables) error {
	name, key := k.key(v)
	p, list, err := k.server(ctx, v, key)
	if err != nil {
		return err
	}
	// Set the server before the key is stored, so that the key is never sent to a server other than the one that the environment
	// names.
	if err := k.setOwn(ctx, v.provider, p, list); err != nil {
		return err
	}
	if p != nil {
		k.a.infof("caisson: models of %s are called at %s, from %s; this is in %s", p.Name, p.BaseURL, v.baseURL, k.a.cfg.ownProvidersFile())
	}
	if name != "" {
		credential := findProvider(models.Builtin(), v.provider).Credential
		if _, err := k.api.SetCredential(ctx, credential, key); err != nil {
			return err
		}
		k.a.infof("caisson: stored the key in %s, encrypted, as %s, for this and later runs; to remove it: caisson credential rm %s", name, credential, credential)
	}
	usable, err := k.api.ListModels(ctx)
	if i := slices.IndexFunc(usable, func(m caisson.GatewayModel) bool { return m.Problem == "" }); i >= 0 {
		k.a.infof("caisson: runs that name no model now use %s, or the next of caisson model ls that their agent can call; to choose one: --model", usable[i].Alias)
	}
	return err
}

// server returns a provider for the server that the environment names. It also returns the models that this server lists, if it
// has OpenAI's API and not all of them are built in. The provider is nil if the environment names no server, or the vendor's.
func (k *keyStore) server(ctx context.Context, v keyVariables, key caisson.Secret) (*caisson.Provider, []caisson.Model, error) {
	base := strings.TrimSuffix(k.a.getenv(v.baseURL), "/")
	builtin := models.Builtin()
	p := findProvider(builtin, v.provider)
	if base == "" || base == p.BaseURL {
		return nil, nil, nil
	}
	p.BaseURL = base
	if key.IsZero() {
		p.Credential = ""
	}
	if err := models.Validate([]caisson.Provider{p}, nil); err != nil {
		return nil, nil, caisson.Invalidf(v.baseURL, "%s", newErrorReport(splitErrors(err)[0]).Message)
	}
	if p.Kind != caisson.ProviderOpenAI {
		return &p, nil, nil
	}
	served, err := servedModels(ctx, base, key)
	if err != nil {
		return nil, nil, caisson.Invalidf(v.baseURL, "%s", err)
	}
	return &p, ownModels(p, served, builtin.Models), nil
}

// ownModels returns the models that the server of p has listed. Built-in models have their built-in prices. Other models are free
// if the server is on this machine; otherwise they have no price, so that calls are refused until the configuration has one.
// ownModels returns nil if all listed models are built in.
func ownModels(p caisson.Provider, served []servedModel, builtin []caisson.Model) (list []caisson.Model) {
	u, err := url.Parse(p.BaseURL)
	here := err == nil && reach.Loopback(u.Hostname())
	other := false
	for _, s := range served {
		m := caisson.Model{Alias: s.ID, Provider: p.Name, Free: here, Context: s.Context}
		if i := slices.IndexFunc(builtin, func(b caisson.Model) bool { return b.Provider == p.Name && b.Alias == s.ID }); i >= 0 {
			m = builtin[i]
		} else {
			other = true
		}
		if models.Validate([]caisson.Provider{p}, []caisson.Model{m}) == nil && !slices.ContainsFunc(list, func(l caisson.Model) bool { return l.Alias == m.Alias }) {
			list = append(list, m)
		}
	}
	if !other {
		return nil
	}
	return list
}

// servedModel is a model in the list of models that a server with OpenAI's API returns.
type servedModel struct {
	ID      string `json:"id"`            // name of the model
	Context int64  `json:"max_model_len"` // maximum number of tokens of a call; only vLLM has this field
}

const (
	maxServed     = 200              // maximum number of models that are used of the list of a model server
	maxServedList = 4 << 20          // maximum size of a model server's list of models, as JSON, in bytes
	servedTimeout = 15 * time.Second // time limit of the request for a model server's list of models
)

// servedModels returns the models that the server with OpenAI's API at base lists, without those for embeddings. It returns nil
// if the server has no list. It follows no redirects, so that the key is sent to no other server.
func servedModels(ctx context.Context, base string, key caisson.Secret) ([]servedModel, error) {
	ctx, cancel := context.WithTimeout(ctx, servedTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/models", nil)
	if err != nil {
		return nil, err
	}
	if !key.IsZero() {
		req.Header.Set("Authorization", "Bearer "+key.Reveal())
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("the server does not answer (%w); start it, or unset the variable", errors.Unwrap(err))
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusNotFound || resp.StatusCode == http.StatusMethodNotAllowed:
		return nil, nil
	case resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden:
		return nil, fmt.Errorf("the server refuses the key (status %d); set OPENAI_API_KEY to its key", resp.StatusCode)
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("the server has no list of models at %s/models (status %d); is the URL complete, for example with /v1?", base, resp.StatusCode)
	}
	var list struct {
		Data []servedModel `json:"data"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxServedList)).Decode(&list); err != nil {
		return nil, fmt.Errorf("%s/models is no list of models; is the URL complete, for example with /v1?", base)
	}
	served := slices.DeleteFunc(list.Data, func(m servedModel) bool { return strings.Contains(m.ID, "embed") })
	return served[:min(len(served), maxServed)], nil
}

// ownHeader is the comment at the beginning of the file of own providers.
const ownHeader = "# Providers that replace built-in ones, in the form of the configuration. \"caisson run\" has taken them from the environment.\n" +
	"# They count only while the configuration has no providers and models. After a change: caisson daemon reload\n"

// setOwn makes p, with the models in list, the own provider with this name, or removes that provider if p is nil. Then it has the
// daemon read the file of own providers.
func (k *keyStore) setOwn(ctx context.Context, name string, p *caisson.Provider, list []caisson.Model) error {
	if p == nil && !slices.ContainsFunc(k.own.Providers, func(old caisson.Provider) bool { return old.Name == name }) {
		return nil
	}
	own := models.Offer{
		Providers: slices.DeleteFunc(slices.Clone(k.own.Providers), func(old caisson.Provider) bool { return old.Name == name }),
		Models:    append(slices.DeleteFunc(slices.Clone(k.own.Models), func(old caisson.Model) bool { return old.Provider == name }), list...),
	}
	if p != nil {
		own.Providers = append(own.Providers, *p)
	}
	text, err := json.MarshalIndent(own, "", "  ") // JSON is also YAML
	if err != nil {
		return err
	}
	if err := durable.Write(k.a.cfg.ownProvidersFile(), func(f *os.File) error {
		_, err := fmt.Fprintf(f, "%s%s\n", ownHeader, text)
		return err
	}); err != nil {
		return err
	}
	_, err = k.api.Reload(ctx)
	return err
}
