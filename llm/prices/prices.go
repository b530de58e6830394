// Package prices reads lists of what models cost: LiteLLM's model_prices_and_context_window.json, or a list of
// [caisson.ListedPrice].
//
// A price that is wrong costs money, so nothing odd becomes one: no negative or absurd number, no text for a number. It refuses
// the whole list, except that LiteLLM's, which many edit, may have a few odd entries. They are left out, and a model without
// a price is refused by the gateway.
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
	// MaxSize is how large a list may be, in bytes.
	MaxSize = 16 << 20
	// maxModels is how many models a list may have.
	maxModels = 100_000
	maxName   = 256
	maxSource = 1024
	// maxPrice is the highest price per million tokens that is believed.
	maxPrice = 10_000 * caisson.Dollar
	// maxTokens is the largest limit of tokens that is believed.
	maxTokens = 1_000_000_000
)

// Parse returns the prices in data, sorted by model, with source as their Source and no time. Errors are Invalid and name the model
// at fault.
//
// Of LiteLLM's list it takes models of the modes chat, responses and embedding that have prices per token. Prices of zero
// are not taken: whether a model is free is for the configuration to say. Where long prompts cost more
// (input_cost_per_token_above_200k_tokens), the price of the longest holds for all: a provider takes whatever its context
// holds, so that a lower price could be exceeded. Configure prices where that is too dear. Where reasoning costs more than
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

// parsePlain reads a list of prices.
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
		p, err := plain(len(list), raw)
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
	return list, finish(d)
}

// plain reads one price of a list.
func plain(i int, raw json.RawMessage) (caisson.ListedPrice, error) {
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
		Source  string `json:"source"` // what an export has; the import says anew
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

func checkTokens(n int64) error {
	if n < 0 || n > maxTokens {
		return fmt.Errorf("%d is not a number of tokens", n)
	}
	return nil
}

// finish checks that a list ends, and nothing follows.
func finish(d *json.Decoder) error {
	if _, err := d.Token(); err != nil {
		return malformed(err)
	}
	if _, err := d.Token(); err != io.EOF {
		return caisson.Invalidf("data", "something follows the price list")
	}
	return nil
}

func malformed(err error) error {
	return caisson.Invalidf("data", "the price list is not JSON: %s", err)
}

func tooMany() error {
	return caisson.Invalidf("data", "the price list has more than %d models", maxModels)
}

// printable reports whether s is text that can be shown, not empty and of at most limit bytes.
func printable(s string, limit int) bool {
	return s != "" && len(s) <= limit && utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}
