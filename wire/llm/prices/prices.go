// Package prices parses price lists of models: LiteLLM's model_prices_and_context_window.json, OpenRouter's list of models, or a
// list of [caisson.ListedPrice].
//
// A wrong price costs money, so implausible values are rejected: negative or very large numbers, and text in place of numbers. An
// invalid entry makes the whole list invalid, but LiteLLM's and OpenRouter's, which have many editors, may have a few invalid
// entries. They are left out; the gateway refuses calls of a model without a price.
package prices

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/caisson-dev/caisson"
)

const (
	MaxSize   = 16 << 20                // maximum size of a list, in bytes
	maxModels = 100_000                 // maximum number of models in a list
	maxName   = 256                     // maximum length of the name of a model or provider, in bytes
	maxSource = 1024                    // maximum length of the source of a list, its file name or URL, in bytes
	maxPrice  = 10_000 * caisson.Dollar // highest plausible price per million tokens
	maxTokens = 1_000_000_000           // highest plausible number of tokens of a model's context or output
)

// Parse returns the prices in data, sorted by model. It sets their Source to source, the file name or URL of data, and leaves At
// zero. Errors are of kind Invalid and name the invalid model.
//
// From LiteLLM's list it takes the models of the modes chat, responses and embedding that have prices per token. Prices of zero
// are not taken, because only the configuration may declare a model free. If long prompts cost more
// (input_cost_per_token_above_200k_tokens), the price of the longest prompts applies to all: a provider accepts prompts up to its
// context limit, so a lower price could be exceeded. Configure prices if that is too expensive. If reasoning costs more than
// other output, Output is the price of reasoning.
func Parse(source string, data []byte) ([]caisson.ListedPrice, error) {
	if !printable(source, maxSource) {
		return nil, caisson.Invalidf("source", "%.40q does not say where the list is from; give its file name or URL", source)
	}
	if len(data) > MaxSize {
		return nil, caisson.Invalidf("data", "a price list has at most %s", caisson.Size(MaxSize))
	}
	if !utf8.Valid(data) {
		return nil, caisson.Invalidf("data", "the price list is not JSON in UTF-8")
	}
	var list []caisson.ListedPrice
	var err error
	switch trimmed := bytes.TrimLeft(data, " \t\r\n"); {
	case bytes.HasPrefix(trimmed, []byte("{")) && isOpenRouter(trimmed):
		list, err = parseOpenRouter(data)
	case bytes.HasPrefix(trimmed, []byte("{")):
		list, err = parseLiteLLM(data)
	case bytes.HasPrefix(trimmed, []byte("[")):
		list, err = parsePlain(data)
	default:
		err = caisson.Invalidf("data", "a price list is a JSON object like LiteLLM's model_prices_and_context_window.json, or a list of prices")
	}
	if err != nil {
		return nil, err
	}
	for i := range list {
		list[i].Source = source
	}
	slices.SortFunc(list, func(a, b caisson.ListedPrice) int {
		return strings.Compare(a.Model+"\x00"+a.Provider, b.Model+"\x00"+b.Provider)
	})
	return list, nil
}

// parsePlain parses a list of [caisson.ListedPrice] in JSON.
func parsePlain(data []byte) ([]caisson.ListedPrice, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	if _, err := d.Token(); err != nil {
		return nil, malformed(err)
	}
	list := []caisson.ListedPrice{}
	seen := map[[2]string]bool{}
	for d.More() {
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return nil, malformed(err)
		}
		p, err := parsePrice(len(list), raw)
		if err != nil {
			return nil, err
		}
		if seen[[2]string{p.Provider, p.Model}] {
			return nil, caisson.Invalidf(p.Model, "is in the list twice")
		}
		seen[[2]string{p.Provider, p.Model}] = true
		if list = append(list, p); len(list) > maxModels {
			return nil, tooMany()
		}
	}
	return list, checkEnd(d)
}

// parsePrice parses raw, a [caisson.ListedPrice] in JSON. Errors name the model, or i, its index in the list.
func parsePrice(i int, raw json.RawMessage) (caisson.ListedPrice, error) {
	var in struct {
		Model    string `json:"model"`
		Provider string `json:"provider"`
		Prices   *struct {
			Input      *json.Number `json:"input"`
			Output     *json.Number `json:"output"`
			CacheRead  *json.Number `json:"cacheRead"`
			CacheWrite *json.Number `json:"cacheWrite"`
		} `json:"prices"`
		Context int64  `json:"context"`
		Output  int64  `json:"output"`
		Source  string `json:"source"` // present in exports, ignored by imports
		At      string `json:"at"`
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&in); err != nil {
		return caisson.ListedPrice{}, caisson.Invalidf(fmt.Sprintf("[%d]", i), "is not a price of a model: %s", strings.TrimPrefix(err.Error(), "json: "))
	}
	if !printable(in.Model, maxName) || in.Provider != "" && !printable(in.Provider, maxName) {
		return caisson.ListedPrice{}, caisson.Invalidf(fmt.Sprintf("[%d]", i), "%.40q of %.40q is not the name of a model and its provider", in.Model, in.Provider)
	}
	if in.Prices == nil || in.Prices.Input == nil || in.Prices.Output == nil {
		return caisson.ListedPrice{}, caisson.Invalidf(in.Model, "has no prices of input and output")
	}
	p := caisson.ListedPrice{Model: in.Model, Provider: in.Provider, Context: in.Context, Output: in.Output}
	for _, f := range []struct {
		name string
		from *json.Number
		to   *caisson.USD
	}{
		{"prices.input", in.Prices.Input, &p.Prices.Input},
		{"prices.output", in.Prices.Output, &p.Prices.Output},
		{"prices.cacheRead", in.Prices.CacheRead, &p.Prices.CacheRead},
		{"prices.cacheWrite", in.Prices.CacheWrite, &p.Prices.CacheWrite},
	} {
		if f.from == nil {
			continue
		}
		var err error
		if *f.to, err = dollars(f.from.String(), 9); err != nil {
			return p, caisson.Invalidf(in.Model+"."+f.name, "%s", err)
		}
	}
	if err := checkTokens(in.Context); err != nil {
		return p, caisson.Invalidf(in.Model+".context", "%s", err)
	}
	if err := checkTokens(in.Output); err != nil {
		return p, caisson.Invalidf(in.Model+".output", "%s", err)
	}
	return p, nil
}

// checkTokens returns an error if n is not a plausible number of tokens.
func checkTokens(n int64) error {
	if n < 0 || n > maxTokens {
		return fmt.Errorf("%d is not a number of tokens", n)
	}
	return nil
}

// checkEnd returns an error unless d is at the end of a price list that no other data follows.
func checkEnd(d *json.Decoder) error {
	if _, err := d.Token(); err != nil {
		return malformed(err)
	}
	if _, err := d.Token(); err != io.EOF {
		return caisson.Invalidf("data", "the price list is followed by other data")
	}
	return nil
}

// malformed returns the error for a price list that is not valid JSON.
func malformed(err error) error {
	return caisson.Invalidf("data", "the price list is not JSON: %s", err)
}

// tooMany returns the error for a price list with more than maxModels models.
func tooMany() error {
	return caisson.Invalidf("data", "the price list has more than %d models", maxModels)
}

// printable reports whether s is non-empty printable text of at most limit bytes.
func printable(s string, limit int) bool {
	return s != "" && len(s) <= limit && utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}
