package prices

import (
	"bytes"
	"encoding/json"

	"github.com/caisson-dev/caisson"
)

// openRouter is the name of the provider of all models in OpenRouter's list.
const openRouter = "openrouter"

// isOpenRouter reports whether data is a JSON object whose member data is a list, as OpenRouter's list is.
func isOpenRouter(data []byte) bool {
	var probe struct {
		Data json.RawMessage `json:"data"`
	}
	return json.Unmarshal(data, &probe) == nil && bytes.HasPrefix(probe.Data, []byte("["))
}

// openRouterModel is a model in OpenRouter's list, https://openrouter.ai/docs/api-reference/list-available-models. Prices are
// strings with dollars per token.
type openRouterModel struct {
	ID      string            `json:"id"`             // OpenRouter's name of the model
	Context int64             `json:"context_length"` // context window, in tokens
	Pricing map[string]string `json:"pricing"`        // by what is priced: prompt, completion, internal_reasoning and others
	Top     struct {          // limits at the provider that OpenRouter prefers for the model
		Output int64 `json:"max_completion_tokens"`
	} `json:"top_provider"`
}

// parseOpenRouter parses the answer of OpenRouter's /api/v1/models. It leaves out models without prices per token: those that are
// free, which only the configuration may declare, and those that choose another model, whose price is -1.
func parseOpenRouter(data []byte) ([]caisson.ListedPrice, error) {
	var in struct {
		Data []json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(data, &in); err != nil {
		return nil, malformed(err)
	}
	if len(in.Data) > maxModels {
		return nil, tooMany()
	}
	list := []caisson.ListedPrice{}
	seen := map[string]bool{}
	var faults []error
	for _, raw := range in.Data {
		var m openRouterModel
		if err := json.Unmarshal(raw, &m); err != nil || !printable(m.ID, maxName) {
			faults = append(faults, caisson.Invalidf("data", "%.60q is not a model with its prices", raw))
			continue
		}
		p, ok, err := m.price()
		switch {
		case err != nil:
			faults = append(faults, err)
		case ok && seen[m.ID]:
			return nil, caisson.Invalidf(m.ID, "is in the list twice")
		case ok:
			seen[m.ID] = true
			list = append(list, p)
		}
	}
	if len(faults)*invalidShare > len(list)+len(faults) {
		return nil, faults[0]
	}
	return list, nil
}

// price returns the model with its prices; false if it has none per token.
func (m openRouterModel) price() (caisson.ListedPrice, bool, error) {
	p := caisson.ListedPrice{Model: m.ID, Provider: openRouter, Context: m.Context, Output: m.Top.Output}
	if m.Pricing["prompt"] == "-1" || m.Pricing["completion"] == "-1" {
		return p, false, nil
	}
	var reasoning caisson.USD
	for _, x := range []struct {
		name string
		to   *caisson.USD
	}{
		{"prompt", &p.Prices.Input}, {"completion", &p.Prices.Output}, {"internal_reasoning", &reasoning},
		{"input_cache_read", &p.Prices.CacheRead}, {"input_cache_write", &p.Prices.CacheWrite},
	} {
		text := m.Pricing[x.name]
		if text == "" {
			continue
		}
		price, err := dollars(text, perTokenShift)
		if err != nil {
			return p, false, caisson.Invalidf(m.ID+"."+x.name, "%s", err)
		}
		*x.to = price
	}
	if p.Prices.Input == 0 || p.Prices.Output == 0 {
		return p, false, nil
	}
	p.Prices.Output = max(p.Prices.Output, reasoning)
	for _, n := range []int64{p.Context, p.Output} {
		if err := checkTokens(n); err != nil {
			return p, false, caisson.Invalidf(m.ID, "%s", err)
		}
	}
	return p, true, nil
}
