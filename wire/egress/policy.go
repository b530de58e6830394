// Package egress decides which destinations sandboxes may reach. It compiles a [caisson.Policy] once and then decides for each
// name, address and connection whether it is allowed, by which rule, and why; it explains its decisions and suggests the smallest
// rule that would change them. It performs no I/O: it neither resolves nor dials.
//
// # Names
//
// A name rule is exact ("example.com"), a wildcard for everything below a name ("*.example.com", which excludes example.com), or
// "*" for every name. In an allow rule "*" includes only names of the public internet: a name of one label, and one whose last
// label no public registry delegates (localhost, local, internal, arpa, lan, corp, home and so on, see localName), needs an exact
// rule ("git.corp.internal") or a wildcard ("*.corp.internal"). In a deny rule "*" includes every name. Policies do not apply to
// caisson.internal and the names below it, which Caisson serves.
//
// An allow rule for a CIDR does not make any name resolvable. A name with private addresses needs both a rule for the name and
// one for the addresses.
//
// # Addresses
//
// Addresses outside the public internet are listed in special.go. An allow rule includes one of them only if the rule's host is
// an address or CIDR within the narrowest range there that contains it: 10.0.0.0/8 and 10.1.2.3 include private addresses,
// 10.0.0.0/7 and 0.0.0.0/0 do not, and 169.254.0.0/16 includes link-local addresses except the metadata services among them. For
// an IPv6 address that embeds an IPv4 address (6to4, NAT64, Teredo) the range consists of the addresses that embed one of the
// IPv4 address's range. Deny rules apply to all addresses that they match.
//
// # Presets
//
// A preset in an allow rule has default ports, which the rule's ports replace; in a deny rule without ports it applies to all
// ports.
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

// Limits of a policy, which bound the cost of compiling and evaluating one from any author.
const (
	maxRules = 500
	maxPorts = 64  // port ranges in one rule
	maxNote  = 200 // bytes of the note of a rule
)

// A Policy is a compiled [caisson.Policy]. It is immutable and safe for concurrent use.
type Policy struct {
	rules  []rule         // in the order of the policy
	source caisson.Policy // what the rules were compiled from, with hosts in normal form

	// exact, suffixes and any hold the rules about names. exact has those about one name, by that name.
	exact    map[string]set
	suffixes map[string]set // rules with a wildcard, by the suffix after the "*."
	any      set            // rules for every name ("*")

	allowRules set // rules that allow
	prefixes   set // rules with an address or CIDR
}

var _ caisson.Decider = (*Policy)(nil)

// rule is one compiled rule.
type rule struct {
	allow    bool         // the rule allows; false: it denies
	prefix   netip.Prefix // the zero Prefix for a rule about names
	ports    portSet
	protocol [protocols]bool // whether the rule applies to the protocol with that index
	text     string          // the rule as text, for Explanation.Steps
	reason   string          // Verdict.Reason if the rule decides
}

// Compile validates and compiles a policy. Errors are Invalid and name the field.
func Compile(p caisson.Policy) (*Policy, error) {
	if len(p.Rules) > maxRules {
		return nil, caisson.Invalidf("rules", "there are %d, the maximum is %d; use wildcards, CIDRs or presets", len(p.Rules), maxRules)
	}
	out := &Policy{
		rules: make([]rule, 0, len(p.Rules)), source: caisson.Policy{Rules: make([]caisson.Rule, 0, len(p.Rules))},
		exact: map[string]set{}, suffixes: map[string]set{},
	}
	for i, r := range p.Rules {
		if err := out.add(i, r); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Source returns the policy from which p was compiled, with hosts in normal form. The caller may modify the result.
func (p *Policy) Source() caisson.Policy {
	out := caisson.Policy{Rules: slices.Clone(p.source.Rules)}
	for i := range out.Rules {
		out.Rules[i].Ports = slices.Clone(out.Rules[i].Ports)
	}
	return out
}

// add compiles src, the rule at position i of the policy, and adds it to p.
func (p *Policy) add(i int, src caisson.Rule) error {
	field := func(name string) string { return fmt.Sprintf("rules[%d].%s", i, name) }
	hosts, ports, err := ruleHosts(&src, field)
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
		ports = src.Ports // a deny rule without ports applies to all ports, also with a preset
	}
	if r.ports, err = newPortSet(ports, field("ports")); err != nil {
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
		p.allowRules.add(i)
	}
	r.text, r.reason = describe(i, src)
	p.rules = append(p.rules, r)
	src.Ports = slices.Clone(src.Ports)
	p.source.Rules = append(p.source.Rules, src)
	return nil
}

// index records that rule i applies to h.
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
	case h.wildcard:
		put(p.suffixes, h.name)
	default:
		put(p.exact, h.name)
	}
}

// ruleHosts returns the hosts of r, and the ports of its preset if it has one. It converts r.Host to its normal form.
func ruleHosts(r *caisson.Rule, field func(string) string) (hosts []host, ports []caisson.PortRange, err error) {
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

// checkNote returns Invalid unless s is one line of printable text, because notes appear in logs, answers and terminals.
func checkNote(s, field string) error {
	if len(s) > maxNote {
		return caisson.Invalidf(field, "is longer than %d bytes", maxNote)
	}
	if !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return caisson.Invalidf(field, "must be one line of printable text")
	}
	return nil
}

// describe returns rule i as text for Explanation.Steps, such as "rule 0 (allow *.npmjs.org, ports 443)", and the reason of its
// verdicts, such as "rule 0 allows *.npmjs.org".
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
