package main

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/models"
)

// publicLists are the URLs of lists of models with their prices, by their names as sources.
var publicLists = map[string]string{
	"litellm":    "https://raw.githubusercontent.com/BerriAI/litellm/main/model_prices_and_context_window.json",
	"openrouter": "https://openrouter.ai/api/v1/models",
}

// modelSyncCmd downloads lists of models from public sources and from the servers of own providers.
type modelSyncCmd struct {
	Sources []string `arg:"" optional:"" help:"litellm, openrouter, or the name of a provider that was taken from the environment; litellm and openrouter without one."`
}

func (c *modelSyncCmd) Help() string {
	return "From LiteLLM and OpenRouter it takes prices and limits, as import-prices does; they go before built-in ones, and after those of the configuration. " +
		"From the server of a provider that a run has taken from the environment, such as Ollama, it takes the names of the models that the server " +
		"has now; if the server needs a key, that is read from the provider's variable.\n\n" +
		examples("caisson model sync", "caisson model sync openrouter", "caisson model sync openai")
}

func (c *modelSyncCmd) Run(ctx context.Context, a *app, api api) error {
	sources := c.Sources
	if len(sources) == 0 {
		sources = slices.Sorted(maps.Keys(publicLists))
	}
	var done []importedPrices
	for _, source := range sources {
		n, err := syncList(ctx, a, api, source)
		if err != nil {
			return err
		}
		done = append(done, importedPrices{source, n})
	}
	return printList(a, done, []column[importedPrices]{
		{name: "SOURCE", value: func(s importedPrices) string { return s.Source }},
		{name: "MODELS", value: func(s importedPrices) string { return strconv.Itoa(s.Models) }},
	})
}

// syncList imports the prices of a public list, or replaces the models of an own provider by the models that its server lists. It
// returns the number of models.
func syncList(ctx context.Context, a *app, api api, name string) (int, error) {
	if list := publicLists[name]; list != "" {
		a.infof("downloading %s", list)
		data, err := fetchList(ctx, http.DefaultTransport, list)
		if err != nil {
			return 0, err
		}
		return api.ImportPrices(ctx, name, data)
	}
	k, err := newKeyStore(a, api)
	if err != nil {
		return 0, err
	}
	p := findProvider(k.own, name)
	j := slices.IndexFunc(providerVariables, func(v keyVariables) bool { return v.provider == name })
	if j < 0 || p.Kind != caisson.ProviderOpenAI {
		return 0, caisson.Errorf(caisson.NotFound, "%.60q is neither litellm nor openrouter nor a provider with OpenAI's API in %s; those of the configuration have their models there",
			name, a.cfg.ownProvidersFile())
	}
	variable, key := k.key(providerVariables[j])
	if p.Credential == "" {
		key = caisson.Secret{}
	} else if variable == "" {
		return 0, caisson.Invalidf("key", "the list of %s needs its key, which the store does not show: set %s for this command", p.BaseURL, strings.Join(providerVariables[j].keys, " or "))
	}
	served, err := servedModels(ctx, p.BaseURL, key)
	if err != nil {
		return 0, caisson.Errorf(caisson.Unavailable, "%s", err)
	}
	list := ownModels(p, served, models.Builtin().Models)
	if len(list) == 0 {
		return 0, caisson.Errorf(caisson.Unavailable, "%s lists no models of its own; nothing was changed", p.BaseURL)
	}
	return len(list), k.setOwn(ctx, name, &p, list)
}
