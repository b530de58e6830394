package test_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/coder/sample"
)

// TestSetup answers the questions of "caisson setup" at a terminal, for a vendor with a key and for a server of this machine without.
func TestSetup(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind, number, variable, base, credential string
		answers                                  []string // to the question before them, in turn
		model                                    string
	}{
		{caisson.ProviderAnthropic, "", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", []string{"Which model", "2"}, "claude-opus-5"},
		{caisson.ProviderOpenAI, "5", "", "", "OPENAI_API_KEY", []string{"Which model", ""}, "scripted"},
	} {
		t.Run(c.kind, func(t *testing.T) {
			t.Parallel()
			h := &modelHost{host: newHost(t)}
			h.configure("logLevel: info")
			u := newUpstream(t, c.kind, sample.Script, false, nil)
			if c.base != "" {
				h.env = append(slices.Clone(h.env), c.base+"="+u.url)
			}
			h.fails(2, "not a terminal", "setup")
			d := h.sit("setup")
			d.sees("Whose models")
			d.types(c.number + "\n")
			if c.number == "5" {
				d.sees("Its URL")
				d.types(u.url + "\n")
			}
			d.sees("Its key, which is not shown")
			d.types(u.key + "\n")
			for i := 0; i < len(c.answers); i += 2 {
				d.sees(c.answers[i])
				d.types(c.answers[i+1] + "\n")
			}
			d.ends(0)
			d.sees("calling " + c.model + " once")
			if strings.Contains(d.text(), u.key) || strings.Contains(h.daemonLog(), u.key) {
				t.Error("the key is shown")
			}
			if calls := h.ledger(); len(calls) != 1 || calls[0].Model != c.model {
				t.Errorf("the ledger has %+v", calls)
			}
			text, err := os.ReadFile(h.configFile())
			if err != nil || !strings.HasPrefix(string(text), "logLevel: info\n") || strings.Contains(string(text), u.key) {
				t.Errorf("the configuration is %q, %v", text, err)
			}
			if got := h.ok("credential", "ls", "-q"); got != c.credential {
				t.Errorf("stored are %q", got)
			}
			// The choice is in force, and a second time nothing is changed.
			if r := h.run("run", "caisson", "hello"); r.code != 0 {
				t.Error(r)
			}
			if calls := h.ledger(); len(calls) != 2 || calls[1].Model != c.model {
				t.Errorf("the ledger has %+v", calls)
			}
			d = h.sit("setup")
			d.sees("has providers already")
			d.ends(4)
		})
	}
}
