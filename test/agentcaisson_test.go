package test_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/agent/inside/sample"
)

// The built-in agent mends the sample repository, which stays as it is: over the unix socket, and over TCP with a token, where the
// directory is uploaded.
func TestAgentCaisson(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, caisson.ProviderLiteLLM, sample.Script, false, nil)
	h := newModelHost(t, []*upstream{u}, agentModel("m", "litellm"))
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
	// What was uploaded is of no use any more.
	h.waitFor(func() bool {
		list, err := filepath.Glob(filepath.Join(h.data, "runs", "*", "*.tar"))
		return err == nil && len(list) == 0
	})
	// Nobody else's run is to be seen with a token, nor a wider limit to be had.
	if r := remote.run("run", "--timeout", "10h", "caisson", sample.Prompt); r.code == 0 || !strings.Contains(r.stderr, "limits.time") {
		t.Errorf("a wider limit over a token: %v", r)
	}
	if list := strings.Fields(remote.ok("runs", "ls", "-q")); len(list) != 1 {
		t.Errorf("over the token there are %q", list)
	}
	h.noSandboxes()
}
