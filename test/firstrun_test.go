package test_test

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/coder/sample"
)

// TestFirstRun tests that with an empty data directory and no configuration one key in the environment and one command end in a
// fixed test, for each API. The provider is one of the test, named by the variable that its vendor's own libraries have for that.
func TestFirstRun(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ kind, key, base, credential, model, api string }{
		{caisson.ProviderAnthropic, "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", "claude-sonnet-5", "messages"},
		{caisson.ProviderOpenAI, "OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_API_KEY", "scripted", "chat"}, // its server lists its models
		{caisson.ProviderGemini, "GOOGLE_API_KEY", "GOOGLE_GEMINI_BASE_URL", "GEMINI_API_KEY", "gemini-3.5-flash", "generate"},
	} {
		t.Run(c.kind, func(t *testing.T) {
			t.Parallel()
			h := &modelHost{host: newHost(t)}
			h.configure("# nothing") // instead of no file: the host that runs this test may have one
			// A server on this machine with models of its own costs nothing; those that are built in have their prices.
			u := newUpstream(t, c.kind, sample.Script, false, nil)
			dir := filepath.Join(h.dir, "roman")
			if err := sample.Write(dir); err != nil {
				t.Fatal(err)
			}
			test := func() error {
				cmd := exec.Command("sh", "test.sh")
				cmd.Dir = dir
				return cmd.Run()
			}
			if test() == nil {
				t.Fatal("the test of the sample does not fail")
			}
			mend := []string{"run", "caisson", "-C", dir, "--sync", "yolo", sample.Prompt}
			plain := h.env

			// Nothing is stored where CI is set.
			h.env = append(slices.Clone(plain), "CI=true", c.key+"="+u.key, c.base+"="+u.url)
			h.fails(2, "there is no model that caisson can use; store a key with caisson credential set ANTHROPIC_API_KEY", mend...)
			if got := h.ok("credential", "ls", "-q"); got != "" {
				t.Errorf("with CI set, %s is stored", got)
			}

			h.env = append(slices.Clone(plain), c.key+"="+u.key, c.base+"="+u.url)
			r := h.run(mend...)
			if r.code != 0 || !strings.Contains(r.stdout, sample.Answer) || !strings.Contains(r.stderr, "caisson credential rm "+c.credential) {
				t.Fatal(r)
			}
			h.waitFor(func() bool { return test() == nil }) // what the agent has changed is applied after the run
			if got := h.ok("credential", "ls", "-q"); got != c.credential {
				t.Errorf("stored are %q", got)
			}
			calls := h.ledger()
			if n, _ := u.Billed(); n != 5 || len(calls) != 5 || calls[0].Model != c.model || calls[0].API != c.api || (calls[0].Cost == 0) != (c.kind == caisson.ProviderOpenAI) {
				t.Errorf("the model counted %d calls, the ledger has %+v", n, calls)
			}
			for _, text := range []string{r.stdout, r.stderr, h.daemonLog()} {
				if strings.Contains(text, u.key) {
					t.Error("the key is shown")
				}
			}

			// The list of a server's models can be read again.
			h.fails(3, "neither litellm nor openrouter", "model", "sync", "nothing")
			if c.kind == caisson.ProviderOpenAI {
				if got := h.ok("model", "sync", "openai", "-o", "json"); !strings.Contains(got, `"models": 1`) {
					t.Errorf("sync of the server's models: %s", got)
				}
				h.env = plain
				h.fails(2, "set OPENAI_API_KEY", "model", "sync", "openai")
			}

			// What is stored is used from then on, without the variables, and before them.
			h.env = plain
			if r := h.run("run", "caisson", "hello"); r.code != 0 || strings.Contains(r.stderr, "credential") {
				t.Error(r)
			}
			h.env = append(slices.Clone(plain), c.key+"=sk-other", c.base+"=http://127.0.0.1:1")
			r = h.run("run", "caisson", "hello")
			if r.code != 0 || !strings.Contains(r.stderr, "caisson credential rotate "+c.credential+" --env "+c.key) || !strings.Contains(r.stderr, c.base+" is not used: calls go to "+u.url) {
				t.Error(r)
			}
			h.env = plain
		})
	}
}
