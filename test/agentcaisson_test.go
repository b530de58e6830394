package test_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/coder/sample"
)

// TestAgentCaisson tests that the built-in agent fixes the sample repository without changing the original: over the
// unix socket, and over TCP with a token, where the directory is uploaded.
func TestAgentCaisson(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, caisson.ProviderLiteLLM, sample.Script, false, nil)
	refusing := newUpstream(t, caisson.ProviderOpenAI, `turns: [{when: {last: Wait.}, repeat: true, delay: {first: 10m}, text: "late"}]
fallback: {error: {status: 401, message: "Incorrect API key provided"}}
`, false, nil)
	h := newModelHost(t, []*upstream{u, refusing}, agentModel("m", "litellm"), agentModel("refused", "openai"))
	dir, listener := filepath.Join(h.dir, "roman"), freeAddress(t)
	if err := sample.Write(dir); err != nil {
		t.Fatal(err)
	}
	h.agentsDir(nil)
	before := h.tree(dir)

	remote := *h.host
	token := h.ok("token", "create", "-q", "ci", "--account", "team-b")
	h.configLine("listen: " + listener)
	h.ok("agent", "ls")
	remote.env = []string{"PATH=/usr/bin:/bin", "HOME=" + h.dir, "CAISSON_CONFIG=" + h.configFile(), "CAISSON_HOST=http://" + listener, "CAISSON_TOKEN=" + token}
	for name, from := range map[string]*host{"here": h.host, "over TCP": &remote} {
		r := from.succeeds("-C", dir, "--max-cost", "9", "caisson", sample.Prompt)
		if !strings.Contains(r.Result.Answer, sample.Answer) || r.Result.Exit == nil || !r.Result.Exit.Success() {
			t.Errorf("%s: the run is %+v", name, r.Result)
		}
		if len(r.Result.Changes) != 1 || changed(r, "roman.sh") != "modified" || r.Result.Changes[0].Added != 1 || !strings.Contains(r.Result.Patch, "+4 IV") {
			t.Errorf("%s: it has changed %+v: %s", name, r.Result.Changes, r.Result.Patch)
		}
		if after := h.tree(dir); after != before {
			t.Errorf("%s: the directory was\n%s\nand is\n%s", name, before, after)
		}
		want := map[string]string{"here": caisson.LocalAccount, "over TCP": "team-b"}[name]
		calls, tokens := u.billed(r.ID)
		if len(calls) != 5 || r.Result.Usage.Tokens != tokens || r.Result.Usage.Calls != 5 || r.Account != want || r.Local != (name == "here") {
			t.Errorf("%s: the model counted %d calls and %+v, the run of %s says %+v", name, len(calls), tokens, r.Account, r.Result.Usage)
		}
		if sum := h.total("--run", string(r.ID), "--account", want); sum.Cost != agentPrice.Cost(tokens) || sum.Tokens != tokens {
			t.Errorf("%s: the ledger has %+v", name, sum)
		}
	}
	// Uploaded files are removed after the run.
	h.waitFor(func() bool {
		list, err := filepath.Glob(filepath.Join(h.data, "runs", "*", "*.tar"))
		return err == nil && len(list) == 0
	})
	// A token gives access neither to runs of other accounts nor to wider limits.
	if r := remote.run("run", "--timeout", "10h", "caisson", sample.Prompt); r.code == 0 || !strings.Contains(r.stderr, "limits.time") {
		t.Errorf("a wider limit over a token: %v", r)
	}
	if list := strings.Fields(remote.ok("runs", "ls", "-q")); len(list) != 1 {
		t.Errorf("over the token there are %q", list)
	}
	refusedCredential(t, h, refusing)
	cutCall(t, h, refusing)
	h.noSandboxes()
}

// TestAgentCaissonModels tests that the configuration of the README works unchanged except for the address of the
// provider. The built-in agent uses the first model of the file, not the alphabetically first one, and supports its API
// and the other ones. An agent without a usable model is rejected before anything starts.
func TestAgentCaissonModels(t *testing.T) {
	t.Parallel()
	config := strings.TrimSpace(yamlOf(t, "README.md", "# /etc/caisson/config.yaml"))
	if !strings.Contains(config, "https://api.anthropic.com") {
		t.Fatalf("the README has no such configuration: %s", config)
	}
	providers := map[string]*upstream{}
	var more [2][]string // Providers, models.
	for _, kind := range []string{caisson.ProviderAnthropic, caisson.ProviderGemini, caisson.ProviderOpenAI} {
		u := newUpstream(t, kind, sample.Script, false, nil)
		providers[kind] = u
		if kind != caisson.ProviderAnthropic {
			more[0] = append(more[0], fmt.Sprintf("  - {name: %s, kind: %s, baseURL: %q}", kind, kind, u.url))
			more[1] = append(more[1], fmt.Sprintf("  - {alias: a-%s, provider: %s, free: true, context: 100000, output: 4096}", kind, kind))
		}
	}
	h := newModelHost(t, nil)
	config = strings.Replace(config, "https://api.anthropic.com", providers[caisson.ProviderAnthropic].url, 1)
	config = strings.Replace(config, "\nmodels:", "\n"+strings.Join(more[0], "\n")+"\nmodels:", 1)
	h.configure("idleExit: 10m", config, strings.Join(more[1], "\n"))
	h.agentsDir(nil)
	if r := h.runWith(strings.NewReader("sk-ant-x\n"), "credential", "set", "ANTHROPIC_API_KEY"); r.code != 0 {
		t.Fatal(r)
	}
	for _, row := range []struct {
		args        []string
		model, kind string
		api         string
	}{
		{nil, "sonnet", caisson.ProviderAnthropic, "messages"},
		{[]string{"--model", "a-gemini"}, "a-gemini", caisson.ProviderGemini, "generate"},
		{[]string{"--model", "a-openai"}, "a-openai", caisson.ProviderOpenAI, "chat"},
	} {
		dir := filepath.Join(h.dir, row.kind)
		if err := sample.Write(dir); err != nil {
			t.Fatal(err)
		}
		r := h.succeeds(append(append([]string{"-C", dir, "--max-cost", "5"}, row.args...), "caisson", sample.Prompt)...)
		if !strings.Contains(r.Result.Answer, sample.Answer) || changed(r, "roman.sh") != "modified" || r.Model != row.model {
			t.Errorf("%s: the run on %s is %+v", row.kind, r.Model, r.Result)
		}
		n, billed := providers[row.kind].Billed()
		if n != 5 || r.Result.Usage.Tokens != billed {
			t.Errorf("%s: the model counted %d calls and %+v, the run says %+v", row.kind, n, billed, r.Result.Usage)
		}
		for _, c := range h.ledger("--run", string(r.ID)) {
			if c.API != row.api || !c.Stream || c.Estimated || c.Error != "" {
				t.Errorf("%s: the ledger has %+v", row.kind, c)
			}
		}
	}
	const refusal = `agent "codex" cannot use model "sonnet" (its API is Anthropic): use one of demo, a-openai`
	if r := h.run("run", "codex", "--model", "sonnet", "hello"); r.code != 2 || !strings.Contains(r.stderr, refusal) {
		t.Errorf("a model of another API: %v", r)
	}
	if list := strings.Fields(h.ok("runs", "ls", "-q")); len(list) != 3 {
		t.Errorf("there are the runs %q", list)
	}
	h.noSandboxes()
}

// refusedCredential tests that a run whose provider rejects the credential ends at once, and that its error names the
// credential and the remedy while its sandbox receives neither.
func refusedCredential(t *testing.T, h *modelHost, u *upstream) {
	r := h.does("--model", "refused", "caisson", "Hello.")
	h.wantError(r, caisson.RunProvider, `the provider refused the credential KEY_OPENAI of model "refused" (401): run "caisson credential rotate KEY_OPENAI"`)
	if n := len(u.Calls()); n != 1 || r.Result.Usage.Calls != 1 || r.Result.Usage.Failed != 1 {
		t.Errorf("the provider was called %d times; the run says %+v", n, r.Result.Usage)
	}
	h.fails(11, "caisson credential rotate KEY_OPENAI", "attach", string(r.ID))
	for what, text := range map[string]string{"runs show": h.ok("runs", "show", string(r.ID)), "the log": h.daemonLog(), "the calls": h.ok("logs", "--stream", "gateway", string(r.ID))} {
		if !strings.Contains(text, "KEY_OPENAI") || !strings.Contains(text, "Incorrect API key provided") || strings.Contains(text, u.key) {
			t.Errorf("%s: %s", what, text)
		}
	}
	for _, stream := range []string{"stdout", "stderr"} {
		if text := h.ok("logs", "--stream", stream, string(r.ID)); strings.Contains(text, "KEY_OPENAI") || strings.Contains(text, "Incorrect") {
			t.Errorf("the sandbox was told: %s", text)
		}
	}
}

// cutCall tests that the cost of a run whose last call was cut off by the end of the run is reported with the end, and
// equals the sum in the ledger.
func cutCall(t *testing.T, h *modelHost, u *upstream) {
	before := len(u.Calls())
	id := h.ok("run", "-d", "-q", "--model", "refused", "caisson", "Wait.")
	h.waitFor(func() bool { return len(u.Calls()) > before })
	h.ok("cancel", id)
	r := shows[caisson.Run](h.host, "runs", "show", id)
	sum := h.total("--run", id)
	if r.Usage.Calls != 1 || !r.Usage.Estimated || r.Usage.MaxCost != 0 || r.Usage.Cost == 0 || r.Usage.Cost != sum.Cost || r.Result.Usage != r.Usage {
		t.Errorf("the run says %+v, the ledger %+v", r.Usage, sum)
	}
	if line := fmt.Sprintf("about $%s", sum.Cost); !strings.Contains(h.run("attach", id).stderr, line) {
		t.Errorf("attach does not say %q", line)
	}
}
