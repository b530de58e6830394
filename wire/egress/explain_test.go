package egress

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-dev/caisson"
)

func TestExplain(t *testing.T) {
	p := compile(t, allow("*.npmjs.org", "443"), deny("*.example", "1-1000"), allow("0.0.0.0/0", "443"), allow("*"), deny("*"))
	for _, tt := range []struct {
		target, shown string
		allowed       bool
		rule          int
		steps         []string // of the rules
		suggest       *caisson.Rule
		at            int
	}{
		{
			target: "Registry.npmjs.org.", shown: "registry.npmjs.org:443", allowed: true, rule: 0,
			steps: []string{"rule 0 (allow *.npmjs.org, ports 443): allows it"},
		},
		{
			target: "a.example:22", shown: "a.example:22", rule: 1, at: 1,
			steps: []string{
				"rule 0 (allow *.npmjs.org, ports 443): does not match the name",
				"rule 1 (deny *.example, ports 1-1000): denies it",
			},
			suggest: &caisson.Rule{Action: caisson.Allow, Host: "a.example", Ports: []caisson.PortRange{{First: 22, Last: 22}}},
		},
		{
			target: "registry.npmjs.org:443/udp", shown: "registry.npmjs.org:443/udp", rule: 4, at: 4,
			steps: []string{
				"rule 0 (allow *.npmjs.org, ports 443): matches the name, but is not about udp",
				"rule 1 (deny *.example, ports 1-1000): does not match the name",
				"rule 2 (allow 0.0.0.0/0, ports 443): decides only on addresses, should the name have one in it",
				"rule 3 (allow *): matches the name, but is not about udp",
				"rule 4 (deny *): denies it",
			},
			suggest: &caisson.Rule{Action: caisson.Allow, Host: "registry.npmjs.org", Ports: []caisson.PortRange{{First: 443, Last: 443}}, Protocol: "udp"},
		},
		{
			target: "git.corp.internal:22/tcp", shown: "git.corp.internal:22", rule: 4, at: 4,
			steps: []string{
				"rule 0 (allow *.npmjs.org, ports 443): does not match the name",
				"rule 1 (deny *.example, ports 1-1000): does not match the name",
				"rule 2 (allow 0.0.0.0/0, ports 443): decides only on addresses, should the name have one in it",
				"rule 3 (allow *): means names of the public internet, which this is not; a rule has to name it",
				"rule 4 (deny *): denies it",
			},
			suggest: &caisson.Rule{Action: caisson.Allow, Host: "git.corp.internal", Ports: []caisson.PortRange{{First: 22, Last: 22}}},
		},
		{
			target: "10.1.2.3", shown: "10.1.2.3:443", rule: -1, at: 5,
			steps: []string{
				"rule 0 (allow *.npmjs.org, ports 443): matches names, and this is an address",
				"rule 1 (deny *.example, ports 1-1000): matches names, and this is an address",
				"rule 2 (allow 0.0.0.0/0, ports 443): does not mean this address, which is private; a rule has to name it, or a CIDR within 10.0.0.0/8",
				"rule 3 (allow *): matches names, and this is an address",
				"rule 4 (deny *): matches names, and this is an address",
			},
			suggest: &caisson.Rule{Action: caisson.Allow, Host: "10.1.2.3", Ports: []caisson.PortRange{{First: 443, Last: 443}}},
		},
		{
			target: "[::ffff:203.0.113.9]:443", shown: "203.0.113.9:443", allowed: true, rule: 2,
			steps: []string{
				"rule 0 (allow *.npmjs.org, ports 443): matches names, and this is an address",
				"rule 1 (deny *.example, ports 1-1000): matches names, and this is an address",
				"rule 2 (allow 0.0.0.0/0, ports 443): allows it",
			},
		},
		{
			target: "203.0.113.9:80", shown: "203.0.113.9:80", rule: -1, at: 5,
			steps: []string{
				"rule 0 (allow *.npmjs.org, ports 443): matches names, and this is an address",
				"rule 1 (deny *.example, ports 1-1000): matches names, and this is an address",
				"rule 2 (allow 0.0.0.0/0, ports 443): matches the address, but not the port",
				"rule 3 (allow *): matches names, and this is an address",
				"rule 4 (deny *): matches names, and this is an address",
			},
			suggest: &caisson.Rule{Action: caisson.Allow, Host: "203.0.113.9", Ports: []caisson.PortRange{{First: 80, Last: 80}}},
		},
		{target: "LLM.caisson.internal:80", shown: "llm.caisson.internal:80", rule: -1},
	} {
		e, err := p.Explain(tt.target)
		if err != nil {
			t.Errorf("%s: %v", tt.target, err)
			continue
		}
		steps := slices.DeleteFunc(e.Steps, func(s string) bool { return !strings.HasPrefix(s, "rule ") })
		if diff := cmp.Diff(tt.steps, steps); diff != "" {
			t.Errorf("%s: steps %s", tt.target, diff)
		}
		if diff := cmp.Diff(tt.suggest, e.Suggest); diff != "" || e.At != tt.at {
			t.Errorf("%s: at %d, %s", tt.target, e.At, diff)
		}
		if e.Target != tt.shown || e.Verdict.Allowed != tt.allowed || e.Verdict.Rule != tt.rule {
			t.Errorf("%s: %+v", tt.target, e)
		}
	}
}

// The verdict on a name does not depend on its addresses, which the explanation must point out.
func TestExplainTellsOfPrivateAddresses(t *testing.T) {
	p := compile(t, allow("*.internal"), allow("*"))
	for target, want := range map[string]string{
		"git.corp.internal": "a name like git.corp.internal usually leads to private addresses",
		"a.example":         "if a.example leads to an address that is private",
	} {
		e, err := p.Explain(target)
		if err != nil || !e.Verdict.Allowed || !strings.HasPrefix(e.Steps[len(e.Steps)-1], want) {
			t.Errorf("%s: %+v, %v", target, e, err)
		}
	}
}

func TestParseTarget(t *testing.T) {
	for in, want := range map[string]string{
		"a.example":              "a.example:443",
		"a.example:80":           "a.example:80",
		"A.example.:80/tcp":      "a.example:80",
		"a.example/udp":          "a.example:443/udp",
		"192.0.2.1":              "192.0.2.1:443",
		"192.0.2.1:53/udp":       "192.0.2.1:53/udp",
		"2001:DB8::1":            "[2001:db8::1]:443",
		"[2001:db8::1]":          "[2001:db8::1]:443",
		"[2001:db8::1]:53/udp":   "[2001:db8::1]:53/udp",
		"::ffff:192.0.2.1":       "192.0.2.1:443",
		"":                       "",
		":80":                    "",
		"a.example:":             "",
		"a.example:0":            "",
		"a.example:65536":        "",
		"a.example:-1":           "",
		"a.example:80-81":        "",
		"a.example:http":         "",
		"a.example:80:90":        "",
		"a.example/icmp":         "",
		"/udp":                   "",
		"https://a.example/":     "",
		"10.0.0.0/8":             "",
		"192.0.2.1/32":           "",
		"*":                      "",
		"*.example":              "",
		"[a.example]:80":         "",
		"[192.0.2.1]:80":         "",
		"[2001:db8::1":           "",
		"[2001:db8::1]80":        "",
		"[2001:db8::1]:":         "",
		"[fe80::1%eth0]:80":      "",
		"fe80::1%eth0":           "",
		"bücher.example":         "",
		strings.Repeat("a", 600): "",
	} {
		got, err := parseTarget(in)
		switch {
		case want == "" && (caisson.KindOf(err) != caisson.Invalid || caisson.FieldOf(err) != "target"):
			t.Errorf("%q: %v, %v; want it Invalid", in, got, err)
		case want != "" && (err != nil || got.String() != want):
			t.Errorf("%q: %v, %v; want %s", in, got, err, want)
		}
	}
}

func TestParseRule(t *testing.T) {
	for in, want := range map[string]caisson.Rule{
		"npm":                   allow("preset:npm"),
		"github-read":           allow("preset:github-read"),
		"debian:80":             allow("preset:debian", "80"),
		"a.example":             allow("a.example"),
		"A.Example.:443":        allow("a.example", "443"),
		"*.a.example:80,443":    allow("*.a.example", "80", "443"),
		"a.example:8000-8010":   allow("a.example", "8000-8010"),
		"a.example:53/udp":      allow("a.example", "53", "udp"),
		"a.example/tcp":         allow("a.example", "tcp"),
		"*":                     allow("*"),
		"*:443":                 allow("*", "443"),
		"10.0.0.0/8":            allow("10.0.0.0/8"),
		"10.0.0.0/8:443/udp":    allow("10.0.0.0/8", "443", "udp"),
		"192.0.2.1:22":          allow("192.0.2.1", "22"),
		"2001:db8::1":           allow("2001:db8::1"),
		"2001:db8::/32":         allow("2001:db8::/32"),
		"[2001:db8::/32]:53":    allow("2001:db8::/32", "53"),
		"[2001:db8::1]:443/udp": allow("2001:db8::1", "443", "udp"),
	} {
		got, err := ParseRule(caisson.Allow, in)
		if err != nil {
			t.Errorf("%q: %v", in, err)
		} else if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q: %s", in, diff)
		}
	}
	for in, says := range map[string]string{
		"":                   "HOST:PORT",
		"a.example:":         "HOST:PORT",
		"a.example:0":        "not a port",
		"a.example:80,":      "not a port",
		"a.example/icmp":     "neither",
		"10.0.0.1/8":         "write 10.0.0.0/8",
		"caisson.internal":   "Caisson's own",
		"http://a.example":   "is a URL; write the host and its port",
		"[a.example]:80":     "[ADDRESS]:PORT",
		"[2001:db8::/32]:0":  "not a port",
		"2001:db8::/32:443x": "neither",
	} {
		_, err := ParseRule(caisson.Deny, in)
		if caisson.KindOf(err) != caisson.Invalid || caisson.FieldOf(err) != "deny" || !strings.Contains(caisson.MessageOf(err), says) {
			t.Errorf("%q: %v, want %q", in, err, says)
		}
	}
}

// FuzzExplain checks that every target is either parsed or refused, and that a suggested rule allows its target.
func FuzzExplain(f *testing.F) {
	for i, s := range []string{
		"a.example", "a.example:80/udp", "[2001:db8::1]:53", "::1", "10.0.0.1:22", "[::ffff:10.0.0.1]:1", "git.corp.internal", "localhost:1",
		"llm.caisson.internal", "64:ff9b::a00:1", "x]:y[", "::::", "1:2/udp/udp", "%", "a:b:c",
	} {
		f.Add([]byte{byte(i), byte(i * 3), 1, 2, byte(i * 5), 1, 0, 0}, s)
	}
	for _, e := range evasions {
		f.Add([]byte{0, 0, 0, 0}, e.host)
	}
	f.Fuzz(func(t *testing.T, policy []byte, target string) {
		rules := fuzzPolicy(policy)
		p := compile(t, rules...)
		e, err := p.Explain(target)
		if err != nil {
			if caisson.KindOf(err) != caisson.Invalid || e != nil {
				t.Fatalf("%v, %v", e, err)
			}
			return
		}
		again, err := p.Explain(e.Target)
		if err != nil {
			t.Fatalf("%q became %q: %v", target, e.Target, err)
		}
		if diff := cmp.Diff(e, again); diff != "" {
			t.Fatalf("%q became %q: %s", target, e.Target, diff)
		}
		if strings.Contains(e.Target, "caisson.internal") {
			return
		}
		if e.Verdict.Allowed != (e.Suggest == nil) {
			t.Fatalf("%+v", e)
		}
		if e.Suggest == nil {
			return
		}
		fixed, err := compile(t, slices.Insert(rules, e.At, *e.Suggest)...).Explain(target)
		if err != nil || !fixed.Verdict.Allowed || fixed.Verdict.Rule != e.At {
			t.Fatalf("%+v does not allow %s: %+v, %v", e.Suggest, target, fixed, err)
		}
	})
}

func FuzzParseRule(f *testing.F) {
	for _, s := range []string{"npm", "a.example:80,443/udp", "[fd00::/8]:53", "10.0.0.0/8:1-2", "[", "]:", "/udp", "a:,"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseRule(caisson.Allow, s)
		if err != nil {
			if caisson.KindOf(err) != caisson.Invalid || caisson.FieldOf(err) != "allow" {
				t.Fatal(err)
			}
			return
		}
		if _, err := Compile(caisson.Policy{Rules: []caisson.Rule{r}}); err != nil {
			t.Fatalf("%q: %+v: %v", s, r, err)
		}
	})
}

func TestSimilarPreset(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]string{
		"nmp": "npm", "npn": "npm", "np": "npm", "npmm": "npm", "pipy": "pypi", "debain": "debian", "nas": "", "db": "", "g": "", "go": "", "example": "", "": "",
		"npmjs": "npm", "golang": "go", "github": "github-read", "registry": "", "com": "",
	} {
		if got := similarPreset(s); got != want {
			t.Errorf("%q: %q, not %q", s, got, want)
		}
	}
	for spec, ok := range map[string]bool{"nmp": false, "nmp:443": true, "nas": true, "npm": true} {
		if _, err := ParseRule(caisson.Allow, spec); (err == nil) != ok {
			t.Errorf("%s: %v", spec, err)
		}
	}
}
