package egress

import (
	"slices"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
)

func allow(hostPart string, ports ...string) caisson.Rule {
	return newRule(caisson.Allow, hostPart, ports)
}
func deny(hostPart string, ports ...string) caisson.Rule {
	return newRule(caisson.Deny, hostPart, ports)
}

// newRule returns a rule for a host, or for a preset written as "preset:npm". "udp" and "tcp" among ports select the protocol.
func newRule(a caisson.Action, hostPart string, ports []string) caisson.Rule {
	r := caisson.Rule{Action: a, Host: hostPart}
	if preset, ok := strings.CutPrefix(hostPart, "preset:"); ok {
		r.Host, r.Preset = "", preset
	}
	for _, s := range ports {
		if s == "udp" || s == "tcp" {
			r.Protocol = s
			continue
		}
		p, err := caisson.ParsePortRange(s)
		if err != nil {
			panic(err)
		}
		r.Ports = append(r.Ports, p)
	}
	return r
}

func compile(t testing.TB, rules ...caisson.Rule) *Policy {
	t.Helper()
	p, err := Compile(caisson.Policy{Rules: rules})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestCompileNormalises(t *testing.T) {
	for in, want := range map[string]string{
		"Example.COM":                   "example.com",
		"example.com.":                  "example.com",
		"*.Example.com.":                "*.example.com",
		"*":                             "*",
		"*.com":                         "*.com",
		"xn--bcher-kva.example":         "xn--bcher-kva.example",
		"my_bucket.s3.example.com":      "my_bucket.s3.example.com",
		"localhost":                     "localhost",
		"*.internal":                    "*.internal",
		"notcaisson.internal":           "notcaisson.internal",
		"caisson.internal.com":          "caisson.internal.com",
		"1.example":                     "1.example",
		"192.0.2.1":                     "192.0.2.1",
		"192.0.2.1/32":                  "192.0.2.1",
		"10.0.0.0/8":                    "10.0.0.0/8",
		"0.0.0.0/0":                     "0.0.0.0/0",
		"::/0":                          "::/0",
		"2001:DB8::1":                   "2001:db8::1",
		"2001:db8:0:0::/32":             "2001:db8::/32",
		"::ffff:192.0.2.1":              "192.0.2.1",
		"::ffff:c000:201":               "192.0.2.1",
		"::ffff:10.0.0.0/104":           "10.0.0.0/8",
		"::ffff:0:0/96":                 "0.0.0.0/0",
		strings.Repeat("a", 63):         strings.Repeat("a", 63),
		strings.Repeat("a.", 126) + "a": strings.Repeat("a.", 126) + "a",
	} {
		p, err := Compile(caisson.Policy{Rules: []caisson.Rule{allow(in)}})
		if err != nil {
			t.Errorf("%q: %v", in, err)
		} else if got := p.Source().Rules[0].Host; got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
}

func TestCompileRefuses(t *testing.T) {
	many := slices.Repeat([]caisson.PortRange{{First: 1, Last: 1}}, maxPorts+1)
	for _, tt := range []struct {
		rule  caisson.Rule
		field string
		says  string
	}{
		{caisson.Rule{Host: "a.example"}, "action", "neither allow nor deny"},
		{caisson.Rule{Action: "ALLOW", Host: "a.example"}, "action", "neither"},
		{caisson.Rule{Action: caisson.Allow}, "host", "is missing"},
		{caisson.Rule{Action: caisson.Allow, Host: "a.example", Preset: "npm"}, "preset", "not both"},
		{allow("preset:nmp"), "preset", "known are cargo, debian, github-read, go, npm, pypi"},
		{allow("preset:NPM"), "preset", "there is no preset"},
		{caisson.Rule{Action: caisson.Allow, Host: "a.example", Protocol: "icmp"}, "protocol", "neither tcp nor udp"},
		{caisson.Rule{Action: caisson.Allow, Host: "a.example", Protocol: "TCP"}, "protocol", "neither"},
		{caisson.Rule{Action: caisson.Allow, Host: "a.example", Ports: []caisson.PortRange{{}}}, "ports", "not a port"},
		{caisson.Rule{Action: caisson.Allow, Host: "a.example", Ports: []caisson.PortRange{{First: 9, Last: 8}}}, "ports", "not a port"},
		{caisson.Rule{Action: caisson.Allow, Host: "a.example", Ports: many}, "ports", "the maximum is 64"},
		{caisson.Rule{Action: caisson.Allow, Host: "a.example", Note: "a\nb"}, "note", "one line"},
		{caisson.Rule{Action: caisson.Allow, Host: "a.example", Note: "\x1b[31m"}, "note", "one line"},
		{caisson.Rule{Action: caisson.Allow, Host: "a.example", Note: "a\u202eb"}, "note", "one line"},
		{caisson.Rule{Action: caisson.Allow, Host: "a.example", Note: "\xff"}, "note", "one line"},
		{caisson.Rule{Action: caisson.Allow, Host: "a.example", Note: strings.Repeat("x", maxNote+1)}, "note", "longer"},
		{allow("10.0.0.1/8"), "host", "write 10.0.0.0/8 or 10.0.0.1"},
		{allow("2001:db8::1/32"), "host", "write 2001:db8::/32 or 2001:db8::1"},
		{allow("::ffff:10.0.0.1/104"), "host", "write 10.0.0.0/8"},
		{allow("::ffff:0:0/95"), "host", "mixes IPv4 and IPv6"},
		{allow("fe80::1%eth0"), "host", "interface"},
		{allow("fe80::%eth0/64"), "host", "interface"},
		{allow("example.com:443"), "host", "ports go into ports"},
		{allow("https://example.com"), "host", "ports go into ports"},
		{allow("[::1]"), "host", "neither"},
		{allow("10.0.0.0/33"), "host", "neither"},
		{allow("10.0.0.0/08"), "host", "neither"},
		{allow("bücher.example"), "host", "xn--"},
		{allow("а.example"), "host", "xn--"}, // Cyrillic
		{allow("exa mple.com"), "host", "not a host name"},
		{allow("example..com"), "host", "not a host name"},
		{allow(".example.com"), "host", "not a host name"},
		{allow("example.com.."), "host", "not a host name"},
		{allow("."), "host", "not a host name"},
		{allow("*."), "host", "not a host name"},
		{allow("-a.example"), "host", "not a host name"},
		{allow("a-.example"), "host", "not a host name"},
		{allow("a.example-"), "host", "not a host name"},
		{allow("a.example\x00"), "host", "not a host name"},
		{allow("a@b.example"), "host", "not a host name"},
		{allow(strings.Repeat("a", 64)), "host", "not a host name"},
		{allow(strings.Repeat("a.", 127) + "a"), "host", "not a host name"},
		{allow("**"), "host", "not in a *. prefix"},
		{allow("*.*.example.com"), "host", "not in a *. prefix"},
		{allow("a*.example.com"), "host", "not in a *. prefix"},
		{allow("*example.com"), "host", "not in a *. prefix"},
		{allow("example.*"), "host", "not in a *. prefix"},
		{allow("caisson.internal"), "host", "Caisson's own"},
		{allow("LLM.caisson.internal."), "host", "Caisson's own"},
		{deny("*.caisson.internal"), "host", "Caisson's own"},
		{deny("*.x.caisson.internal"), "host", "Caisson's own"},
		{allow("127.1"), "host", "how an address is written"},
		{allow("010.0.0.1"), "host", "how an address is written"},
		{allow("0x7f000001"), "host", "how an address is written"},
		{allow("*.1"), "host", "how an address is written"},
		{allow("1.2.3.4."), "host", "how an address is written"},
	} {
		_, err := Compile(caisson.Policy{Rules: []caisson.Rule{deny("ok.example"), tt.rule}})
		if caisson.KindOf(err) != caisson.Invalid || caisson.FieldOf(err) != "rules[1]."+tt.field || !strings.Contains(caisson.MessageOf(err), tt.says) {
			t.Errorf("%+v: %v, want an error about %s that says %q", tt.rule, err, tt.field, tt.says)
		}
		if err != nil && strings.ContainsAny(caisson.MessageOf(err), "\x00\x1b\n") {
			t.Errorf("the message %q carries what was written", err)
		}
	}
}

func TestCompileBoundsRules(t *testing.T) {
	rules := slices.Repeat([]caisson.Rule{deny("a.example")}, maxRules)
	p := compile(t, append(rules[:maxRules-1:maxRules-1], allow("last.example"))...)
	if v, _ := p.DecideName("last.example"); !v.Allowed || v.Rule != maxRules-1 {
		t.Errorf("%+v", v)
	}
	_, err := Compile(caisson.Policy{Rules: append(rules, rules[0])})
	if caisson.FieldOf(err) != "rules" {
		t.Error(err)
	}
}

// A compiled policy must not change when its source is modified.
func TestPolicyIsImmutable(t *testing.T) {
	src := caisson.Policy{Rules: []caisson.Rule{allow("a.example", "443")}}
	p, err := Compile(src)
	if err != nil {
		t.Fatal(err)
	}
	src.Rules[0].Ports[0] = caisson.PortRange{First: 1, Last: 65535}
	p.Source().Rules[0].Ports[0] = caisson.PortRange{First: 1, Last: 65535}
	if v := p.DecideFlow(flow("tcp", "192.0.2.1:80", "a.example")); v.Allowed {
		t.Error("port 80 is allowed now")
	}
	if got := p.Source().Rules[0].Ports[0].String(); got != "443" {
		t.Errorf("ports are %s now", got)
	}
}

func TestPresets(t *testing.T) {
	list := Presets()
	if !slices.IsSortedFunc(list, func(a, b caisson.Preset) int { return strings.Compare(a.Name, b.Name) }) {
		t.Error("presets are not sorted by name")
	}
	for _, preset := range list {
		if preset.Description == "" || len(preset.Hosts) == 0 || len(preset.Ports) == 0 {
			t.Errorf("%+v is not complete", preset)
		}
		p := compile(t, allow("preset:"+preset.Name))
		for _, name := range preset.Hosts {
			for _, ports := range preset.Ports {
				if v := p.DecideFlow(caisson.Flow{Protocol: "tcp", Dst: at("192.0.2.1", ports.First), Names: []string{name}}); !v.Allowed || v.Name != name {
					t.Errorf("%s: %s: %+v", preset.Name, name, v)
				}
			}
			if v := p.DecideFlow(flow("tcp", "192.0.2.1:22", name)); v.Allowed {
				t.Errorf("%s: %s: port 22 is allowed", preset.Name, name)
			}
		}
	}
	list[0].Hosts[0] = "evil.example"
	if Presets()[0].Hosts[0] == "evil.example" {
		t.Error("the table can be changed")
	}
}

func FuzzCompile(f *testing.F) {
	for _, s := range []string{"*", "*.a.example", "a.example.", "10.0.0.0/8", "::ffff:10.0.0.0/104", "fe80::1%x", "1.2.3.4:5", "0x1", "*.", "a..b"} {
		f.Add(s, "note", uint16(1), uint16(443))
	}
	f.Fuzz(func(t *testing.T, hostPart, note string, first, last uint16) {
		in := caisson.Policy{Rules: []caisson.Rule{{
			Action: caisson.Allow, Host: hostPart, Note: note, Ports: []caisson.PortRange{{First: first, Last: last}},
		}}}
		p, err := Compile(in)
		if err != nil {
			if caisson.KindOf(err) != caisson.Invalid || !strings.HasPrefix(caisson.FieldOf(err), "rules[0].") {
				t.Fatalf("%v", err)
			}
			return
		}
		again, err := Compile(p.Source())
		if err != nil {
			t.Fatalf("the normal form %+v is refused: %v", p.Source(), err)
		}
		if a, b := p.Source().Rules[0].Host, again.Source().Rules[0].Host; a != b || strings.ToLower(a) != a {
			t.Fatalf("%q is not normal: %q", a, b)
		}
		if rule := again.rules[0]; !strings.Contains(rule.reason, again.Source().Rules[0].Host) {
			t.Fatalf("reason %q", rule.reason)
		}
	})
}
