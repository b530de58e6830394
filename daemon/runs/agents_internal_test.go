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
		{[]string{"gpt", "sonnet", "dear", "gone"}, []string{caisson.APIOpenAI}, "models=ok model sonnet=failed model dear=warning model gone=warning"},
		{[]string{"gpt", "sonnet"}, nil, "models=ok"},
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

// TestCheckFile tests what a check says about what an agent's file names.
func TestCheckFile(t *testing.T) {
	t.Parallel()
	a := &caisson.Agent{
		ID: "boss", Models: []string{"-"}, Skills: []string{"/a", "/b"}, Tools: caisson.ToolRule{Allow: []string{"x"}, Deny: []string{"y"}},
		SubAgents: []string{"*", "worker", "nonesuch"}, Setup: []caisson.SetupStep{{}},
	}
	want := "names 0 models, 2 directories of skills, 2 tools, 3 sub-agents, 0 personas and 1 set-up step"
	if got := countParts(a); got.Detail != want || got.Status != caisson.CheckOK {
		t.Errorf("%+v, want %s", got, want)
	}
	list := checkSubAgents(a, []*caisson.Agent{{ID: "worker"}})
	if len(list) != 1 || list[0].Subject != "sub-agent nonesuch" || list[0].Status != caisson.CheckFailed {
		t.Errorf("%+v", list)
	}
}
