package egress

import (
	"net/netip"
	"testing"

	"github.com/caisson-dev/caisson"
)

// evasions are notations of, or detours to, destinations that are not on the public internet.
var evasions = []struct{ about, host string }{
	{"loopback", "127.0.0.1"},
	{"loopback, elsewhere", "127.255.255.254"},
	{"loopback, short", "127.1"},
	{"loopback, shorter", "127.0.1"},
	{"loopback, decimal", "2130706433"},
	{"loopback, hexadecimal", "0x7f000001"},
	{"loopback, hexadecimal parts", "0x7f.0x0.0x0.0x1"},
	{"loopback, octal", "017700000001"},
	{"loopback, octal parts", "0177.0.0.01"},
	{"loopback, leading zeros", "127.000.000.001"},
	{"loopback, final dot", "127.0.0.1."},
	{"loopback, overflow", "127.0.0.257"},
	{"loopback, percent-encoded", "%31%32%37.0.0.1"},
	{"loopback, full-width digits", "１２７.0.0.1"},
	{"loopback, circled digits", "①②⑦.⓪.⓪.①"},
	{"loopback, ideographic full stops", "127。0。0。1"},
	{"loopback, IPv6", "::1"},
	{"loopback, IPv6 written out", "0:0:0:0:0:0:0:1"},
	{"loopback, mapped", "::ffff:127.0.0.1"},
	{"loopback, mapped in hexadecimal", "::ffff:7f00:1"},
	{"loopback, mapped and written out", "0:0:0:0:0:ffff:7f00:0001"},
	{"loopback, compatible", "::127.0.0.1"},
	{"loopback, translated", "::ffff:0:127.0.0.1"},
	{"loopback, NAT64", "64:ff9b::127.0.0.1"},
	{"loopback, local NAT64", "64:ff9b:1::127.0.0.1"},
	{"loopback, local NAT64 with /48", "64:ff9b:1:7f00:0:100::"},
	{"loopback, 6to4", "2002:7f00:1::"},
	{"loopback, Teredo client", "2001:0:cb00:7109::80ff:fffe"},
	{"loopback, Teredo server", "2001:0:7f00:1::34ff:8ef6"},
	{"loopback, user information", "example.com@127.0.0.1"},
	{"loopback, backslash", `example.com\@127.0.0.1`},
	{"loopback, fragment", "127.0.0.1#.example.com"},
	{"loopback, zero byte", "127.0.0.1\x00.example.com"},
	{"loopback, line end", "127.0.0.1\r\n"},
	{"loopback, space", " 127.0.0.1"},
	{"loopback, name", "localhost"},
	{"loopback, name in capitals", "LOCALHOST"},
	{"loopback, name with final dot", "localhost."},
	{"loopback, name below", "a.localhost"},
	{"unspecified", "0.0.0.0"},
	{"unspecified, short", "0"},
	{"unspecified, IPv6", "::"},
	{"this network", "0.1.2.3"},
	{"metadata", "169.254.169.254"},
	{"metadata, decimal", "2852039166"},
	{"metadata, hexadecimal", "0xa9fea9fe"},
	{"metadata, mapped", "::ffff:169.254.169.254"},
	{"metadata, mapped in hexadecimal", "::ffff:a9fe:a9fe"},
	{"metadata, NAT64", "64:ff9b::a9fe:a9fe"},
	{"metadata, 6to4", "2002:a9fe:a9fe::1"},
	{"metadata, IPv6", "fd00:ec2::254"},
	{"metadata, Google's IPv6", "fd20:ce::254"},
	{"metadata, Google's name", "metadata.google.internal"},
	{"metadata, bare name", "metadata"},
	{"metadata, containers", "169.254.170.2"},
	{"metadata, Alibaba", "100.100.100.200"},
	{"metadata, Azure", "168.63.129.16"},
	{"metadata, Oracle", "192.0.0.192"},
	{"private", "10.0.0.1"},
	{"private, 172.16", "172.31.255.255"},
	{"private, 192.168", "192.168.0.1"},
	{"private, short", "10.1"},
	{"private, mapped", "::ffff:10.0.0.1"},
	{"private, IPv6", "fd12:3456::1"},
	{"private, fc00", "fc00::1"},
	{"the wire", "10.87.0.1"},
	{"the wire, IPv6", "fdca:1550:a87::1"},
	{"carrier's own", "100.64.0.1"},
	{"benchmark", "198.18.0.1"},
	{"benchmark, upper half", "198.19.255.255"},
	{"link-local, IPv6", "fe80::1"},
	{"link-local, zone", "fe80::1%eth0"},
	{"site-local", "fec0::1"},
	{"multicast", "224.0.0.251"},
	{"multicast, last", "239.255.255.250"},
	{"multicast, IPv6", "ff02::fb"},
	{"broadcast", "255.255.255.255"},
	{"reserved", "240.0.0.1"},
	{"protocol assignments", "192.0.0.1"},
	{"6to4 relay", "192.88.99.1"},
	{"discard", "100::1"},
	{"NAT64 of a public address", "64:ff9b::203.0.113.9"},
	{"6to4 of a public address", "2002:cb00:7109::1"},
	{"Teredo of public addresses", "2001:0:cb00:7109::34ff:8ef6"},
	{"benchmark, IPv6", "2001:2::1"},
	{"overlay identifiers", "2001:20::1"},
	{"outside what is assigned", "4000::1"},
	{"segment routing", "5f00::1"},
	{"Kubernetes", "kubernetes.default.svc.cluster.local"},
	{"home network", "nas.home.arpa"},
	{"reverse lookup", "1.0.0.127.in-addr.arpa"},
	{"Caisson itself", "caisson.internal"},
	{"Caisson's models", "llm.caisson.internal"},
	{"empty", ""},
	{"only a dot", "."},
}

// A policy that allows everything except by naming an address that is not public allows none of these, in any notation of the
// query.
func TestEvasions(t *testing.T) {
	p := compile(t, allow("*"), allow("*", "udp"), allow("0.0.0.0/0"), allow("::/0"), allow("0.0.0.0/0", "udp"), allow("::/0", "udp"),
		allow("10.0.0.0/7"), allow("128.0.0.0/1"), allow("2000::/3"), allow("8000::/1"), allow("::/1"), allow("*.example.com"))
	if len(evasions) < 40 {
		t.Error("the table has shrunk")
	}
	for _, tt := range evasions {
		if v, _ := p.DecideName(tt.host); v.Allowed {
			t.Errorf("%s: %q may be resolved: %+v", tt.about, tt.host, v)
		}
		for _, target := range []string{tt.host, tt.host + ":80", "[" + tt.host + "]:80", tt.host + "/udp"} {
			if e, err := p.Explain(target); err == nil && e.Verdict.Allowed {
				t.Errorf("%s: %q is explained as allowed: %+v", tt.about, target, e)
			} else if err != nil && caisson.KindOf(err) != caisson.Invalid {
				t.Errorf("%s: %q: %v", tt.about, target, err)
			}
		}
		if v := p.DecideFlow(caisson.Flow{Protocol: "tcp", Dst: at("203.0.113.9", 80), Names: []string{"a.example"}}); !v.Allowed {
			t.Fatalf("the policy allows nothing: %+v", v)
		}
		addr, err := netip.ParseAddr(tt.host)
		if err != nil {
			continue
		}
		for _, names := range [][]string{nil, {"a.example"}, {"www.example.com", "localhost"}} {
			for _, protocol := range []string{"tcp", "udp"} {
				if v := p.DecideFlow(caisson.Flow{Protocol: protocol, Dst: netip.AddrPortFrom(addr, 80), Names: names}); v.Allowed {
					t.Errorf("%s: %s to %s with names %v is allowed: %+v", tt.about, protocol, addr, names, v)
				}
			}
		}
		if v := p.DecideAddress("a.example", addr); v.Allowed {
			t.Errorf("%s: a name may be answered with %s: %+v", tt.about, addr, v)
		}
	}
}

// The documentation ranges stand for the public internet in tests, so they must be treated like it.
func TestDocumentationRangesAreOrdinary(t *testing.T) {
	p := compile(t, allow("*"), allow("::/0"))
	for _, addr := range []string{"192.0.2.1", "198.51.100.1", "203.0.113.1", "2001:db8::1", "3fff::1", "1.1.1.1", "2606:4700::1111", "::ffff:8.8.8.8"} {
		if v := p.DecideAddress("a.example", netip.MustParseAddr(addr)); !v.Allowed {
			t.Errorf("%s: %+v", addr, v)
		}
	}
}

// An address can be allowed by naming it: every range by its CIDR, except for the addresses with a narrower range, and every
// single address by itself.
func TestSpecialRangesCanBeNamed(t *testing.T) {
	for _, b := range append(append([]block{}, blocks4...), blocks6...) {
		last := b.Addr().AsSlice()
		for i := b.Bits(); i < len(last)*8; i++ {
			last[i/8] |= 0x80 >> (i % 8)
		}
		addr, _ := netip.AddrFromSlice(last)
		if v := compile(t, allow(addr.String())).DecideAddress("", addr); !v.Allowed {
			t.Errorf("%s: %s by itself: %+v", b.what, addr, v)
		}
		if v := compile(t, allow("0.0.0.0/0"), allow("::/0"), allow("*")).DecideAddress("a.example", addr); v.Allowed {
			t.Errorf("%s: %s is allowed: %+v", b.what, addr, v)
		}
		narrow, ok := specialBlock(addr)
		if !ok {
			t.Fatalf("%s is not special", addr)
		}
		if v := compile(t, allow(narrow.Prefix.String())).DecideAddress("", addr); !v.Allowed {
			t.Errorf("%s: %s by %s: %+v", b.what, addr, narrow.Prefix, v)
		}
		if narrow.Bits() > 0 {
			wider := netip.PrefixFrom(narrow.Addr(), narrow.Bits()-1).Masked()
			if outer, ok := specialBlock(wider.Addr()); ok && outer.covers(wider) && outer.Contains(addr) {
				continue // the additional bit belongs to an enclosing range
			}
			if v := compile(t, allow(wider.String())).DecideAddress("", addr); v.Allowed {
				t.Errorf("%s: %s by %s: %+v", b.what, addr, wider, v)
			}
		}
	}
}
