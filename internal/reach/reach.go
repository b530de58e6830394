// Package reach decides which addresses a job may connect to for a given URL: users who may add a remote or pull an
// image must not be able to explore the host's networks with it.
package reach

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/caisson-dev/caisson"
)

// Dialer returns a dialer that connects only to addresses for which check returns nil. Names are resolved as part of a
// dial, so a name cannot resolve differently between the check and the use.
func Dialer(timeout time.Duration, check func(netip.AddrPort) error) *net.Dialer {
	return &net.Dialer{Timeout: timeout, KeepAlive: 15 * time.Second, ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
		ap, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		return check(ap)
	}}
}

// Check returns nil if a server named by a user may be at a, otherwise Denied. loopback means that the user's URL names this
// machine's loopback interface. local means that the user works on this machine itself and may use private addresses and the
// machine's own. The error does not distinguish own addresses from private ones, and does not depend on what listens there,
// because no packet is sent.
func (h Host) Check(a netip.Addr, loopback, local bool) error {
	a = a.Unmap()
	switch {
	case !possibleServer(a.WithZone(""), loopback):
		return caisson.Errorf(caisson.Denied, "the host leads to an address that cannot be a server's")
	case local:
		return nil
	case Public(a):
		own, err := h.IsOwn(a)
		switch {
		case err != nil && !NoRoute(err): // If there is no route to the address, the later dial returns the error.
			return err
		case !own:
			return nil
		}
	}
	return caisson.Errorf(caisson.Denied, "the host is this machine or in a private network; this is allowed only for repositories that were added on this machine")
}

// possibleServer reports whether a server may be at a at all: a is not multicast, unspecified, link-local or that of a cloud's
// metadata service, nor loopback unless loopback is set; an embedded IPv4 address is not link-local, loopback or for metadata.
func possibleServer(a netip.Addr, loopback bool) bool {
	return a.IsValid() && !a.IsLinkLocalUnicast() && !a.IsMulticast() && !a.IsUnspecified() && !slices.Contains(metadata, a) &&
		(loopback || !a.IsLoopback()) &&
		!slices.ContainsFunc(Embedded(a), func(a netip.Addr) bool {
			return a.IsLinkLocalUnicast() || a.IsLoopback() || slices.Contains(metadata, a)
		})
}

var (
	// metadata are the addresses of the metadata services of clouds, which provide secrets to machines.
	metadata = []netip.Addr{netip.MustParseAddr("fd00:ec2::254"), netip.MustParseAddr("fd00:ec2::253"), netip.MustParseAddr("fd00:ec2::23"),
		netip.MustParseAddr("fd20:ce::254"), netip.MustParseAddr("100.100.100.200"), netip.MustParseAddr("168.63.129.16"), netip.MustParseAddr("192.0.0.192")}
	// private4 are the IPv4 networks that are not public. 168.63.129.16 is Azure's virtual address for each machine.
	// The documentation networks are not included: they are unrouted, or in private use.
	private4 = prefixes("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "168.63.129.16/32", "169.254.0.0/16",
		"172.16.0.0/12", "192.0.0.0/24", "192.168.0.0/16", "198.18.0.0/15", "224.0.0.0/4", "240.0.0.0/4")
	// public6 are the IPv6 addresses that are assigned for public use.
	public6 = netip.MustParsePrefix("2000::/3")
	// tunnels6 are the addresses in public6 that embed an IPv4 address (Teredo, 6to4). They do not count as public.
	tunnels6 = prefixes("2001::/32", "2002::/16")
	// nat64 contains the IPv6 addresses with which a network without IPv4 reaches IPv4 addresses (RFC 6052).
	nat64 = netip.MustParsePrefix("64:ff9b::/96")
)

// prefixes parses a list of networks in CIDR notation.
func prefixes(list ...string) []netip.Prefix {
	parsed := make([]netip.Prefix, len(list))
	for i, s := range list {
		parsed[i] = netip.MustParsePrefix(s)
	}
	return parsed
}

// Public reports whether a is publicly reachable, as far as the address shows.
func Public(a netip.Addr) bool {
	a = a.Unmap()
	in := func(p netip.Prefix) bool { return p.Contains(a) }
	switch {
	case a.Is4():
		return !slices.ContainsFunc(private4, in)
	case nat64.Contains(a):
		b := a.As16()
		return Public(netip.AddrFrom4([4]byte(b[12:])))
	}
	return a.Zone() == "" && public6.Contains(a) && !slices.ContainsFunc(tunnels6, in)
}
