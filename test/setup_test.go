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
		{caisson.ProviderOpenAI, "5", "", "", "OPENAI_API_KEY\nSERVER_API_KEY", []string{"Which model", ""}, "scripted"},
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
			if c.number == "5" { // a vendor's key, which the server would refuse
				h.runWith(strings.NewReader("sk-vendors"), "credential", "set", "OPENAI_API_KEY", "-")
			}
			d := h.sit("setup")
			d.sees("Whose models")
			d.types("9\n")
			d.sees(`"9" is none of the numbers from 1 to 5; Enter means 1`)
			d.types(c.number + "\n")
			if c.number == "5" {
				d.sees("Its URL")
				d.types("foo\n")
				d.sees("The URL is not a URL")
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
			if strings.Contains(d.text(), "has changed since the daemon read it") {
				t.Errorf("it asks to apply what it applies itself: %q", d.text())
			}
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

// TestSetupStoredKey tests that a stored key goes on being used at the server that it was stored for, that the mode of the configuration
// file stays, and that a file which would become invalid is not changed.
func TestSetupStoredKey(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.configure("logLevel: info")
	if err := os.Chmod(h.configFile(), 0o600); err != nil {
		t.Fatal(err)
	}
	h.env = append(slices.Clone(h.env), "ANTHROPIC_BASE_URL=http://127.0.0.1:1")
	if r := h.runWith(strings.NewReader("sk-stored"), "credential", "set", "ANTHROPIC_API_KEY", "-"); r.code != 0 {
		t.Fatal(r)
	}
	answer := func() *desk {
		d := h.sit("setup", "--no-test")
		d.sees("Whose models")
		d.types("1\n")
		d.sees("Which model")
		d.types("\n")
		return d
	}
	answer().ends(0)
	text, err := os.ReadFile(h.configFile())
	if err != nil || !strings.Contains(string(text), "https://api.anthropic.com") || strings.Contains(string(text), "127.0.0.1") {
		t.Errorf("the configuration is %q, %v", text, err)
	}
	if info, err := os.Stat(h.configFile()); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	const flow = "{logLevel: info}\n"
	h.write("config.yaml", flow)
	refused := answer()
	refused.ends(2)
	refused.sees("would not be valid")
	if text, err := os.ReadFile(h.configFile()); err != nil || string(text) != flow {
		t.Errorf("the configuration is %q, %v", text, err)
	}
}

// TestSetupOtherFile tests that setup and reload say that the daemon has another file than theirs, and that a restart changes that.
func TestSetupOtherFile(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.configure("logLevel: info")
	h.ok("df")
	other := h.write("other.yaml", "logLevel: warn\n")
	h.env = append(slices.Clone(h.env), "ANTHROPIC_API_KEY=sk-x")
	d := h.sit("setup", "--no-test", "--config", other)
	d.sees("Whose models")
	d.types("1\n")
	d.sees("Which model")
	d.types("\n")
	d.ends(4)
	d.sees("reads " + h.configFile() + "; to have it read " + other + ": caisson daemon restart --config " + other)
	if r := h.run("daemon", "reload", "--config", other); r.code != 0 || !strings.Contains(r.stderr, "to have it read "+other) {
		t.Error(r)
	}
	h.ok("daemon", "restart", "--config", other)
	if text := h.ok("daemon", "status"); !strings.Contains(text, other) {
		t.Errorf("the status is %s", text)
	}
	if r := h.run("daemon", "reload", "--config", other); r.code != 0 || strings.Contains(r.stderr, "to have it read") {
		t.Error(r)
	}
}

// TestSetupNewFile tests that the configuration file that is named need not exist: setup writes it, and the daemon that it starts reads it.
func TestSetupNewFile(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	if err := os.Remove(h.configFile()); err != nil {
		t.Fatal(err)
	}
	h.fails(2, "to write it: caisson init "+h.configFile(), "sandbox", "ls")
	if r := h.runWith(strings.NewReader("sk-stored"), "--config", h.write("other.yaml", ""), "credential", "set", "ANTHROPIC_API_KEY", "-"); r.code != 0 {
		t.Fatal(r)
	}
	h.ok("daemon", "stop", "--config", h.dir+"/other.yaml")
	d := h.sit("setup", "--no-test")
	d.sees("Whose models")
	d.types("1\n")
	d.sees("Which model")
	d.types("2\n")
	d.ends(0)
	if r := h.run("model", "ls", "-q"); !strings.HasPrefix(r.stdout, "claude-opus-5\n") || r.stderr != "" {
		t.Error(r)
	}
	if st := shows[caisson.DaemonStatus](h, "daemon", "status"); st.Settings.File != h.configFile() || len(st.Settings.Changed) > 0 {
		t.Errorf("%+v", st.Settings)
	}
	// Where another file is in force, it says so.
	other := h.dir + "/third.yaml"
	d = h.sit("setup", "--no-test", "--config", other)
	d.sees("Whose models")
	d.types("1\n")
	d.sees("Which model")
	d.types("\n")
	d.sees("caisson daemon restart --config " + other)
	d.ends(4)
}
