package runs

import (
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
)

// TestCheckModels: a check reports which models of an agent it cannot call, and why.
func TestCheckModels(t *testing.T) {
	t.Parallel()
	models := []caisson.GatewayModel{
		{Model: caisson.Model{Alias: "sonnet"}, Kind: caisson.ProviderAnthropic},
		{Model: caisson.Model{Alias: "gpt"}, Kind: caisson.ProviderOpenAI},
		{Model: caisson.Model{Alias: "dear"}, Kind: caisson.ProviderOpenAI, Problem: "no price is known"},
	}
	for _, row := range []struct {
		models []string
		apis   []string
		want   string
	}{
		{[]string{"gpt", "sonnet", "dear", "gone"}, []string{caisson.APIOpenAI}, "model gpt=ok model sonnet=failed model dear=warning model gone=warning"},
		{[]string{"gpt", "sonnet"}, nil, "model gpt=ok model sonnet=ok"},
		{nil, []string{caisson.APIOpenAI}, ""},
		{nil, []string{caisson.APIGemini}, "models=warning"},
		{[]string{"-"}, nil, ""},
	} {
		var got []string
		for _, c := range checkModels(&caisson.Agent{Models: row.models, APIs: row.apis}, models) {
			got = append(got, c.Subject+"="+c.Status)
		}
		if s := strings.Join(got, " "); s != row.want {
			t.Errorf("%v, %v: %s, want %s", row.models, row.apis, s, row.want)
		}
	}
}
