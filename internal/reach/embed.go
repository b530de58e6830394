package reach

import "net/netip"

// An Embedding is a place within IPv6 addresses where an IPv4 address stands: a translator or the end of a tunnel sends packets there.
type Embedding struct {
	In     netip.Prefix // the addresses that have it
	bytes  [4]int       // which bytes of the address are those of the IPv4 address
	invert bool         // Teredo's clients
}

// Embeddings are the forms in use, besides IPv4-mapped addresses, which netip knows. RFC 6052 has four layouts for a translator's own
// prefix, which 64:ff9b:1::/48 leaves open; all are looked at.
var Embeddings = []Embedding{
	{In: netip.MustParsePrefix("::/96"), bytes: [4]int{12, 13, 14, 15}},
	{In: netip.MustParsePrefix("::ffff:0:0:0/96"), bytes: [4]int{12, 13, 14, 15}},
	{In: nat64, bytes: [4]int{12, 13, 14, 15}},
	{In: netip.MustParsePrefix("64:ff9b:1::/48"), bytes: [4]int{12, 13, 14, 15}},
	{In: netip.MustParsePrefix("64:ff9b:1::/48"), bytes: [4]int{6, 7, 9, 10}},
	{In: netip.MustParsePrefix("64:ff9b:1::/48"), bytes: [4]int{7, 9, 10, 11}},
	{In: netip.MustParsePrefix("64:ff9b:1::/48"), bytes: [4]int{9, 10, 11, 12}},
	{In: netip.MustParsePrefix("2002::/16"), bytes: [4]int{2, 3, 4, 5}},
	{In: netip.MustParsePrefix("2001::/32"), bytes: [4]int{4, 5, 6, 7}},                   // the server
	{In: netip.MustParsePrefix("2001::/32"), bytes: [4]int{12, 13, 14, 15}, invert: true}, // the client
}

// Extract returns the IPv4 address in a, which is in e.In.
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

// Bits returns how many bits of the IPv6 address the first n bits of the IPv4 address end at.
func (e Embedding) Bits(n int) int {
	if n == 0 {
		return e.bytes[0] * 8
	}
	return e.bytes[(n-1)/8]*8 + (n-1)%8 + 1
}

// thisNetwork is never in an embedding, but is what layouts that an address does not have read from its zeros.
var thisNetwork = netip.MustParsePrefix("0.0.0.0/8")

// Embedded returns the IPv4 addresses that a, if it is an IPv6 address, may stand for.
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
