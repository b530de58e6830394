package prices

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
)

func TestOpenRouter(t *testing.T) {
	const list = `{"data": [
	{"id": "anthropic/claude-sonnet-4.6", "context_length": 200000, "top_provider": {"max_completion_tokens": 64000},
	 "pricing": {"prompt": "0.000003", "completion": "0.000015", "request": "0", "input_cache_read": "0.0000003", "input_cache_write": "0.00000375"}},
	{"id": "z/thinks", "context_length": 1000, "top_provider": {"max_completion_tokens": null}, "pricing": {"prompt": "0.000001", "completion": "0.000002", "internal_reasoning": "0.000004"}},
	{"id": "free/model:free", "context_length": 1000, "pricing": {"prompt": "0", "completion": "0"}},
	{"id": "openrouter/auto", "context_length": 2000000, "pricing": {"prompt": "-1", "completion": "-1"}}
	]}`
	got, err := Parse("openrouter", []byte(list))
	if err != nil || len(got) != 2 {
		t.Fatalf("%+v, %v", got, err)
	}
	want := caisson.ListedPrice{
		Model: "anthropic/claude-sonnet-4.6", Provider: "openrouter", Context: 200000, Output: 64000, Source: "openrouter",
		Prices: caisson.Prices{Input: usd(t, "3"), Output: usd(t, "15"), CacheRead: usd(t, "0.3"), CacheWrite: usd(t, "3.75")},
	}
	if got[0] != want {
		t.Errorf("%+v, not %+v", got[0], want)
	}
	if got[1].Prices.Output != usd(t, "4") {
		t.Errorf("with reasoning: %+v", got[1].Prices)
	}
	model := func(id, pricing string) string { return fmt.Sprintf(`{"id": %q, "pricing": {%s}}`, id, pricing) }
	const fine = `"prompt": "0.000001", "completion": "0.000002"`
	for name, data := range map[string]string{
		"negative":    model("a", `"prompt": "-0.5", "completion": "0.000002"`),
		"too high":    model("a", `"prompt": "3", "completion": "15"`),
		"text":        model("a", `"prompt": "cheap", "completion": "0.000002"`),
		"a number":    model("a", `"prompt": 0.000001, "completion": 0.000002`),
		"without id":  model("", fine),
		"control":     model("a\u001b", fine),
		"twice":       model("a", fine) + "," + model("a", fine),
		"a context":   `{"id": "a", "context_length": -1, "pricing": {` + fine + `}}`,
		"no object":   `7`,
		"no pricings": `{"id": "a", "pricing": []}`,
	} {
		if got, err := Parse("x", []byte(`{"data": [`+data+`]}`)); caisson.KindOf(err) != caisson.Invalid {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	// A few invalid entries are left out.
	var many []string
	for i := range 50 {
		many = append(many, model(fmt.Sprint("m", i), fine))
	}
	if got, err := Parse("x", []byte(`{"data": [`+strings.Join(append(many, model("bad", `"prompt": "x"`)), ",")+`]}`)); err != nil || len(got) != 50 {
		t.Errorf("%d models, %v", len(got), err)
	}
}
