package egress

import (
	"net/netip"

	"github.com/caisson-dev/caisson"
)

// Explain returns the verdict of p on target: HOST, HOST:PORT or ADDRESS:PORT, with an optional suffix /udp. It does not set the
// field Recent, and performs no lookups: the verdict on a name assumes public addresses that no rule contains, and the last
// element of Steps tells what private addresses need. Returns Invalid if target cannot be parsed.
func (p *Policy) Explain(target string) (*caisson.Explanation, error) {
	t, err := parseTarget(target)
	if err != nil {
		return nil, err
	}
	e := &caisson.Explanation{Target: t.String()}
	if isOwnName(t.name) {
		e.Verdict = refused(ownRule)
		return e, nil
	}
	if t.name == "" {
		e.Verdict = p.DecideFlow(caisson.Flow{Protocol: protocolNames[t.protocol], Dst: netip.AddrPortFrom(t.addr, t.port)})
	} else {
		e.Verdict = p.explainName(t)
	}
	for i := range p.rules {
		e.Steps = append(e.Steps, p.rules[i].text+": "+p.outcome(i, t))
		if i == e.Verdict.Rule {
			break
		}
	}
	if t.name != "" {
		e.Steps = append(e.Steps, privateHint(t))
	}
	if !e.Verdict.Allowed {
		e.Suggest, e.At = suggest(t), e.Verdict.Rule
		if e.At < 0 {
			e.At = len(p.rules)
		}
	}
	return e, nil
}

// protocolNames are the names of protocols in policies.
var protocolNames = [protocols]string{tcp: "tcp", udp: "udp"}

// explainName returns the verdict on a connection to a name whose addresses are on the public internet and not in a CIDR of a
// rule.
func (p *Policy) explainName(t target) caisson.Verdict {
	var m set
	p.matchName(&m, t.name)
	rule := p.firstMatch(&m, t.protocol, t.port)
	if rule < 0 {
		return refused(noRule)
	}
	r := &p.rules[rule]
	return caisson.Verdict{Allowed: r.allow, Rule: rule, Name: t.name, Reason: r.reason}
}

// privateHint returns the last of [caisson.Explanation.Steps]: which further rule is needed if the name of t has private
// addresses, because Explain does not look addresses up.
func privateHint(t target) string {
	if localName(t.name) {
		return "a name like " + t.name + " usually leads to private addresses, which need a rule of their own for the address or CIDR"
	}
	return "if " + t.name + " leads to an address that is private or otherwise not of the public internet, that needs a rule of its own " +
		"for the address or CIDR"
}

// outcome returns, as text, how rule i applies to t: that it allows or denies t, or why it does not match.
func (p *Policy) outcome(i int, t target) string {
	r := &p.rules[i]
	if t.name != "" {
		if miss := p.nameMismatch(i, t.name); miss != "" {
			return miss
		}
	} else if miss := p.addrMismatch(i, t.addr); miss != "" {
		return miss
	}
	what := "the name"
	if t.name == "" {
		what = "the address"
	}
	switch {
	case !r.protocol[t.protocol]:
		return "matches " + what + ", but is not about " + protocolNames[t.protocol]
	case !r.ports.contains(t.port):
		return "matches " + what + ", but not the port"
	case r.allow:
		return "allows it"
	}
	return "denies it"
}

// nameMismatch returns why rule i does not match a name, "" if it does.
func (p *Policy) nameMismatch(i int, name string) string {
	if p.prefixes.has(i) {
		return "decides only on addresses, should the name have one in it"
	}
	var m set
	p.matchName(&m, name)
	switch {
	case m.has(i):
		return ""
	case p.any.has(i):
		return "means names of the public internet, which this is not; a rule has to name it"
	}
	return "does not match the name"
}

// addrMismatch returns why rule i does not match an address, "" if it does.
func (p *Policy) addrMismatch(i int, addr netip.Addr) string {
	if !p.prefixes.has(i) {
		return "matches names, and this is an address"
	}
	r := &p.rules[i]
	if !r.prefix.Contains(addr) {
		return "does not match the address"
	}
	if b, ok := specialBlock(addr); ok && r.allow && !b.covers(r.prefix) {
		return "does not mean this address, which is " + b.what + "; a rule has to name it, or a CIDR within " + b.Prefix.String()
	}
	return ""
}

// suggest returns the smallest rule that allows t.
func suggest(t target) *caisson.Rule {
	r := &caisson.Rule{Action: caisson.Allow, Host: t.host(), Ports: []caisson.PortRange{{First: t.port, Last: t.port}}}
	if t.protocol == udp {
		r.Protocol = "udp"
	}
	return r
}
