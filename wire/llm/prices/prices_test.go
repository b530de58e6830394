package prices

import (
	"encoding/json"
	"fmt"
	"math/big"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
)

func usd(t testing.TB, s string) caisson.USD {
	t.Helper()
	u, err := caisson.ParseUSD(s)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func TestDollars(t *testing.T) {
	for _, c := range []struct {
		in, want string // per token; per million
	}{
		{"0", "0"},
		{"-0.0", "0"},
		{"0e99", "0"},
		{"1.5e-07", "0.15"},
		{"1.5E-07", "0.15"},
		{"0.00000015", "0.15"},
		{"2e-06", "2"},
		{"0.0000025", "2.5"},
		{"3.0000e-6", "3"},
		{"5.46875e-07", "0.546875"},
		{"1.0000000000000002e-06", "1"},
		{"2.9999999999999997e-07", "0.3"},
		{"3.7499999999999997e-06", "3.75"},
		{"0.00015", "150"},
		{"1e-15", "0.000000001"},
		{"5e-16", "0.000000001"},
		{"9.9999999999999999e-07", "1"},
		{"0.01", "10000"},
		{"1e-2", "10000"},
		{"10000e-6", "10000"},
	} {
		got, err := dollars(c.in, perTokenShift)
		if err != nil || got.String() != c.want {
			t.Errorf("dollars(%s) = %s, %v; want %s", c.in, got, err, c.want)
		}
	}
	for _, c := range []struct{ in, want string }{
		{"-1e-6", "negative"},
		{"-0.5", "negative"},
		{"0.011", "more than 10000 USD"},
		{"3", "more than"},
		{"1e999", "more than"},
		{"123456789012345678901234567890", "more than"},
		{"4e-16", "less than"},
		{"1e-999", "less than"},
		{"", "not a decimal"},
		{".5", "not a decimal"},
		{"5.", "not a decimal"},
		{"1e", "not a decimal"},
		{"1e99999999999999999999", "not a decimal"},
		{"1e1001", "not a decimal"},
		{"NaN", "not a decimal"},
		{"Infinity", "not a decimal"},
		{"0x10", "not a decimal"},
		{"1_000", "not a decimal"},
		{"+1", "not a decimal"},
		{"--1", "not a decimal"},
		{`"0.1"`, "not a decimal"},
		{"true", "not a decimal"},
		{"[]", "not a decimal"},
		{"0." + strings.Repeat("0", 100) + "1", "not a decimal"},
	} {
		if got, err := dollars(c.in, perTokenShift); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("dollars(%s) = %s, %v; want an error with %q", c.in, got, err, c.want)
		}
	}
}

// liteLLM has entries in the format of LiteLLM's list.
const liteLLM = `{
  "sample_spec": {"input_cost_per_token": 0.0, "mode": "one of: chat, embedding", "max_input_tokens": "max input tokens, if the provider specifies it"},
  "claude-sonnet-4-5": {
    "cache_creation_input_token_cost": 3.75e-06, "cache_read_input_token_cost": 3e-07, "input_cost_per_token": 3e-06,
    "input_cost_per_token_above_200k_tokens": 6e-06, "output_cost_per_token_above_200k_tokens": 2.25e-05,
    "litellm_provider": "anthropic", "max_input_tokens": 1000000, "max_output_tokens": 64000, "max_tokens": 64000,
    "mode": "chat", "output_cost_per_token": 1.5e-05, "search_context_cost_per_query": {"search_context_size_low": 0.01}},
  "gpt-4o-mini": {"input_cost_per_token": 1.5e-07, "output_cost_per_token": 6e-07, "cache_read_input_token_cost": 7.5e-08,
    "litellm_provider": "openai", "max_input_tokens": 128000, "max_output_tokens": 16384, "mode": "chat"},
  "o3-deep-research": {"input_cost_per_token": 1e-05, "output_cost_per_token": 4e-05, "litellm_provider": "openai", "mode": "responses"},
  "text-embedding-3-small": {"input_cost_per_token": 2e-08, "output_cost_per_token": 0.0, "litellm_provider": "openai",
    "max_input_tokens": 8191, "mode": "embedding"},
  "perplexity/thinks": {"input_cost_per_token": 2e-06, "output_cost_per_token": 8e-06, "output_cost_per_reasoning_token": 9e-06,
    "litellm_provider": "perplexity", "max_input_tokens": 1.28e5, "max_output_tokens": null, "mode": "chat"},
  "same-above": {"input_cost_per_token": 1e-06, "output_cost_per_token": 2e-06, "input_cost_per_token_above_128k_tokens": 1e-06,
    "input_cost_per_token_above_fifty_tokens": "x", "max_input_tokens": 400000, "litellm_provider": "vertex", "mode": "chat"},
  "free": {"input_cost_per_token": 0, "output_cost_per_token": 0, "litellm_provider": "ollama", "mode": "chat"},
  "half-free": {"input_cost_per_token": 1e-6, "output_cost_per_token": 0, "litellm_provider": "x", "mode": "chat"},
  "by-the-second": {"input_cost_per_second": 0.1, "litellm_provider": "x", "mode": "chat"},
  "dall-e-3": {"input_cost_per_pixel": -1, "litellm_provider": "openai", "mode": "image_generation"},
  "whisper-1": {"input_cost_per_token": "odd", "mode": "audio_transcription"},
  "no-mode": {"input_cost_per_token": 1e-6, "output_cost_per_token": 1e-6}
}`

func TestLiteLLM(t *testing.T) {
	list, err := Parse("https://example.com/prices.json", []byte(liteLLM))
	if err != nil {
		t.Fatal(err)
	}
	want := []struct{ model, provider, input, output, read, write string }{
		{"claude-sonnet-4-5", "anthropic", "6", "22.5", "0.6", "7.5"},
		{"gpt-4o-mini", "openai", "0.15", "0.6", "0.075", "0"},
		{"o3-deep-research", "openai", "10", "40", "0", "0"},
		{"perplexity/thinks", "perplexity", "2", "9", "0", "0"},
		{"same-above", "vertex", "1", "2", "0", "0"},
		{"text-embedding-3-small", "openai", "0.02", "0", "0", "0"},
	}
	limits := [][2]int64{{1064000, 64000}, {144384, 16384}, {0, 0}, {128000, 0}, {400000, 0}, {8191, 0}}
	if len(list) != len(want) {
		t.Fatalf("%d prices: %+v", len(list), list)
	}
	for i, w := range want {
		p := caisson.Prices{Input: usd(t, w.input), Output: usd(t, w.output), CacheRead: usd(t, w.read), CacheWrite: usd(t, w.write)}
		exp := caisson.ListedPrice{
			Model: w.model, Provider: w.provider, Prices: p, Context: limits[i][0], Output: limits[i][1],
			Source: "https://example.com/prices.json",
		}
		if list[i] != exp {
			t.Errorf("got  %+v\nwant %+v", list[i], exp)
		}
	}
}

// TestTiers checks that the prices of the longest prompts apply to all, because the gateway does not have the length of a prompt
// before the call.
func TestTiers(t *testing.T) {
	list, err := Parse("s", []byte(`{"gemini-2.5-pro": {"mode": "chat", "max_input_tokens": 1048576, "max_output_tokens": 65535,
		"input_cost_per_token": 1.25e-06, "input_cost_per_token_above_128k_tokens": 2e-06, "input_cost_per_token_above_200k_tokens": 2.5e-06,
		"output_cost_per_token": 1e-05, "output_cost_per_token_above_200k_tokens": 1.5e-05,
		"output_cost_per_reasoning_token": 1.1e-05, "output_cost_per_reasoning_token_above_200k_tokens": 1.6e-05,
		"cache_read_input_token_cost": 1.25e-07, "cache_read_input_token_cost_above_200k_tokens": 6.25e-07,
		"cache_creation_input_token_cost": 3e-06, "cache_creation_input_token_cost_above_1hr": 9e-06}}`))
	want := caisson.ListedPrice{
		Model: "gemini-2.5-pro", Source: "s", Context: 1048576 + 65535, Output: 65535,
		Prices: caisson.Prices{Input: usd(t, "2.5"), Output: usd(t, "16"), CacheRead: usd(t, "0.625"), CacheWrite: usd(t, "6")},
	}
	if err != nil || len(list) != 1 || list[0] != want {
		t.Errorf("%+v, %v", list, err)
	}
}

// TestTwice checks that of duplicate models in LiteLLM's list, spelled alike or not, the higher prices apply.
func TestTwice(t *testing.T) {
	list, err := Parse("s", []byte(`{
		"a": {"mode": "chat", "input_cost_per_token": 1e-6, "output_cost_per_token": 5e-6, "cache_read_input_token_cost": 2e-7, "max_input_tokens": 10},
		"\u0061": {"mode": "chat", "input_cost_per_token": 2e-6, "output_cost_per_token": 4e-6, "cache_read_input_token_cost": 1e-7,
			"cache_creation_input_token_cost": 3e-6, "max_input_tokens": 9, "max_output_tokens": 3},
		"a": {"mode": "audio_speech"}}`))
	want := caisson.ListedPrice{
		Model: "a", Source: "s", Context: 12, Output: 3,
		Prices: caisson.Prices{Input: 2 * caisson.Dollar, Output: 5 * caisson.Dollar, CacheRead: usd(t, "0.2")},
	}
	if err != nil || len(list) != 1 || list[0] != want {
		t.Errorf("%+v, %v", list, err)
	}
}

// TestFewFaults checks that a few invalid entries are left out, and that many are an error.
func TestFewFaults(t *testing.T) {
	for _, c := range []struct {
		good, odd int
		want      bool
	}{{19, 1, true}, {18, 1, false}, {100, 5, true}, {100, 6, false}} {
		entries := []string{}
		for i := range c.good + c.odd {
			price := "1e-6"
			if i < c.odd {
				price = "0.015" // occurs in a list of 2025
			}
			entries = append(entries, fmt.Sprintf(`"m%d": {"mode": "chat", "input_cost_per_token": %s, "output_cost_per_token": 1e-6}`, i, price))
		}
		list, err := Parse("s", []byte("{"+strings.Join(entries, ",")+"}"))
		if c.want != (err == nil && len(list) == c.good) || !c.want && !strings.Contains(err.Error(), "check its unit") {
			t.Errorf("%d good and %d odd: %d prices, %v", c.good, c.odd, len(list), err)
		}
	}
}

func TestPlain(t *testing.T) {
	list, err := Parse("mine", []byte(`[
		{"model": "b", "provider": "p", "prices": {"input": 0.15, "output": "0.60"}, "context": 1000, "output": 100},
		{"model": "a", "prices": {"input": 1.5e-1, "output": 0, "cacheRead": 0.000000001, "cacheWrite": 10000}, "source": "old", "at": "2025-01-02T00:00:00Z"},
		{"model": "b", "provider": "q", "prices": {"input": 0, "output": 0}}]`))
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	const want = `[{"model":"a","prices":{"input":0.15,"output":0,"cacheRead":0.000000001,"cacheWrite":10000},"source":"mine","at":"0001-01-01T00:00:00Z"},` +
		`{"model":"b","provider":"p","prices":{"input":0.15,"output":0.6},"context":1000,"output":100,"source":"mine","at":"0001-01-01T00:00:00Z"},` +
		`{"model":"b","provider":"q","prices":{"input":0,"output":0},"source":"mine","at":"0001-01-01T00:00:00Z"}]`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	again, err := Parse("mine", got) // a list of prices can be imported again
	if err != nil || fmt.Sprint(again) != fmt.Sprint(list) {
		t.Errorf("again: %v, %v", again, err)
	}
	for _, empty := range []string{"[]", "{}"} {
		if list, err := Parse("mine", []byte(empty)); err != nil || len(list) != 0 || list == nil {
			t.Errorf("%s: %v, %v", empty, list, err)
		}
	}
}

func TestRefused(t *testing.T) {
	const model = `{"m": {"mode": "chat", "litellm_provider": "x", "output_cost_per_token": 1e-6, `
	for _, c := range []struct{ name, data, want string }{
		{"empty", "", "a price list is"},
		{"text", "hello", "a price list is"},
		{"number", "3", "a price list is"},
		{"cut", liteLLM[:300], "not JSON"},
		{"cut list", `[{"model": "a"`, "not JSON"},
		{"unclosed list", `[`, "not JSON"},
		{"unclosed object", `{"a": {}`, "not JSON"},
		{"two", "{} {}", "followed by other data"},
		{"garbage behind", "[] x", "followed by other data"},
		{"not UTF-8", "{\"a\xff\": {}}", "UTF-8"},
		{"not an object", `{"a": 3}`, "not JSON"},
		{"no name", `{"": {}}`, "not the name"},
		{"line feed in name", `{"a\nb": {}}`, "not the name"},
		{"escape in name", `{"a\u001b[2J": {}}`, "not the name"},
		{"long name", `{"` + strings.Repeat("a", 257) + `": {}}`, "not the name"},
		{"odd provider", `{"m": {"mode": "chat", "litellm_provider": "\u0007"}}`, "m.litellm_provider:"},
		{"negative", model + `"input_cost_per_token": -1e-6}}`, "m.input_cost_per_token: \"-1e-6\" is negative"},
		{"text price", model + `"input_cost_per_token": "1e-6"}}`, "m.input_cost_per_token:"},
		{"per million for per token", model + `"input_cost_per_token": 3}}`, "check its unit"},
		{"absurd cache", model + `"input_cost_per_token": 1e-6, "cache_read_input_token_cost": 1e9}}`, "m.cache_read_input_token_cost:"},
		{"absurd tier", model + `"input_cost_per_token": 1e-6, "output_cost_per_token_above_200k_tokens": -1}}`, "above_200k_tokens:"},
		{"negative limit", model + `"input_cost_per_token": 1e-6, "max_input_tokens": -1}}`, "m.max_input_tokens:"},
		{"half a token", model + `"input_cost_per_token": 1e-6, "max_output_tokens": 0.5}}`, "m.max_output_tokens:"},
		{"large limit", model + `"input_cost_per_token": 1e-6, "max_input_tokens": 1e300}}`, "m.max_input_tokens:"},
		{"text limit", model + `"input_cost_per_token": 1e-6, "max_input_tokens": "many"}}`, "m.max_input_tokens:"},
		{"plain unknown field", `[{"model": "a", "price": 3}]`, "[0]: is not a price"},
		{"plain without prices", `[{"model": "a"}]`, "a: has no prices"},
		{"plain without output", `[{"model": "a", "prices": {"input": 1}}]`, "a: has no prices"},
		{"plain without model", `[{"prices": {"input": 1, "output": 1}}]`, "[0]:"},
		{"plain negative", `[{"model": "a", "prices": {"input": -1, "output": 1}}]`, "a.prices.input:"},
		{"plain absurd", `[{"model": "a", "prices": {"input": 1, "output": 10000.1}}]`, "a.prices.output:"},
		{"plain NaN", `[{"model": "a", "prices": {"input": "NaN", "output": 1}}]`, "[0]:"},
		{"plain context", `[{"model": "a", "prices": {"input": 1, "output": 1}, "context": -1}]`, "a.context:"},
		{"plain limit", `[{"model": "a", "prices": {"input": 1, "output": 1}, "output": 1000000001}]`, "a.output:"},
		{"plain twice", `[{"model": "a", "prices": {"input": 1, "output": 1}}, {"model": "a", "prices": {"input": 1, "output": 1}}]`, "a: is in the list twice"},
		{"deep", strings.Repeat("[", 20000), ""},
		{"large", strings.Repeat(" ", MaxSize+1), "at most 16MiB"},
	} {
		list, err := Parse("s", []byte(c.data))
		if caisson.KindOf(err) != caisson.Invalid || list != nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, %v", c.name, list, err)
		}
	}
	for _, source := range []string{"", "a\nb", "\x1b[2J", strings.Repeat("s", 1025)} {
		if _, err := Parse(source, []byte("{}")); caisson.FieldOf(err) != "source" {
			t.Errorf("source %.10q: %v", source, err)
		}
	}
}

// FuzzDollars compares the result with exact fractions.
func FuzzDollars(f *testing.F) {
	for _, s := range []string{"1.5e-07", "0.00000000000000049", "9.9999999999999999e-07", "0.01", "1e-15", "-3", "0e-9", "12345678.9e-15"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := dollars(s, perTokenShift)
		if err != nil {
			return
		}
		exact, ok := new(big.Rat).SetString(s)
		if !ok {
			t.Fatalf("%q is no number, and became %s", s, got)
		}
		exact.Mul(exact, new(big.Rat).SetInt64(1e15))
		off := exact.Sub(exact, new(big.Rat).SetInt64(int64(got)))
		if off.Abs(off).Cmp(big.NewRat(1, 2)) > 0 || got < 0 || got > maxPrice {
			t.Fatalf("%q became %s", s, got)
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add(liteLLM)
	f.Add(`[{"model": "b", "provider": "p", "prices": {"input": 0.15, "output": "0.60"}, "context": 1000}]`)
	f.Add(`{"a": {"mode": "chat", "input_cost_per_token": 1e-6, "output_cost_per_token": 1e-6, "max_input_tokens": 1}}`)
	f.Add("[")
	f.Fuzz(func(t *testing.T, data string) {
		list, err := Parse("s", []byte(data))
		if err != nil {
			if caisson.KindOf(err) != caisson.Invalid || list != nil {
				t.Fatalf("%v, %v", list, err)
			}
			return
		}
		for _, p := range list {
			if !printable(p.Model, maxName) || p.Source != "s" || p.Context < 0 || p.Output < 0 || p.Context > 2*maxTokens || p.Output > maxTokens ||
				p.Prices.Input < 0 || p.Prices.MaxInput() > maxPrice || p.Prices.Output < 0 || p.Prices.Output > maxPrice {
				t.Fatalf("%+v", p)
			}
		}
	})
}
