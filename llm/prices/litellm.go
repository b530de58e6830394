package prices

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/caisson-dev/caisson"
)

// sampleSpec is the entry that explains LiteLLM's list.
const sampleSpec = "sample_spec"

// faultShare: one entry in so many may be odd.
const faultShare = 20

// parseLiteLLM reads LiteLLM's list, an object of models.
func parseLiteLLM(data []byte) ([]caisson.ListedPrice, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	if _, err := d.Token(); err != nil {
		return nil, malformed(err)
	}
	list := []caisson.ListedPrice{}
	var faults []error
	at := map[string]int{} // where in list a model is; it can be in data more than once
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, malformed(err)
		}
		name := key.(string) // what a key of an object is
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
			list[i] = dearer(list[i], p)
		} else if ok {
			at[name] = len(list)
			list = append(list, p)
		}
		if len(list) > maxModels {
			return nil, tooMany()
		}
	}
	if len(faults)*faultShare > len(list)+len(faults) {
		return nil, faults[0]
	}
	return list, finish(d)
}

// dearer returns the higher of each price and the lower of the limits: LiteLLM's list is edited by many, and has had models twice.
func dearer(a, b caisson.ListedPrice) caisson.ListedPrice {
	p, q := a.Prices, b.Prices
	cache := func(x, y caisson.USD) caisson.USD { // 0 means the price of input
		if x == 0 || y == 0 {
			return 0
		}
		return max(x, y)
	}
	a.Prices = caisson.Prices{
		Input: max(p.Input, q.Input), Output: max(p.Output, q.Output),
		CacheRead: cache(p.CacheRead, q.CacheRead), CacheWrite: cache(p.CacheWrite, q.CacheWrite),
	}
	for _, l := range []struct {
		to    *int64
		other int64
	}{{&a.Context, b.Context}, {&a.Output, b.Output}} {
		if *l.to == 0 || l.other > 0 && l.other < *l.to {
			*l.to = l.other
		}
	}
	return a
}

// entry is a model in LiteLLM's list.
type entry struct {
	name   string
	fields map[string]json.RawMessage
}

// price returns what the model costs; false if that is not so much per token.
func (e entry) price() (caisson.ListedPrice, bool, error) {
	p := caisson.ListedPrice{Model: e.name}
	mode := e.text("mode")
	if mode != "chat" && mode != "responses" && mode != "embedding" {
		return p, false, nil
	}
	if p.Provider = e.text("litellm_provider"); p.Provider != "" && !printable(p.Provider, maxName) {
		return p, false, caisson.Invalidf(e.name+".litellm_provider", "%.40q is not the name of a provider", p.Provider)
	}
	var reasoning caisson.USD
	for _, f := range []struct {
		name string
		to   *caisson.USD
	}{
		{"input_cost_per_token", &p.Prices.Input},
		{"output_cost_per_token", &p.Prices.Output},
		{"output_cost_per_reasoning_token", &reasoning},
		{"cache_read_input_token_cost", &p.Prices.CacheRead},
		{"cache_creation_input_token_cost", &p.Prices.CacheWrite},
	} {
		var err error
		if *f.to, err = e.cost(f.name); err != nil {
			return p, false, err
		}
	}
	if p.Prices.Input == 0 || p.Prices.Output == 0 && mode != "embedding" {
		return p, false, nil
	}
	p.Prices.Output = max(p.Prices.Output, reasoning)
	return p, true, e.limits(&p)
}

// limits sets how many tokens the model takes.
func (e entry) limits(p *caisson.ListedPrice) error {
	input, err := e.count("max_input_tokens")
	if err != nil {
		return err
	}
	if p.Output, err = e.count("max_output_tokens"); err != nil {
		return err
	}
	if input > 0 {
		// Some providers count the answer within this, others beside it. The sum is right for both as a bound.
		p.Context = input + p.Output
	}
	for name := range e.fields {
		above, ok := threshold(name)
		if !ok || p.Context > 0 && p.Context <= above {
			continue
		}
		price, err := e.cost(name)
		if err != nil {
			return err
		}
		base := p.Prices.Input
		if strings.HasPrefix(name, "output") {
			base = p.Prices.Output
		}
		if price > base {
			p.Context = above
		}
	}
	return nil
}

// threshold returns the number of tokens above which the price of that name holds:
// 200000 for input_cost_per_token_above_200k_tokens.
func threshold(name string) (int64, bool) {
	for _, prefix := range []string{"input_cost_per_token_above_", "output_cost_per_token_above_"} {
		rest, ok := strings.CutPrefix(name, prefix)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSuffix(rest, "k_tokens"), 10, 32)
		return n * 1000, err == nil && n > 0 && strings.HasSuffix(rest, "k_tokens")
	}
	return 0, false
}

// text returns a field that is text, else "".
func (e entry) text(name string) string {
	var s string
	if json.Unmarshal(e.fields[name], &s) != nil {
		return ""
	}
	return s
}

// cost returns a field in dollars per token, per million tokens; 0 if it is missing.
func (e entry) cost(name string) (caisson.USD, error) {
	raw := e.fields[name]
	if raw == nil || string(raw) == "null" {
		return 0, nil
	}
	price, err := dollars(string(raw), perToken)
	if err != nil {
		return 0, caisson.Invalidf(e.name+"."+name, "%s", err)
	}
	return price, nil
}

// count returns a field that is a number of tokens; 0 if it is missing.
func (e entry) count(name string) (int64, error) {
	raw := e.fields[name]
	if raw == nil || string(raw) == "null" {
		return 0, nil
	}
	f, err := strconv.ParseFloat(string(raw), 64) // 1e6 and 4096.0 occur
	if err != nil || !(f >= 0 && f <= maxTokens) || f != float64(int64(f)) {
		return 0, caisson.Invalidf(e.name+"."+name, "%.40q is not a number of tokens", raw)
	}
	return int64(f), nil
}
