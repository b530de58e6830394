package test_test

import (
	"os"
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
			fix := []string{"run", "caisson", "-C", dir, "--sync", "yolo", sample.Prompt}
			plain := h.env

			// Nothing is stored where CI is set.
			h.env = append(slices.Clone(plain), "CI=true", c.key+"="+u.key, c.base+"="+u.url)
			h.fails(2, "there is no model that caisson can use; store a key with caisson credential set ANTHROPIC_API_KEY", fix...)
			if got := h.ok("credential", "ls", "-q"); got != "" {
				t.Errorf("with CI set, %s is stored", got)
			}

			h.env = append(slices.Clone(plain), c.key+"="+u.key, c.base+"="+u.url)
			r := h.run(fix...)
			if r.code != 0 || !strings.Contains(r.stdout, sample.Answer) || !strings.Contains(r.stderr, "caisson credential rm "+c.credential) ||
				!strings.Contains(r.stderr, "runs that name no model now use "+c.model+",") || !strings.Contains(r.stderr, " with "+c.model+": 5 calls") {
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

// TestFirstRunOpenRouter tests that the key of OpenRouter in the environment is stored, only where that is wanted, and that a run uses it. The
// first run calls no model, because it may spend nothing: OpenRouter's own server is called by no test.
func TestFirstRunOpenRouter(t *testing.T) {
	t.Parallel()
	h := &shell{modelHost: &modelHost{host: newHost(t)}}
	h.at = h.dir
	h.configure("idleExit: 10m")
	project := h.sample()
	u := newUpstream(t, caisson.ProviderOpenAI, sample.Script, false, nil)
	plain := h.env
	h.env = append(slices.Clone(plain), "OPENROUTER_API_KEY="+u.key)
	first := []string{"run", "caisson", "--max-cost", "0", "hello"}

	// Nothing is stored for another account, or if the daemon is named.
	h.ok("token", "create", "ci", "--account", "team-b")
	h.fails(2, "there is no model that caisson can use", append(slices.Clone(first), "--account", "team-b")...)
	h.fails(2, "there is no model that caisson can use", append(slices.Clone(first), "--host", "unix://"+h.socket())...)
	h.env = append(slices.Clone(h.env), "CI=true")
	h.fails(2, "there is no model that caisson can use", first...)
	if got := h.ok("credential", "ls", "-q"); got != "" {
		t.Errorf("stored are %q", got)
	}

	h.env = append(slices.Clone(plain), "OPENROUTER_API_KEY="+u.key)
	h.fails(8, "to remove it: caisson credential rm OPENROUTER_API_KEY", first...)
	if got := h.ok("credential", "ls", "-q"); got != "OPENROUTER_API_KEY" {
		t.Errorf("stored are %q", got)
	}
	if list := h.ok("model", "ls"); !strings.Contains(list, "openrouter") {
		t.Errorf("there are the models %s", list)
	}
	h.env = append(slices.Clone(plain), "OPENROUTER_API_KEY=sk-other")
	h.fails(8, "caisson credential rotate OPENROUTER_API_KEY --env OPENROUTER_API_KEY", first...)

	h.env = plain
	h.configure("idleExit: 10m", "providers: [{name: openrouter, kind: openai, baseURL: \""+u.url+"\", credential: OPENROUTER_API_KEY}]",
		"models: [{alias: auto, provider: openrouter, upstream: scripted, free: true}]")
	h.ok("daemon", "reload")
	h.ok("run", "caisson", "-C", project, "--sync", "yolo", sample.Prompt)
	h.waitFor(func() bool { return exec.Command("sh", "-c", "cd "+project+" && sh test.sh").Run() == nil })
	if n, _ := u.Billed(); n != 5 {
		t.Errorf("the model counted %d calls", n)
	}
}

// TestFirstRunKeyless tests that a local server with OpenAI's API needs only its URL, and that it is used until its file is removed.
func TestFirstRunKeyless(t *testing.T) {
	t.Parallel()
	h := &shell{modelHost: &modelHost{host: newHost(t)}}
	h.at = h.dir
	h.configure("idleExit: 10m")
	project := h.sample()
	first := newUpstream(t, caisson.ProviderOpenAI, sample.Script, false, lists("qwen3"))
	second := newUpstream(t, caisson.ProviderOpenAI, sample.Script, false, lists("llama4"))
	plain := h.env
	h.env = append(slices.Clone(plain), "OPENAI_BASE_URL="+first.url)
	h.ok("run", "caisson", "-C", project, "--sync", "yolo", sample.Prompt)
	h.waitFor(func() bool { return exec.Command("sh", "-c", "cd "+project+" && sh test.sh").Run() == nil })
	if got := h.ok("credential", "ls", "-q"); got != "" {
		t.Errorf("stored are %q", got)
	}
	if calls := h.ledger(); len(calls) != 5 || calls[0].Model != "qwen3" || calls[0].Cost != 0 {
		t.Errorf("the ledger has %+v", calls)
	}
	h.env = plain
	h.ok("run", "caisson", "hello")

	file := filepath.Join(h.data, "providers.yaml")
	h.env = append(slices.Clone(plain), "OPENAI_BASE_URL="+second.url)
	if r := h.host.run("run", "caisson", "hello"); r.code != 0 || !strings.Contains(r.stderr, "OPENAI_BASE_URL is not used: calls go to "+first.url+", as when the key was stored; see the file "+file) {
		t.Error(r)
	}
	if n, _ := second.Billed(); n != 0 {
		t.Errorf("the other server was called %d times", n)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	h.ok("run", "caisson", "--model", "llama4", "hello")
	if n, _ := second.Billed(); n != 1 {
		t.Errorf("the server was called %d times", n)
	}
}
