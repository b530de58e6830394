package egress

import (
	"net/netip"

	"github.com/caisson-dev/caisson/internal/reach"
)

// A block is a range of addresses outside the public internet, or of a service that trusts every client.
type block struct {
	netip.Prefix
	what   string // what the addresses are, for messages
	reason string // Verdict.Reason for an address in the range if no rule decides
}

func newBlock(prefix, what string) block {
	return block{netip.MustParsePrefix(prefix), what, "the address is " + what + " (" + prefix + "), and no rule allows it by address"}
}

// The ranges of addresses that are not on the public internet, the narrowest first where they overlap. The documentation ranges
// (192.0.2.0/24, 2001:db8::/32 and so on) are omitted: they are not routed by default.
var (
	blocks4 = []block{
		newBlock("169.254.169.254/32", "a metadata service"),
		newBlock("169.254.169.253/32", "a metadata service"),
		newBlock("169.254.170.2/32", "a metadata service"),  // of Amazon's container service
		newBlock("169.254.170.23/32", "a metadata service"), // of Amazon's Kubernetes service
		newBlock("168.63.129.16/32", "a metadata service"),  // of Azure
		newBlock("100.100.100.200/32", "a metadata service"),
		newBlock("192.0.0.192/32", "a metadata service"), // of Oracle's cloud
		newBlock("0.0.0.0/8", "unspecified"),
		newBlock("10.0.0.0/8", "private"),
		newBlock("100.64.0.0/10", "a carrier's own"),
		newBlock("127.0.0.0/8", "loopback"),
		newBlock("169.254.0.0/16", "link-local"),
		newBlock("172.16.0.0/12", "private"),
		newBlock("192.0.0.0/24", "reserved"),
		newBlock("192.88.99.0/24", "a 6to4 relay"),
		newBlock("192.168.0.0/16", "private"),
		newBlock("198.18.0.0/15", "for benchmarks"),
		newBlock("224.0.0.0/4", "multicast"),
		newBlock("255.255.255.255/32", "broadcast"),
		newBlock("240.0.0.0/4", "reserved"),
	}
	blocks6 = []block{
		newBlock("fd00:ec2::254/128", "a metadata service"),
		newBlock("fd00:ec2::253/128", "a metadata service"),
		newBlock("fd00:ec2::23/128", "a metadata service"),
		newBlock("fd20:ce::254/128", "a metadata service"), // of Google's cloud
		newBlock("::/128", "unspecified"),
		newBlock("::1/128", "loopback"),
		newBlock("::/96", "IPv4-compatible"),
		newBlock("::ffff:0:0:0/96", "a translation of IPv4"),
		newBlock("64:ff9b::/96", "a translation of IPv4"),
		newBlock("64:ff9b:1::/48", "a translation of IPv4"),
		newBlock("100::/64", "discarded"),
		newBlock("2001::/32", "a Teredo tunnel"),
		newBlock("2001::/23", "reserved"),
		newBlock("2002::/16", "a 6to4 tunnel"),
		newBlock("fc00::/7", "private"),
		newBlock("fe80::/10", "link-local"),
		newBlock("fec0::/10", "site-local"),
		newBlock("ff00::/8", "multicast"),
		newBlock("::/3", "not in use on the internet"), // the addresses in use are in 2000::/3
		newBlock("4000::/2", "not in use on the internet"),
		newBlock("8000::/1", "not in use on the internet"),
	}
)

// specialBlock returns the narrowest block that contains addr, which must not be IPv4-mapped; ok is false for an address on the
// public internet. If addr is an IPv6 address that embeds an IPv4 address of a block, b is that block, translated to IPv6
// addresses.
func specialBlock(addr netip.Addr) (b block, ok bool) {
	if addr.Is4() {
		return findBlock(blocks4, addr)
	}
	if b, ok = findBlock(blocks6, addr); !ok {
		return block{}, false
	}
	for _, e := range reach.Embeddings {
		if !e.In.Contains(addr) {
			continue
		}
		inner, found := findBlock(blocks4, e.Extract(addr))
		if !found {
			continue
		}
		if seen, err := addr.Prefix(e.Bits(inner.Bits())); err == nil && seen.Bits() > b.Bits() {
			b = block{seen, inner.what, inner.reason}
		}
	}
	return b, true
}

// findBlock returns the first of blocks that contains addr.
func findBlock(blocks []block, addr netip.Addr) (block, bool) {
	for i := range blocks {
		if blocks[i].Contains(addr) {
			return blocks[i], true
		}
	}
	return block{}, false
}

// covers reports whether b contains all addresses of the prefix of a rule.
func (b block) covers(rule netip.Prefix) bool {
	return rule.Bits() >= b.Bits() && b.Contains(rule.Addr())
}
