package egress

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
)

// naive is a direct implementation of the documentation of the domain, rule by rule, without an index and without code of the
// package except the validation of names. The fuzz tests compare it with the package.
type naive struct{ rules []caisson.Rule }

func (n naive) hosts(r caisson.Rule) []string {
	if r.Preset == "" {
		return []string{r.Host}
	}
	for _, p := range Presets() {
		if p.Name == r.Preset {
			return p.Hosts
		}
	}
	return nil
}

func (n naive) ports(r caisson.Rule) []caisson.PortRange {
	if r.Preset != "" && len(r.Ports) == 0 && r.Action == caisson.Allow {
		for _, p := range Presets() {
			if p.Name == r.Preset {
				return p.Ports
			}
		}
	}
	return r.Ports
}

func (n naive) matchesName(r caisson.Rule, name string) bool {
	if name == "caisson.internal" || strings.HasSuffix(name, ".caisson.internal") {
		return false
	}
	for _, h := range n.hosts(r) {
		switch {
		case h == "*":
			labels := strings.Split(name, ".")
			local := len(labels) == 1 || slices.Contains([]string{
				"localhost", "invalid", "local", "arpa", "onion", "alt", "internal", "home", "corp", "mail", "lan",
				"localdomain", "domain", "intranet", "private", "consul",
			}, labels[len(labels)-1])
			if r.Action == caisson.Deny || !local {
				return true
			}
		case strings.HasPrefix(h, "*."):
			if strings.HasSuffix(name, h[1:]) {
				return true
			}
		case h == name:
			return true
		}
	}
	return false
}

func (n naive) prefix(r caisson.Rule) (netip.Prefix, bool) {
	if p, err := netip.ParsePrefix(r.Host); err == nil {
		return p, true
	}
	if a, err := netip.ParseAddr(r.Host); err == nil {
		return netip.PrefixFrom(a, a.BitLen()), true
	}
	return netip.Prefix{}, false
}

// ranges returns every special range that contains addr.
func (n naive) ranges(addr netip.Addr) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range strings.Fields(`
		0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.88.99.0/24 192.168.0.0/16
		198.18.0.0/15 224.0.0.0/4 240.0.0.0/4 255.255.255.255/32 169.254.169.254/32 169.254.169.253/32 169.254.170.2/32
		169.254.170.23/32 168.63.129.16/32 100.100.100.200/32 192.0.0.192/32
		::/128 ::1/128 ::/96 ::ffff:0:0:0/96 64:ff9b::/96 64:ff9b:1::/48 100::/64 2001::/32 2001::/23 2002::/16 fc00::/7 fe80::/10
		fec0::/10 ff00::/8 ::/3 4000::/2 8000::/1 fd00:ec2::254/128 fd00:ec2::253/128 fd00:ec2::23/128 fd20:ce::254/128`) {
		if p := netip.MustParsePrefix(s); p.Contains(addr) {
			out = append(out, p)
		}
	}
	return append(out, n.embedded(addr)...)
}

// embedded returns the special ranges of IPv4 addresses that addr embeds, as ranges of IPv6.
func (n naive) embedded(addr netip.Addr) []netip.Prefix {
	if addr.Is4() {
		return nil
	}
	a := addr.As16()
	bit := func(i int) int { return int(a[i/8]>>(7-i%8)) & 1 }
	var out []netip.Prefix
	try := func(in string, invert int, at func(i int) int) {
		if !netip.MustParsePrefix(in).Contains(addr) {
			return
		}
		var v4 [4]byte
		for i := range 32 {
			v4[i/8] |= byte((bit(at(i)) ^ invert) << (7 - i%8))
		}
		for _, r := range n.ranges(netip.AddrFrom4(v4)) {
			p, err := addr.Prefix(at(r.Bits()-1) + 1)
			if err != nil {
				panic(err)
			}
			out = append(out, p)
		}
	}
	from := func(start int) func(int) int { return func(i int) int { return start + i } }
	around := func(start int) func(int) int { // bits 64 to 71 are skipped
		return func(i int) int {
			if start+i >= 64 {
				return start + i + 8
			}
			return start + i
		}
	}
	try("::/96", 0, from(96))
	try("::ffff:0:0:0/96", 0, from(96))
	try("64:ff9b::/96", 0, from(96))
	try("64:ff9b:1::/48", 0, from(96))
	try("64:ff9b:1::/48", 0, around(48))
	try("64:ff9b:1::/48", 0, around(56))
	try("64:ff9b:1::/48", 0, around(64))
	try("2002::/16", 0, from(16))
	try("2001::/32", 0, from(32))
	try("2001::/32", 1, from(96))
	return out
}

func (n naive) matches(r caisson.Rule, names []string, addr netip.Addr) bool {
	ranges := n.ranges(addr)
	p, isPrefix := n.prefix(r)
	if !isPrefix {
		named := slices.ContainsFunc(names, func(name string) bool { return n.matchesName(r, name) })
		return named && (r.Action == caisson.Deny || len(ranges) == 0)
	}
	if !p.Contains(addr) {
		return false
	}
	if r.Action == caisson.Deny || len(ranges) == 0 {
		return true
	}
	// The narrowest range is the one within all others.
	narrow := slices.MaxFunc(ranges, func(a, b netip.Prefix) int { return a.Bits() - b.Bits() })
	return narrow.Contains(p.Addr()) && p.Bits() >= narrow.Bits()
}

func (n naive) about(r caisson.Rule, protocol string, port uint16) bool {
	switch r.Protocol {
	case "":
		if protocol == "udp" && r.Action == caisson.Allow {
			return false
		}
	case protocol:
	default:
		return false
	}
	ports := n.ports(r)
	return len(ports) == 0 || slices.ContainsFunc(ports, func(p caisson.PortRange) bool { return p.Contains(port) })
}

func (n naive) flow(f caisson.Flow) (rule int, allowed bool) {
	addr := f.Dst.Addr().Unmap()
	for i, r := range n.rules {
		if n.matches(r, f.Names, addr) && n.about(r, f.Protocol, f.Dst.Port()) {
			return i, r.Action == caisson.Allow
		}
	}
	return -1, false
}

// reach reports whether the rules that match selects allow any port and protocol, by trying all that can differ.
func (n naive) reach(match func(caisson.Rule) bool) bool {
	edges := []uint16{1}
	for _, r := range n.rules {
		for _, p := range n.ports(r) {
			edges = append(edges, p.First)
			if p.Last < 65535 {
				edges = append(edges, p.Last+1)
			}
		}
	}
	for _, protocol := range []string{"tcp", "udp"} {
		for _, port := range edges {
			i := slices.IndexFunc(n.rules, func(r caisson.Rule) bool { return match(r) && n.about(r, protocol, port) })
			if i >= 0 && n.rules[i].Action == caisson.Allow {
				return true
			}
		}
	}
	return false
}

var fuzzNames = []string{
	"a.example", "b.a.example", "c.b.a.example", "example", "router", "localhost", "x.localhost", "git.corp.internal", "llm.caisson.internal",
	"registry.npmjs.org", "pypi.org", "deb.debian.org", "nas.home.arpa", "aa.example",
}

var fuzzHosts = append([]string{
	"*", "*.example", "*.a.example", "*.internal", "*.corp.internal", "*.org", "preset:npm", "preset:pypi", "preset:debian", "0.0.0.0/0", "::/0",
	"10.0.0.0/8", "10.0.0.0/7", "10.1.2.3", "169.254.0.0/16", "169.254.169.254", "203.0.113.0/24", "203.0.113.9", "2001:db8::/32", "fc00::/7",
	"64:ff9b::/96", "64:ff9b::a00:0/104", "64:ff9b:1::/48", "64:ff9b:1::/96", "2002::/16", "2002:a00::/24", "2001::/32", "::/96", "8000::/1", "127.0.0.0/8",
}, fuzzNames[:8]...)

// fuzzPolicy decodes rules from bytes, four for each rule.
func fuzzPolicy(b []byte) []caisson.Rule {
	var rules []caisson.Rule
	for len(b) >= 4 && len(rules) < 20 {
		r := newRule(caisson.Allow, fuzzHosts[int(b[0])%len(fuzzHosts)], nil)
		if b[1]&1 != 0 {
			r.Action = caisson.Deny
		}
		r.Protocol = []string{"", "tcp", "udp", ""}[b[1]>>1&3]
		if b[1]&8 != 0 {
			first := uint16(b[2]%8) + 1
			r.Ports = append(r.Ports, caisson.PortRange{First: first, Last: first + uint16(b[3]%8)})
			if b[1]&16 != 0 {
				r.Ports = append(r.Ports, caisson.PortRange{First: 5, Last: 65535})
			}
		}
		rules, b = append(rules, r), b[4:]
	}
	return rules
}

func fuzzAddr(b []byte) netip.Addr {
	if a, ok := netip.AddrFromSlice(b); ok {
		return a.Unmap()
	}
	return netip.MustParseAddr("203.0.113.9")
}

// FuzzDecide compares the compiled policy with naive.
func FuzzDecide(f *testing.F) {
	var all []byte
	for i := range fuzzHosts {
		all = append(all, byte(i), byte(i*7), byte(i*3), byte(i*5))
	}
	for i := range 24 {
		for _, e := range []string{"203.0.113.9", "10.1.2.3", "169.254.169.254", "64:ff9b::a01:203", "64:ff9b:1:a00:0:100::", "2002:a01:203::1", "2001:0:7f00:1::80ff:fffe", "2001:db8::1", "::7f00:1", "fd00::1"} {
			start := (i * 4 * 3) % (len(all) - 16)
			f.Add(all[start:start+4*(i%5)], netip.MustParseAddr(e).AsSlice(), byte(i), byte(i*5), uint16(i%12), i%3 == 0)
		}
	}
	f.Fuzz(func(t *testing.T, policy, ip []byte, name1, name2 byte, port uint16, isUDP bool) {
		rules := fuzzPolicy(policy)
		p, n := compile(t, rules...), naive{rules}
		name := fuzzNames[int(name1)%len(fuzzNames)]
		fl := caisson.Flow{Protocol: "tcp", Dst: netip.AddrPortFrom(fuzzAddr(ip), max(port, 1))}
		if isUDP {
			fl.Protocol = "udp"
		}
		if name2%4 > 0 {
			fl.Names = append(fl.Names, name)
		}
		if name2%4 > 1 {
			fl.Names = append(fl.Names, fuzzNames[int(name2)%len(fuzzNames)])
		}
		v := p.DecideFlow(fl)
		if rule, allowed := n.flow(fl); rule != v.Rule || allowed != v.Allowed {
			t.Errorf("%+v\nflow %+v: %+v, naively rule %d, %v", rules, fl, v, rule, allowed)
		}
		if v.Name != "" && (!slices.Contains(fl.Names, v.Name) || !n.matchesName(rules[v.Rule], v.Name)) {
			t.Errorf("%+v\nflow %+v: name %q", rules, fl, v.Name)
		}
		at := p.DecideAddress(name, fl.Dst.Addr())
		if want := n.reach(func(r caisson.Rule) bool { return n.matches(r, []string{name}, fl.Dst.Addr()) }); at.Allowed != want {
			t.Errorf("%+v\naddress %s of %s: %+v, naively %v", rules, fl.Dst.Addr(), name, at, want)
		}
		dn, wildcard := p.DecideName(name)
		if want := n.reach(func(r caisson.Rule) bool { _, is := n.prefix(r); return !is && n.matchesName(r, name) }); dn.Allowed != want {
			t.Errorf("%+v\nname %s: %+v, naively %v", rules, name, dn, want)
		}
		if wildcard != "" && rules[dn.Rule].Host != "*."+wildcard {
			t.Errorf("%+v\nname %s: rule %d, wildcard %q", rules, name, dn.Rule, wildcard)
		}
		// If a flow is allowed, its address must be allowed in answers.
		if len(fl.Names) == 1 && v.Allowed && !at.Allowed {
			t.Errorf("%+v\nflow %+v is allowed, its address is not: %+v", rules, fl, at)
		}
	})
}
