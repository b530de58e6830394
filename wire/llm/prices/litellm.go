package prices

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
	"strings"

	"github.com/caisson-dev/caisson"
)

// sampleSpec is the key of the entry that documents the format of LiteLLM's list.
const sampleSpec = "sample_spec"

// invalidShare limits the invalid entries of LiteLLM's or OpenRouter's list: at most one in invalidShare entries may be invalid.
const invalidShare = 20

// parseLiteLLM parses LiteLLM's list, a JSON object with one member per model.
func parseLiteLLM(data []byte) ([]caisson.ListedPrice, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	if _, err := d.Token(); err != nil {
		return nil, malformed(err)
	}
	list := []caisson.ListedPrice{}
	var faults []error
	at := map[string]int{} // index of a model in list; data can have a model more than once
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, malformed(err)
		}
		name := key.(string) // cannot fail: keys of an object are strings
		var fields map[string]json.RawMessage
		if err := d.Decode(&fields); err != nil {
			return nil, malformed(err)
		}
		if name == sampleSpec {
			continue
		}
		if !printable(name, maxName) {
			return nil, caisson.Invalidf("data", "%.40q is not the name of a model", name)
		}
		p, ok, err := entry{name, fields}.price()
		if err != nil {
			faults = append(faults, err)
			continue
		}
		if i, twice := at[name]; twice && ok {
			list[i] = mergeMaxPrices(list[i], p)
		} else if ok {
			at[name] = len(list)
			list = append(list, p)
		}
		if len(list) > maxModels {
			return nil, tooMany()
		}
	}
	if len(faults)*invalidShare > len(list)+len(faults) {
		return nil, faults[0]
	}
	return list, checkEnd(d)
}

// mergeMaxPrices merges two entries of one model: the higher of each price, the longer context and the lower output limit, so
// that no call costs more than calculated. LiteLLM's list has had duplicate models.
func mergeMaxPrices(a, b caisson.ListedPrice) caisson.ListedPrice {
	p, q := a.Prices, b.Prices
	cache := func(x, y caisson.USD) caisson.USD { // a cache price of 0 means the price of input
		if x == 0 || y == 0 {
			return 0
		}
		return max(x, y)
	}
	a.Prices = caisson.Prices{
		Input: max(p.Input, q.Input), Output: max(p.Output, q.Output),
		CacheRead: cache(p.CacheRead, q.CacheRead), CacheWrite: cache(p.CacheWrite, q.CacheWrite),
	}
	a.Context = max(a.Context, b.Context)
	if a.Output == 0 || b.Output > 0 && b.Output < a.Output {
		a.Output = b.Output
	}
	return a
}

// entry is a model in LiteLLM's list.
type entry struct {
	name   string                     // LiteLLM's name of the model
	fields map[string]json.RawMessage // values of the entry's fields, by name
}

// price returns the model with its prices; false if it has none per token, or its mode is not chat, responses or embedding.
func (e entry) price() (caisson.ListedPrice, bool, error) {
	p := caisson.ListedPrice{Model: e.name}
	mode := e.stringField("mode")
	if mode != "chat" && mode != "responses" && mode != "embedding" {
		return p, false, nil
	}
	if p.Provider = e.stringField("litellm_provider"); p.Provider != "" && !printable(p.Provider, maxName) {
		return p, false, caisson.Invalidf(e.name+".litellm_provider", "%.40q is not the name of a provider", p.Provider)
	}
	c, err := e.maxPrices()
	if err != nil {
		return p, false, err
	}
	if c.Input == 0 || c.Output == 0 && mode != "embedding" {
		return p, false, nil
	}
	p.Prices = c.Prices
	p.Prices.Output = max(c.Output, c.reasoning)
	return p, true, e.limits(&p)
}

// costs are the prices of a model per million tokens, with a separate price of reasoning.
type costs struct {
	caisson.Prices
	reasoning caisson.USD // price of output tokens of reasoning
}

// each calls f for every price in c, with the name of its field in LiteLLM's list.
func (c *costs) each(f func(name string, to *caisson.USD) error) error {
	for _, x := range []struct {
		name string
		to   *caisson.USD
	}{
		{"input_cost_per_token", &c.Input},
		{"output_cost_per_token", &c.Output},
		{"output_cost_per_reasoning_token", &c.reasoning},
		{"cache_read_input_token_cost", &c.CacheRead},
		{"cache_creation_input_token_cost", &c.CacheWrite},
	} {
		if err := f(x.name, x.to); err != nil {
			return err
		}
	}
	return nil
}

// maxPrices returns the highest of each price over all lengths of prompts. If the input price increases with the length and a
// cache price does not, the cache price is assumed to increase by the same factor.
func (e entry) maxPrices() (base costs, err error) {
	err = base.each(func(name string, to *caisson.USD) (err error) {
		*to, err = e.priceField(name)
		return err
	})
	if err != nil || base.Input == 0 {
		return base, err
	}
	top := base
	err = top.each(func(name string, to *caisson.USD) error {
		for field := range e.fields {
			if !isTier(field, name) {
				continue
			}
			price, err := e.priceField(field)
			if err != nil {
				return err
			}
			*to = max(*to, price)
		}
		return nil
	})
	factor := float64(top.Input) / float64(base.Input)
	for _, cache := range []struct {
		top  *caisson.USD
		base caisson.USD
	}{{&top.CacheRead, base.CacheRead}, {&top.CacheWrite, base.CacheWrite}} {
		if *cache.top == cache.base {
			*cache.top = min(caisson.USD(math.Ceil(float64(cache.base)*factor)), maxPrice)
		}
	}
	return top, err
}

// limits sets the context window and the output limit of p to those of the model.
func (e entry) limits(p *caisson.ListedPrice) error {
	input, err := e.countField("max_input_tokens")
	if err != nil {
		return err
	}
	if p.Output, err = e.countField("max_output_tokens"); err != nil {
		return err
	}
	if input > 0 {
		// Some providers count the output within the input limit, others separately. The sum is an upper bound for both.
		p.Context = input + p.Output
	}
	return nil
}

// isTier reports whether field is the field price with a suffix for long prompts, such as input_cost_per_token_above_200k_tokens
// for input_cost_per_token.
func isTier(field, price string) bool {
	rest, ok := strings.CutPrefix(field, price+"_above_")
	if !ok {
		return false
	}
	number, ok := strings.CutSuffix(rest, "k_tokens")
	n, err := strconv.ParseInt(number, 10, 32)
	return ok && err == nil && n > 0
}

// stringField returns the value of the field with this name; "" if it is missing or not a string.
func (e entry) stringField(name string) string {
	var s string
	if json.Unmarshal(e.fields[name], &s) != nil {
		return ""
	}
	return s
}

// priceField returns the price in dollars per million tokens that the field has in dollars per token; 0 if the field is missing.
func (e entry) priceField(name string) (caisson.USD, error) {
	raw := e.fields[name]
	if raw == nil || string(raw) == "null" {
		return 0, nil
	}
	price, err := dollars(string(raw), perTokenShift)
	if err != nil {
		return 0, caisson.Invalidf(e.name+"."+name, "%s", err)
	}
	return price, nil
}

// countField returns the number of tokens in the field with this name; 0 if it is missing.
func (e entry) countField(name string) (int64, error) {
	raw := e.fields[name]
	if raw == nil || string(raw) == "null" {
		return 0, nil
	}
	f, err := strconv.ParseFloat(string(raw), 64) // values such as 1e6 and 4096.0 occur
	if err != nil || !(f >= 0 && f <= maxTokens) || f != float64(int64(f)) {
		return 0, caisson.Invalidf(e.name+"."+name, "%.40q is not a number of tokens", raw)
	}
	return int64(f), nil
}
