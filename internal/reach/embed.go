package reach

import "net/netip"

// An Embedding describes the position of an IPv4 address within IPv6 addresses: translators and tunnel endpoints
// forward packets to it.
type Embedding struct {
	In     netip.Prefix // The IPv6 addresses with this embedding.
	bytes  [4]int       // The bytes of the IPv6 address that contain the IPv4 address.
	invert bool         // The bytes are inverted, as in addresses of Teredo clients.
}

// Embeddings are all embeddings in use except that of IPv4-mapped addresses, which package netip handles. RFC 6052 has four
// layouts for a translator's own prefix, and 64:ff9b:1::/48 may use any of them; all are checked.
var Embeddings = []Embedding{
	{In: netip.MustParsePrefix("::/96"), bytes: [4]int{12, 13, 14, 15}},
	{In: netip.MustParsePrefix("::ffff:0:0:0/96"), bytes: [4]int{12, 13, 14, 15}},
	{In: nat64, bytes: [4]int{12, 13, 14, 15}},
	{In: netip.MustParsePrefix("64:ff9b:1::/48"), bytes: [4]int{12, 13, 14, 15}},
	{In: netip.MustParsePrefix("64:ff9b:1::/48"), bytes: [4]int{6, 7, 9, 10}},
	{In: netip.MustParsePrefix("64:ff9b:1::/48"), bytes: [4]int{7, 9, 10, 11}},
	{In: netip.MustParsePrefix("64:ff9b:1::/48"), bytes: [4]int{9, 10, 11, 12}},
	{In: netip.MustParsePrefix("2002::/16"), bytes: [4]int{2, 3, 4, 5}},
	{In: netip.MustParsePrefix("2001::/32"), bytes: [4]int{4, 5, 6, 7}},                   // The address of the Teredo server.
	{In: netip.MustParsePrefix("2001::/32"), bytes: [4]int{12, 13, 14, 15}, invert: true}, // The address of the Teredo client.
}

// Extract returns the IPv4 address in a. a must be in e.In.
func (e Embedding) Extract(a netip.Addr) netip.Addr {
	in := a.As16()
	var out [4]byte
	for i, at := range e.bytes {
		out[i] = in[at]
		if e.invert {
			out[i] = ^out[i]
		}
	}
	return netip.AddrFrom4(out)
}

// Bits returns the length of the IPv6 prefix that ends with the first n bits of the IPv4 address.
func (e Embedding) Bits(n int) int {
	if n == 0 {
		return e.bytes[0] * 8
	}
	return e.bytes[(n-1)/8]*8 + (n-1)%8 + 1
}

// thisNetwork contains the IPv4 addresses that Embedded omits, because they are never embedded. They result from
// [Embedding.Extract] if an IPv6 address has zeros where another layout has the IPv4 address.
var thisNetwork = netip.MustParsePrefix("0.0.0.0/8")

// Embedded returns the IPv4 addresses that may be embedded in a, or nil if a is not an IPv6 address.
func Embedded(a netip.Addr) []netip.Addr {
	if !a.Is6() || a.Is4In6() {
		return nil
	}
	a = a.WithZone("")
	var list []netip.Addr
	for _, e := range Embeddings {
		if e.In.Contains(a) {
			if inner := e.Extract(a); !thisNetwork.Contains(inner) {
				list = append(list, inner)
			}
		}
	}
	return list
}
