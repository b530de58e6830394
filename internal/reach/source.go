package reach

import "net/netip"

// Source returns the source of a remote address, host:port, for limits per source: an IPv4 address, or a /64 of IPv6, because
// providers assign their customers at least a /64.
func Source(remote string) netip.Prefix {
	ap, err := netip.ParseAddrPort(remote)
	if err != nil {
		return netip.Prefix{} // all unparsable addresses count as one source
	}
	a := ap.Addr().Unmap().WithZone("")
	bits := a.BitLen()
	if a.Is6() {
		bits = 64
	}
	p, err := a.Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return p
}
