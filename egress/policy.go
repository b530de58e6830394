// Package egress decides what sandboxes may reach. It compiles a [caisson.Policy] once and then answers, for each name,
// address and connection, whether it is allowed, by which rule, and why; it explains its answers and proposes the smallest
// rule that would change them. It does no I/O: it resolves nothing and dials nothing.
//
// # Names
//
// A name rule is either exact ("example.com"), a wildcard for everything below a name ("*.example.com", not example.com
// itself), or "*" for every name. "*" in an allow rule means the names of the public internet only: a name of one label,
// and one whose last label no public registry delegates (localhost, local, internal, arpa, lan, corp, home and so on, see
// localName), needs a rule that says so, exactly ("git.corp.internal") or with a wildcard ("*.corp.internal"). In a deny
// rule "*" means every name. Names at and below caisson.internal are Caisson's own and no policy decides on them.
//
// An allow rule for a CIDR does not make any name resolvable. To reach a name with private addresses takes both a rule for
// the name and one for the addresses.
//
// # Addresses
//
// Addresses without a place on the public internet are listed in special.go. An allow rule means one of them only if the
// rule's own host is an address or CIDR within the narrowest range there that holds it: 10.0.0.0/8 and 10.1.2.3 mean
// private addresses, 10.0.0.0/7 and 0.0.0.0/0 do not, and 169.254.0.0/16 means link-local addresses without the metadata
// services among them. An address that embeds an IPv4 address (6to4, NAT64, Teredo) is in the range that this one is in,
// as seen through the embedding. Deny rules mean what they say.
//
// # Presets
//
// A preset in an allow rule brings its own ports unless the rule has some; in a deny rule without ports it means all.
package egress

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/caisson-dev/caisson"
)

// Limits of a policy, so that compiling and asking one stays cheap whoever wrote it.
const (
	maxRules = 500
	maxPorts = 64  // ranges of one rule
	maxNote  = 200 // bytes
)

// A Policy is a compiled [caisson.Policy]. It is immutable, and so safe for concurrent use.
type Policy struct {
	rules  []rule
	source caisson.Policy

	// Which rules match a name, by the forms a rule can have.
	exact map[string]set
	below map[string]set // by what follows the "*."
	any   set            // "*"

	allowing set // allow rules
	prefixes set // rules with an address or CIDR
}

var _ caisson.Decider = (*Policy)(nil)

// rule is one compiled rule.
type rule struct {
	allow    bool
	prefix   netip.Prefix // zero for a rule about names
	ports    portSet
	protocol [protocols]bool
	text     string // as it is shown in steps
	reason   string // Verdict.Reason where it decides
}

// Compile checks a policy and makes it ready to be asked. Its errors are Invalid with the field at fault.
func Compile(p caisson.Policy) (*Policy, error) {
	if len(p.Rules) > maxRules {
		return nil, caisson.Invalidf("rules", "there are %d, the most is %d; use wildcards, CIDRs or presets", len(p.Rules), maxRules)
	}
	out := &Policy{
		rules: make([]rule, 0, len(p.Rules)), source: caisson.Policy{Rules: make([]caisson.Rule, 0, len(p.Rules))},
		exact: map[string]set{}, below: map[string]set{},
	}
	for i, r := range p.Rules {
		if err := out.add(i, r); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Source returns the policy that p was compiled from, with hosts in their normal form. The caller may change what it gets.
func (p *Policy) Source() caisson.Policy {
	out := caisson.Policy{Rules: slices.Clone(p.source.Rules)}
	for i := range out.Rules {
		out.Rules[i].Ports = slices.Clone(out.Rules[i].Ports)
	}
	return out
}

func (p *Policy) add(i int, src caisson.Rule) error {
	field := func(name string) string { return fmt.Sprintf("rules[%d].%s", i, name) }
	hosts, ports, err := hostsOf(&src, field)
	if err != nil {
		return err
	}
	r := rule{}
	switch src.Action {
	case caisson.Allow, caisson.Deny:
		r.allow = src.Action == caisson.Allow
	default:
		return caisson.Invalidf(field("action"), "%.20q is neither allow nor deny", src.Action)
	}
	if len(src.Ports) > 0 || !r.allow {
		ports = src.Ports // a deny without ports is for all of them, a preset's too
	}
	if r.ports, err = portsOf(ports, field("ports")); err != nil {
		return err
	}
	switch src.Protocol {
	case "":
		r.protocol = [protocols]bool{tcp: true, udp: !r.allow}
	case "tcp":
		r.protocol[tcp] = true
	case "udp":
		r.protocol[udp] = true
	default:
		return caisson.Invalidf(field("protocol"), "%.20q is neither tcp nor udp", src.Protocol)
	}
	if err := checkNote(src.Note, field("note")); err != nil {
		return err
	}
	for _, h := range hosts {
		r.prefix = h.prefix
		p.index(i, h)
	}
	if r.allow {
		p.allowing.add(i)
	}
	r.text, r.reason = describe(i, src)
	p.rules = append(p.rules, r)
	src.Ports = slices.Clone(src.Ports)
	p.source.Rules = append(p.source.Rules, src)
	return nil
}

// index notes that rule i is about h.
func (p *Policy) index(i int, h host) {
	put := func(m map[string]set, key string) {
		s := m[key]
		s.add(i)
		m[key] = s
	}
	switch {
	case h.prefix.IsValid():
		p.prefixes.add(i)
	case h.any:
		p.any.add(i)
	case h.below:
		put(p.below, h.name)
	default:
		put(p.exact, h.name)
	}
}

// hostsOf returns what r is about, and the ports of its preset if it has one. It brings r.Host into its normal form.
func hostsOf(r *caisson.Rule, field func(string) string) (hosts []host, ports []caisson.PortRange, err error) {
	switch {
	case r.Host != "" && r.Preset != "":
		return nil, nil, caisson.Invalidf(field("preset"), "a rule has a host or a preset, not both; make two rules")
	case r.Preset != "":
		preset, ok := findPreset(r.Preset)
		if !ok {
			return nil, nil, caisson.Invalidf(field("preset"), "there is no preset %.40q; known are %s", r.Preset, strings.Join(presetNames(), ", "))
		}
		for _, s := range preset.Hosts {
			h, err := parseHost(s, field("preset"))
			if err != nil {
				return nil, nil, err
			}
			hosts = append(hosts, h)
		}
		return hosts, preset.Ports, nil
	case r.Host == "":
		return nil, nil, caisson.Invalidf(field("host"), "is missing; write a name, *.name, an address or a CIDR, or name a preset")
	}
	h, err := parseHost(r.Host, field("host"))
	if err != nil {
		return nil, nil, err
	}
	r.Host = h.String()
	return []host{h}, nil, nil
}

// checkNote keeps out of logs, answers and terminals what is not a line of text.
func checkNote(s, field string) error {
	if len(s) > maxNote {
		return caisson.Invalidf(field, "is longer than %d bytes", maxNote)
	}
	if !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return caisson.Invalidf(field, "must be one line of printable text")
	}
	return nil
}

// describe returns how rule i is shown in steps, "rule 0 (allow *.npmjs.org, ports 443)", and as the reason of a verdict,
// "rule 0 allows *.npmjs.org".
func describe(i int, r caisson.Rule) (text, reason string) {
	what := r.Host
	if r.Preset != "" {
		what = "preset " + r.Preset
	}
	verb := "denies"
	if r.Action == caisson.Allow {
		verb = "allows"
	}
	var limits string
	if len(r.Ports) > 0 {
		list := make([]string, len(r.Ports))
		for i, p := range r.Ports {
			list[i] = p.String()
		}
		limits += ", ports " + strings.Join(list, " ")
	}
	if r.Protocol != "" {
		limits += ", " + r.Protocol
	}
	text = fmt.Sprintf("rule %d (%s %s%s)", i, r.Action, what, limits)
	reason = fmt.Sprintf("rule %d %s %s", i, verb, what)
	if r.Note != "" {
		reason += ": " + r.Note
	}
	return text, reason
}
