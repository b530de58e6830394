package forge

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/caisson-dev/caisson"
)

// dialer returns how to connect to a forge. Names are resolved as part of a dial, so what a name means cannot change between the
// check and the use. Loopback says that the API's host is a name of this one.
func dialer(scheme string, loopback, local bool) *net.Dialer {
	return &net.Dialer{Timeout: 20 * time.Second, ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
		ap, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		return reachable(ap.Addr().Unmap(), scheme, loopback, local)
	}}
}

func reachable(a netip.Addr, scheme string, loopback, local bool) error {
	switch {
	case scheme != "https" && !a.IsLoopback():
		return caisson.Errorf(caisson.Denied, "the token is not sent to %s without TLS", a)
	case a.IsLinkLocalUnicast(), a.IsMulticast(), a.IsUnspecified(), slices.Contains(metadata, a), a.IsLoopback() && !loopback:
		return caisson.Errorf(caisson.Denied, "the forge leads to the address %s, which cannot be a forge's", a)
	case local || public(a):
		return nil
	}
	// What the name leads to is not said.
	return caisson.Errorf(caisson.Denied, "with a token only forges at public addresses can be reached")
}

var (
	// metadata are addresses where clouds tell a machine its secrets.
	metadata = []netip.Addr{netip.MustParseAddr("fd00:ec2::254"), netip.MustParseAddr("100.100.100.200"), netip.MustParseAddr("168.63.129.16")}
	// private4 is what of IPv4 is not everybody's; public6 what has been assigned of IPv6, and tunnels6 what of it stands for an
	// address of IPv4, as do those of nat64.
	private4 = prefixes("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
		"192.168.0.0/16", "198.18.0.0/15", "224.0.0.0/4", "240.0.0.0/4")
	public6  = netip.MustParsePrefix("2000::/3")
	tunnels6 = prefixes("2001::/32", "2002::/16")
	nat64    = netip.MustParsePrefix("64:ff9b::/96")
)

func prefixes(list ...string) []netip.Prefix {
	parsed := make([]netip.Prefix, len(list))
	for i, s := range list {
		parsed[i] = netip.MustParsePrefix(s)
	}
	return parsed
}

// public reports whether everybody can reach a, as far as the address tells.
func public(a netip.Addr) bool {
	in := func(p netip.Prefix) bool { return p.Contains(a) }
	switch {
	case a.Is4():
		return !slices.ContainsFunc(private4, in)
	case nat64.Contains(a):
		b := a.As16()
		return public(netip.AddrFrom4([4]byte(b[12:])))
	}
	return public6.Contains(a) && !slices.ContainsFunc(tunnels6, in)
}
