package egress

import (
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
)

func at(addr string, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(addr), port)
}

func flow(protocol, dst string, names ...string) caisson.Flow {
	return caisson.Flow{Protocol: protocol, Dst: netip.MustParseAddrPort(dst), Names: names}
}

func TestDecideFlow(t *testing.T) {
	const pub, pub6 = "203.0.113.9:443", "[2001:db8::9]:443"
	for _, tt := range []struct {
		about string
		rules []caisson.Rule
		flow  caisson.Flow
		rule  int // -1: no rule decides
		allow bool
		name  string
	}{
		{"no rules", nil, flow("tcp", pub, "a.example"), -1, false, ""},
		{"exact", []caisson.Rule{allow("a.example")}, flow("tcp", pub, "a.example"), 0, true, "a.example"},
		{"exact, not below", []caisson.Rule{allow("a.example")}, flow("tcp", pub, "b.a.example"), -1, false, ""},
		{"exact, not above", []caisson.Rule{allow("b.a.example")}, flow("tcp", pub, "a.example"), -1, false, ""},
		{"exact, no suffix", []caisson.Rule{allow("a.example")}, flow("tcp", pub, "ba.example"), -1, false, ""},
		{"wildcard", []caisson.Rule{allow("*.a.example")}, flow("tcp", pub, "b.a.example"), 0, true, "b.a.example"},
		{"wildcard, deep", []caisson.Rule{allow("*.a.example")}, flow("tcp", pub, "d.c.b.a.example"), 0, true, "d.c.b.a.example"},
		{"wildcard, not itself", []caisson.Rule{allow("*.a.example")}, flow("tcp", pub, "a.example"), -1, false, ""},
		{"wildcard, labels", []caisson.Rule{allow("*.a.example")}, flow("tcp", pub, "ba.example"), -1, false, ""},
		{"any of several names", []caisson.Rule{allow("b.example")}, flow("tcp", pub, "a.example", "b.example"), 0, true, "b.example"},
		{"deny by any name", []caisson.Rule{deny("b.example"), allow("*")}, flow("tcp", pub, "a.example", "b.example"), 0, false, "b.example"},
		{"every name", []caisson.Rule{allow("*")}, flow("tcp", pub, "a.example"), 0, true, "a.example"},
		{"every name, no name", []caisson.Rule{allow("*")}, flow("tcp", pub), -1, false, ""},
		{"wildcard, no name", []caisson.Rule{allow("*.example")}, flow("tcp", pub), -1, false, ""},
		{"deny every name, no name", []caisson.Rule{deny("*"), allow("203.0.113.9")}, flow("tcp", pub), 1, true, ""},
		{"address", []caisson.Rule{allow("203.0.113.9")}, flow("tcp", pub), 0, true, ""},
		{"address, name known", []caisson.Rule{allow("203.0.113.9")}, flow("tcp", pub, "a.example"), 0, true, ""},
		{"cidr", []caisson.Rule{allow("203.0.113.0/24")}, flow("tcp", pub), 0, true, ""},
		{"cidr, outside", []caisson.Rule{allow("203.0.112.0/24")}, flow("tcp", pub), -1, false, ""},
		{"cidr, all of IPv4", []caisson.Rule{allow("0.0.0.0/0")}, flow("tcp", pub), 0, true, ""},
		{"cidr, all of IPv6", []caisson.Rule{allow("::/0")}, flow("tcp", pub6), 0, true, ""},
		{"cidr, families apart", []caisson.Rule{allow("::/0")}, flow("tcp", pub), -1, false, ""},
		{"cidr, families apart 2", []caisson.Rule{allow("0.0.0.0/0")}, flow("tcp", pub6), -1, false, ""},
		{"mapped destination", []caisson.Rule{allow("203.0.113.0/24")}, flow("tcp", "[::ffff:203.0.113.9]:443"), 0, true, ""},
		{"mapped destination denied", []caisson.Rule{deny("203.0.113.0/24"), allow("*")}, flow("tcp", "[::ffff:203.0.113.9]:443", "a.example"), 0, false, ""},
		{"first match: allow", []caisson.Rule{allow("a.example"), deny("*")}, flow("tcp", pub, "a.example"), 0, true, "a.example"},
		{"first match: deny", []caisson.Rule{deny("*.example"), allow("a.example")}, flow("tcp", pub, "a.example"), 0, false, "a.example"},
		{"first match: cidr first", []caisson.Rule{deny("203.0.113.0/24"), allow("a.example")}, flow("tcp", pub, "a.example"), 0, false, ""},
		{"port", []caisson.Rule{allow("a.example", "443")}, flow("tcp", pub, "a.example"), 0, true, "a.example"},
		{"other port", []caisson.Rule{allow("a.example", "80")}, flow("tcp", pub, "a.example"), -1, false, ""},
		{"port range", []caisson.Rule{allow("a.example", "400-443")}, flow("tcp", pub, "a.example"), 0, true, "a.example"},
		{"one of ports", []caisson.Rule{allow("a.example", "80", "443")}, flow("tcp", pub, "a.example"), 0, true, "a.example"},
		{"second rule by port", []caisson.Rule{allow("a.example", "80"), allow("a.example", "443")}, flow("tcp", pub, "a.example"), 1, true, "a.example"},
		{"allow is tcp", []caisson.Rule{allow("a.example")}, flow("udp", pub, "a.example"), -1, false, ""},
		{"allow udp", []caisson.Rule{allow("a.example", "udp")}, flow("udp", pub, "a.example"), 0, true, "a.example"},
		{"allow udp is not tcp", []caisson.Rule{allow("a.example", "udp")}, flow("tcp", pub, "a.example"), -1, false, ""},
		{"deny is both", []caisson.Rule{deny("a.example"), allow("a.example", "udp")}, flow("udp", pub, "a.example"), 0, false, "a.example"},
		{"deny tcp", []caisson.Rule{deny("a.example", "tcp"), allow("a.example", "udp")}, flow("udp", pub, "a.example"), 1, true, "a.example"},
		{"preset", []caisson.Rule{allow("preset:npm")}, flow("tcp", pub, "registry.npmjs.org"), 0, true, "registry.npmjs.org"},
		{"preset, other port", []caisson.Rule{allow("preset:npm")}, flow("tcp", "203.0.113.9:80", "registry.npmjs.org"), -1, false, ""},
		{"preset, own ports", []caisson.Rule{allow("preset:npm", "80")}, flow("tcp", "203.0.113.9:80", "registry.npmjs.org"), 0, true, "registry.npmjs.org"},
		{"preset denied on all ports", []caisson.Rule{deny("preset:npm"), allow("*")}, flow("tcp", "203.0.113.9:80", "registry.npmjs.org"), 0, false, "registry.npmjs.org"},
		{"icmp", []caisson.Rule{allow("0.0.0.0/0")}, flow("icmp", pub), -1, false, ""},
		{"no protocol", []caisson.Rule{allow("0.0.0.0/0")}, flow("", pub), -1, false, ""},
		{"upper-case protocol", []caisson.Rule{allow("0.0.0.0/0")}, flow("TCP", pub), -1, false, ""},
		{"port 0", []caisson.Rule{allow("0.0.0.0/0")}, flow("tcp", "203.0.113.9:0"), -1, false, ""},
		{"no address", []caisson.Rule{allow("0.0.0.0/0"), allow("::/0"), allow("*")}, caisson.Flow{Protocol: "tcp", Names: []string{"a.example"}}, -1, false, ""},

		{"private, by name", []caisson.Rule{allow("a.example"), allow("*")}, flow("tcp", "10.1.2.3:443", "a.example"), -1, false, ""},
		{"private, by everything", []caisson.Rule{allow("0.0.0.0/0")}, flow("tcp", "10.1.2.3:443"), -1, false, ""},
		{"private, by more than it", []caisson.Rule{allow("10.0.0.0/7")}, flow("tcp", "10.1.2.3:443"), -1, false, ""},
		{"beside private", []caisson.Rule{allow("10.0.0.0/7")}, flow("tcp", "11.1.2.3:443"), 0, true, ""},
		{"private, named", []caisson.Rule{allow("10.0.0.0/8")}, flow("tcp", "10.1.2.3:443"), 0, true, ""},
		{"private, named exactly", []caisson.Rule{allow("10.1.2.3")}, flow("tcp", "10.1.2.3:443"), 0, true, ""},
		{"private, named in mapped form", []caisson.Rule{allow("::ffff:10.0.0.0/104")}, flow("tcp", "10.1.2.3:443"), 0, true, ""},
		{"private, name and cidr", []caisson.Rule{allow("git.corp.internal"), allow("10.0.0.0/8")}, flow("tcp", "10.1.2.3:443", "git.corp.internal"), 1, true, ""},
		{"private, denied first", []caisson.Rule{deny("10.1.0.0/16"), allow("10.0.0.0/8")}, flow("tcp", "10.1.2.3:443"), 0, false, ""},
		{"private, name denied first", []caisson.Rule{deny("*"), allow("10.0.0.0/8")}, flow("tcp", "10.1.2.3:443", "x"), 0, false, "x"},
		{"loopback, named", []caisson.Rule{allow("127.0.0.1", "8080")}, flow("tcp", "127.0.0.1:8080"), 0, true, ""},
		{"metadata is not link-local", []caisson.Rule{allow("169.254.0.0/16")}, flow("tcp", "169.254.169.254:80"), -1, false, ""},
		{"link-local, named", []caisson.Rule{allow("169.254.0.0/16")}, flow("tcp", "169.254.1.1:80"), 0, true, ""},
		{"metadata, named", []caisson.Rule{allow("169.254.169.254")}, flow("tcp", "169.254.169.254:80"), 0, true, ""},
		{"metadata is not ULA", []caisson.Rule{allow("fc00::/7")}, flow("tcp", "[fd00:ec2::254]:80"), -1, false, ""},
		{"ULA, named", []caisson.Rule{allow("fc00::/7")}, flow("tcp", "[fd12::1]:80"), 0, true, ""},
		{"link-local with zone", []caisson.Rule{allow("fe80::/10")}, flow("tcp", "[fe80::1%eth0]:80"), 0, true, ""},
		{"NAT64 of public, everything", []caisson.Rule{allow("::/0")}, flow("tcp", "[64:ff9b::cb00:7109]:443"), -1, false, ""},
		{"NAT64 of public, named", []caisson.Rule{allow("64:ff9b::/96")}, flow("tcp", "[64:ff9b::cb00:7109]:443"), 0, true, ""},
		{"NAT64 of private", []caisson.Rule{allow("64:ff9b::/96")}, flow("tcp", "[64:ff9b::a01:203]:443"), -1, false, ""},
		{"NAT64 of private, named", []caisson.Rule{allow("64:ff9b::a00:0/104")}, flow("tcp", "[64:ff9b::a01:203]:443"), 0, true, ""},
		{"NAT64 of metadata, private named", []caisson.Rule{allow("64:ff9b::a9fe:0/112")}, flow("tcp", "[64:ff9b::a9fe:a9fe]:80"), -1, false, ""},
		{"local NAT64 of public, named", []caisson.Rule{allow("64:ff9b:1::/96")}, flow("tcp", "[64:ff9b:1::cb00:7109]:443"), 0, true, ""},
		{"local NAT64 of private", []caisson.Rule{allow("64:ff9b:1::/96")}, flow("tcp", "[64:ff9b:1::a01:203]:443"), -1, false, ""},
		{"6to4 of public, named", []caisson.Rule{allow("2002::/16")}, flow("tcp", "[2002:cb00:7109::1]:443"), 0, true, ""},
		{"6to4 of private", []caisson.Rule{allow("2002::/16")}, flow("tcp", "[2002:a01:203::1]:443"), -1, false, ""},
		{"6to4 of private, named", []caisson.Rule{allow("2002:a00::/24")}, flow("tcp", "[2002:a01:203::1]:443"), 0, true, ""},
		{"Teredo of a private client", []caisson.Rule{allow("2001::/32")}, flow("tcp", "[2001:0:cb00:7109::f5fe:fdfc]:443"), -1, false, ""},
		{"Teredo of a private server", []caisson.Rule{allow("2001::/32")}, flow("tcp", "[2001:0:a01:203::34ff:8ef6]:443"), -1, false, ""},
		{"Teredo of public, named", []caisson.Rule{allow("2001::/32")}, flow("tcp", "[2001:0:cb00:7109::34ff:8ef6]:443"), 0, true, ""},
		{"compatible of private", []caisson.Rule{allow("::/96")}, flow("tcp", "[::a01:203]:443"), -1, false, ""},

		{"every name: localhost", []caisson.Rule{allow("*")}, flow("tcp", pub, "localhost"), -1, false, ""},
		{"every name: one label", []caisson.Rule{allow("*")}, flow("tcp", pub, "router"), -1, false, ""},
		{"every name: internal", []caisson.Rule{allow("*")}, flow("tcp", pub, "git.corp.internal"), -1, false, ""},
		{"internal, exactly", []caisson.Rule{allow("git.corp.internal")}, flow("tcp", pub, "git.corp.internal"), 0, true, "git.corp.internal"},
		{"internal, wildcard", []caisson.Rule{allow("*.corp.internal")}, flow("tcp", pub, "git.corp.internal"), 0, true, "git.corp.internal"},
		{"own, wildcard", []caisson.Rule{allow("*.internal")}, flow("tcp", pub, "llm.caisson.internal"), -1, false, ""},
		{"deny every name: internal", []caisson.Rule{deny("*"), allow("git.corp.internal")}, flow("tcp", pub, "git.corp.internal"), 0, false, "git.corp.internal"},
	} {
		v := compile(t, tt.rules...).DecideFlow(tt.flow)
		if v.Allowed != tt.allow || v.Rule != tt.rule || v.Name != tt.name {
			t.Errorf("%s: %+v, want rule %d, allowed %v, name %q", tt.about, v, tt.rule, tt.allow, tt.name)
		}
		if v.Reason == "" || strings.Contains(v.Reason, "\n") {
			t.Errorf("%s: reason %q", tt.about, v.Reason)
		}
	}
}

// An address of the host may be reached only with a rule for exactly that address, which the verdict therefore reports.
func TestDecideFlowExact(t *testing.T) {
	for _, tt := range []struct {
		about string
		rules []caisson.Rule
		flow  caisson.Flow
		exact bool
	}{
		{"address", []caisson.Rule{allow("10.1.2.3")}, flow("tcp", "10.1.2.3:80"), true},
		{"address, name known", []caisson.Rule{allow("10.1.2.3")}, flow("tcp", "10.1.2.3:80", "a.example"), true},
		{"address in mapped form", []caisson.Rule{allow("::ffff:10.1.2.3")}, flow("tcp", "10.1.2.3:80"), true},
		{"mapped destination", []caisson.Rule{allow("10.1.2.3")}, flow("tcp", "[::ffff:10.1.2.3]:80"), true},
		{"IPv6", []caisson.Rule{allow("fd12::1")}, flow("tcp", "[fd12::1]:80"), true},
		{"CIDR of one", []caisson.Rule{allow("10.1.2.3/32")}, flow("tcp", "10.1.2.3:80"), true},
		{"CIDR of two", []caisson.Rule{allow("10.1.2.2/31")}, flow("tcp", "10.1.2.3:80"), false},
		{"name", []caisson.Rule{allow("a.example")}, flow("tcp", "203.0.113.9:80", "a.example"), false},
		{"name before address", []caisson.Rule{allow("a.example"), allow("203.0.113.9")}, flow("tcp", "203.0.113.9:80", "a.example"), false},
		{"everything", []caisson.Rule{allow("0.0.0.0/0"), allow("203.0.113.9")}, flow("tcp", "203.0.113.9:80"), false},
		{"denied", []caisson.Rule{deny("10.1.2.3")}, flow("tcp", "10.1.2.3:80"), false},
		{"other port", []caisson.Rule{allow("10.1.2.3", "81")}, flow("tcp", "10.1.2.3:80"), false},
		{"no rule", nil, flow("tcp", "10.1.2.3:80"), false},
	} {
		if v := compile(t, tt.rules...).DecideFlow(tt.flow); v.Exact != tt.exact {
			t.Errorf("%s: %+v, want exact %v", tt.about, v, tt.exact)
		}
	}
}

func TestDecideName(t *testing.T) {
	long := strings.Repeat("a", 63)
	for _, tt := range []struct {
		about    string
		rules    []caisson.Rule
		name     string
		rule     int
		allow    bool
		wildcard string
	}{
		{"no rules", nil, "a.example", -1, false, ""},
		{"exact", []caisson.Rule{allow("a.example")}, "a.example", 0, true, ""},
		{"wildcard", []caisson.Rule{allow("*.example")}, "b.a.example", 0, true, "example"},
		{"narrowest wildcard of a rule", []caisson.Rule{allow("*.example"), allow("*.a.example")}, "b.a.example", 0, true, "example"},
		{"every name", []caisson.Rule{allow("*")}, "a.example", 0, true, ""},
		{"denied", []caisson.Rule{deny("a.example"), allow("*")}, "a.example", 0, false, ""},
		{"denied on a port", []caisson.Rule{deny("a.example", "22"), allow("*")}, "a.example", 1, true, ""},
		{"denied on the port", []caisson.Rule{deny("a.example", "22"), allow("*", "22")}, "a.example", 0, false, ""},
		{"denied on more than the ports", []caisson.Rule{deny("a.example", "1-100"), allow("*", "22", "80")}, "a.example", 0, false, ""},
		{"denied on one of the ports", []caisson.Rule{deny("a.example", "1-50"), allow("*", "22", "80")}, "a.example", 1, true, ""},
		{"denied in pieces", []caisson.Rule{deny("a.example", "1-99"), deny("*.example", "100-65535"), allow("a.example")}, "a.example", 0, false, ""},
		{"denied in pieces with a gap", []caisson.Rule{deny("a.example", "1-99"), deny("*.example", "101-65535"), allow("a.example")}, "a.example", 2, true, ""},
		{"denied on udp", []caisson.Rule{deny("a.example", "udp"), allow("a.example")}, "a.example", 1, true, ""},
		{"denied on tcp", []caisson.Rule{deny("a.example", "tcp"), allow("a.example")}, "a.example", 0, false, ""},
		{"denied on tcp, allowed on udp", []caisson.Rule{deny("a.example", "tcp"), allow("a.example"), allow("a.example", "udp")}, "a.example", 2, true, ""},
		{"denied later", []caisson.Rule{allow("a.example", "443"), deny("*")}, "a.example", 0, true, ""},
		{"denied only", []caisson.Rule{deny("*")}, "a.example", 0, false, ""},
		{"addresses allow no name", []caisson.Rule{allow("0.0.0.0/0"), allow("::/0"), allow("10.0.0.0/8")}, "a.example", -1, false, ""},
		{"addresses deny no name", []caisson.Rule{deny("0.0.0.0/0"), allow("a.example")}, "a.example", 1, true, ""},
		{"preset", []caisson.Rule{allow("preset:pypi")}, "files.pythonhosted.org", 0, true, ""},
		{"own", []caisson.Rule{allow("*"), allow("*.internal")}, "llm.caisson.internal", -1, false, ""},
		{"own itself", []caisson.Rule{allow("*"), allow("*.internal")}, "caisson.internal", -1, false, ""},
		{"beside own", []caisson.Rule{allow("*.internal")}, "notcaisson.internal", 0, true, "internal"},
		{"reverse", []caisson.Rule{allow("*")}, "1.0.0.10.in-addr.arpa", -1, false, ""},
		{"home", []caisson.Rule{allow("*")}, "nas.home.arpa", -1, false, ""},
		{"local", []caisson.Rule{allow("*")}, "printer.local", -1, false, ""},
		{"one label", []caisson.Rule{allow("*")}, "metadata", -1, false, ""},
		{"metadata", []caisson.Rule{allow("*")}, "metadata.google.internal", -1, false, ""},
		{"service discovery", []caisson.Rule{allow("*")}, "kubernetes.default.svc.cluster.local", -1, false, ""},
		{"a label of 63", []caisson.Rule{allow("*.example")}, long + ".example", 0, true, "example"},
		{"a label of 64", []caisson.Rule{allow("*.example")}, "a" + long + ".example", -1, false, ""},
		{"too long", []caisson.Rule{allow("*.example")}, strings.Repeat(long+".", 4) + "example", -1, false, ""},
		{"empty", []caisson.Rule{allow("*")}, "", -1, false, ""},
		{"root", []caisson.Rule{allow("*")}, ".", -1, false, ""},
		{"upper case", []caisson.Rule{allow("*")}, "A.example", -1, false, ""},
		{"final dot", []caisson.Rule{allow("*")}, "a.example.", -1, false, ""},
		{"zero byte", []caisson.Rule{allow("*.example")}, "a\x00.example", -1, false, ""},
		{"number", []caisson.Rule{allow("*")}, "127.0.0.1", -1, false, ""},
		{"hexadecimal number", []caisson.Rule{allow("*")}, "a.0x7f", -1, false, ""},
		{"underscore", []caisson.Rule{allow("*.example")}, "_dmarc.example", 0, true, "example"},
	} {
		v, wildcard := compile(t, tt.rules...).DecideName(tt.name)
		if v.Allowed != tt.allow || v.Rule != tt.rule || wildcard != tt.wildcard {
			t.Errorf("%s: %+v %q, want rule %d, allowed %v, wildcard %q", tt.about, v, wildcard, tt.rule, tt.allow, tt.wildcard)
		}
	}
}

func TestDecideAddress(t *testing.T) {
	for _, tt := range []struct {
		about string
		rules []caisson.Rule
		name  string
		addr  string
		rule  int
		allow bool
	}{
		{"public", []caisson.Rule{allow("a.example", "443")}, "a.example", "203.0.113.9", 0, true},
		{"rebinding", []caisson.Rule{allow("a.example")}, "a.example", "10.0.0.1", -1, false},
		{"rebinding to this host", []caisson.Rule{allow("a.example")}, "a.example", "0.0.0.0", -1, false},
		{"rebinding, mapped", []caisson.Rule{allow("a.example"), allow("::/0")}, "a.example", "::ffff:10.0.0.1", -1, false},
		{"private, named", []caisson.Rule{allow("a.example"), allow("10.0.0.0/8", "80")}, "a.example", "10.0.0.1", 1, true},
		{"address denied", []caisson.Rule{deny("203.0.113.0/24"), allow("a.example")}, "a.example", "203.0.113.9", 0, false},
		{"address denied on a port", []caisson.Rule{deny("203.0.113.0/24", "22"), allow("a.example")}, "a.example", "203.0.113.9", 1, true},
		{"address denied on all its ports", []caisson.Rule{deny("203.0.113.0/24", "22"), allow("a.example", "22")}, "a.example", "203.0.113.9", 0, false},
		{"no name", []caisson.Rule{allow("*")}, "", "203.0.113.9", -1, false},
		{"no name, address named", []caisson.Rule{allow("203.0.113.9")}, "", "203.0.113.9", 0, true},
	} {
		v := compile(t, tt.rules...).DecideAddress(tt.name, netip.MustParseAddr(tt.addr))
		if v.Allowed != tt.allow || v.Rule != tt.rule {
			t.Errorf("%s: %+v, want rule %d, allowed %v", tt.about, v, tt.rule, tt.allow)
		}
	}
	if v := compile(t, allow("*")).DecideAddress("a.example", netip.Addr{}); v.Allowed {
		t.Error("no address is allowed")
	}
}

func TestReasons(t *testing.T) {
	noted := deny("*.bad.example", "443", "tcp")
	noted.Note = "leaks telemetry"
	p := compile(t, noted, allow("preset:npm"), allow("a.example"))
	for _, tt := range []struct {
		flow caisson.Flow
		want string
	}{
		{flow("tcp", "203.0.113.9:443", "x.bad.example"), "rule 0 denies *.bad.example: leaks telemetry"},
		{flow("tcp", "203.0.113.9:443", "registry.npmjs.org"), "rule 1 allows preset npm"},
		{flow("tcp", "203.0.113.9:443", "b.example"), "no rule allows it"},
		{flow("tcp", "10.0.0.1:443", "a.example"), "the address is private (10.0.0.0/8), and no rule allows it by address"},
		{flow("tcp", "169.254.169.254:80"), "the address is a metadata service (169.254.169.254/32), and no rule allows it by address"},
	} {
		if got := p.DecideFlow(tt.flow).Reason; got != tt.want {
			t.Errorf("%+v: %q, want %q", tt.flow, got, tt.want)
		}
	}
}

func TestDecideFlowAllocatesNothing(t *testing.T) {
	p := bigPolicy(t)
	f := flow("tcp", "203.0.113.9:443", "cdn.example.com", "b.a.wild250.example")
	for name, do := range map[string]func(){
		"flow":    func() { p.DecideFlow(f) },
		"address": func() { p.DecideAddress("b.a.wild250.example", f.Dst.Addr()) },
		"name":    func() { p.DecideName("b.a.wild250.example") },
	} {
		if n := testing.AllocsPerRun(100, do); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// bigPolicy returns a policy with the maximum number of rules, of all forms.
func bigPolicy(t testing.TB) *Policy {
	var rules []caisson.Rule
	for i := range maxRules {
		n := strconv.Itoa(i)
		switch i % 3 {
		case 0:
			rules = append(rules, allow("host"+n+".example", "443"))
		case 1:
			rules = append(rules, allow("*.wild"+n+".example", "443"))
		default:
			rules = append(rules, allow(netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)}).String(), "443"))
		}
	}
	return compile(t, rules...)
}

func BenchmarkDecideFlow(b *testing.B) {
	small := compile(b, allow("preset:npm"), allow("*.example.com", "443"), deny("10.0.0.0/8"), allow("203.0.113.0/24"))
	big := bigPolicy(b)
	for _, bb := range []struct {
		name string
		p    *Policy
		f    caisson.Flow
	}{
		{"small/name", small, flow("tcp", "203.0.113.9:443", "registry.npmjs.org")},
		{"small/wildcard", small, flow("tcp", "203.0.113.9:443", "api.example.com")},
		{"small/refused", small, flow("tcp", "192.0.2.9:443", "evil.example")},
		{"small/private", small, flow("tcp", "192.168.1.1:443", "api.example.com")},
		{"small/ipv6", small, flow("tcp", "[2001:db8::1]:443", "api.example.com")},
		{"500/wildcard", big, flow("tcp", "203.0.113.9:443", "b.a.wild250.example")},
		{"500/refused", big, flow("tcp", "203.0.113.9:443", "evil.example")},
	} {
		b.Run(bb.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				bb.p.DecideFlow(bb.f)
			}
		})
	}
}

func BenchmarkDecideName(b *testing.B) {
	p := bigPolicy(b)
	b.ReportAllocs()
	for b.Loop() {
		p.DecideName("b.a.wild250.example")
	}
}

func BenchmarkCompile(b *testing.B) {
	src := bigPolicy(b).Source()
	for b.Loop() {
		if _, err := Compile(src); err != nil {
			b.Fatal(err)
		}
	}
}
