package egress

import (
	"net/netip"
	"strings"

	"github.com/caisson-dev/caisson"
)

// Indexes of rule.protocol.
const (
	tcp = iota
	udp
	protocols // the number of protocols, not a protocol
)

// Reasons of verdicts without a rule.
const (
	noRule  = "no rule allows it"
	noName  = "it is not a host name"
	noFlow  = "it is not a tcp or udp destination"
	ownRule = "names at and below " + ownDomain + " are Caisson's own; policies do not apply to them"
)

// DecideName implements [caisson.Decider]. It ignores rules about addresses: a name is resolved only if a rule names it, and
// [Policy.DecideAddress] decides whether its addresses may be reached.
func (p *Policy) DecideName(name string) (v caisson.Verdict, wildcard string) {
	switch {
	case !validName(name):
		return refused(noName), ""
	case isOwnName(name):
		return refused(ownRule), ""
	}
	var m set
	p.matchName(&m, name)
	rule, allowed := p.firstOpen(&m)
	if rule < 0 {
		return refused(noRule), ""
	}
	v = caisson.Verdict{Allowed: allowed, Rule: rule, Name: name, Reason: p.rules[rule].reason}
	return v, p.wildcard(rule, name)
}

// DecideAddress implements [caisson.Decider]. It allows an address if rules allow at least one protocol and port of it.
func (p *Policy) DecideAddress(name string, addr netip.Addr) caisson.Verdict {
	addr = addr.Unmap().WithZone("")
	if !addr.IsValid() {
		return refused(noFlow)
	}
	var list [1]string
	names := list[:0]
	if name != "" {
		names = append(names, name)
	}
	m := p.match(names, addr)
	rule, allowed := p.firstOpen(&m)
	if rule < 0 {
		return unmatched(addr)
	}
	return caisson.Verdict{Allowed: allowed, Rule: rule, Name: p.matchedName(rule, names), Reason: p.rules[rule].reason}
}

// DecideFlow implements [caisson.Decider]. It does not allocate memory.
func (p *Policy) DecideFlow(f caisson.Flow) caisson.Verdict {
	addr := f.Dst.Addr().Unmap().WithZone("")
	protocol, known := parseProtocol(f.Protocol)
	if !known || !addr.IsValid() || f.Dst.Port() == 0 {
		return refused(noFlow)
	}
	m := p.match(f.Names, addr)
	rule := p.firstMatch(&m, protocol, f.Dst.Port())
	if rule < 0 {
		return unmatched(addr)
	}
	r := &p.rules[rule]
	return caisson.Verdict{
		Allowed: r.allow, Rule: rule, Name: p.matchedName(rule, f.Names), Reason: r.reason, Exact: r.allow && r.prefix.IsSingleIP(),
	}
}

func parseProtocol(s string) (protocol int, ok bool) {
	switch s {
	case "tcp":
		return tcp, true
	case "udp":
		return udp, true
	}
	return 0, false
}

// match returns the rules that match any of names or addr.
func (p *Policy) match(names []string, addr netip.Addr) set {
	var m set
	for _, name := range names {
		p.matchName(&m, name)
	}
	b, isSpecial := specialBlock(addr)
	if isSpecial {
		m = m.minus(&p.allowRules) // an allow rule for a name does not allow an address outside the public internet
	}
	for i := p.prefixes.next(0); i >= 0; i = p.prefixes.next(i + 1) {
		r := &p.rules[i]
		if r.prefix.Contains(addr) && (!r.allow || !isSpecial || b.covers(r.prefix)) {
			m.add(i)
		}
	}
	return m
}

// matchName adds to m the rules that match name.
func (p *Policy) matchName(m *set, name string) {
	if isOwnName(name) {
		return
	}
	if s, ok := p.exact[name]; ok {
		m.union(&s)
	}
	if len(p.suffixes) > 0 {
		for rest := name; ; {
			_, after, more := strings.Cut(rest, ".")
			if !more {
				break
			}
			if s, ok := p.suffixes[after]; ok {
				m.union(&s)
			}
			rest = after
		}
	}
	all := p.any
	if localName(name) {
		all = all.minus(&p.allowRules)
	}
	m.union(&all)
}

// firstMatch returns the first rule in m for protocol and port, -1 if there is none.
func (p *Policy) firstMatch(m *set, protocol int, port uint16) int {
	for i := m.next(0); i >= 0; i = m.next(i + 1) {
		if r := &p.rules[i]; r.protocol[protocol] && r.ports.contains(port) {
			return i
		}
	}
	return -1
}

// firstOpen returns the first rule in m that allows a protocol and port that no earlier rule denies; if there is none, the first
// rule that denies; otherwise -1.
func (p *Policy) firstOpen(m *set) (rule int, allowed bool) {
	rule = -1
	var shut [protocols]portSet
	for i := m.next(0); i >= 0; i = m.next(i + 1) {
		r := &p.rules[i]
		if !r.allow && rule < 0 {
			rule = i
		}
		for protocol, about := range r.protocol {
			switch {
			case !about:
			case !r.allow:
				shut[protocol] = shut[protocol].union(r.ports)
			case !shut[protocol].covers(r.ports):
				return i, true
			}
		}
	}
	return rule, false
}

// matchedName returns the first of names that a rule matches, "" if the rule is about addresses.
func (p *Policy) matchedName(rule int, names []string) string {
	if p.prefixes.has(rule) {
		return ""
	}
	for _, name := range names {
		var m set
		p.matchName(&m, name)
		if m.has(rule) {
			return name
		}
	}
	return ""
}

// wildcard returns the suffix after the "*." with which a rule matches name, "" if it matches in another way.
func (p *Policy) wildcard(rule int, name string) string {
	if s, ok := p.exact[name]; ok && s.has(rule) {
		return ""
	}
	for rest := name; ; {
		_, after, more := strings.Cut(rest, ".")
		if !more {
			return ""
		}
		if s, ok := p.suffixes[after]; ok && s.has(rule) {
			return after
		}
		rest = after
	}
}

// refused returns a verdict that denies without a rule, for the given reason.
func refused(reason string) caisson.Verdict { return caisson.Verdict{Rule: -1, Reason: reason} }

// unmatched returns the verdict on an address that no rule matches.
func unmatched(addr netip.Addr) caisson.Verdict {
	if b, ok := specialBlock(addr); ok {
		return refused(b.reason)
	}
	return refused(noRule)
}
