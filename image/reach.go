package image

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/caisson-dev/caisson"
)

const dialTimeout = 20 * time.Second

// control is called with an address, after names have been resolved and before anything is sent there.
type control = func(ctx context.Context, network, address string, c syscall.RawConn) error

// dialer returns how to connect on behalf of a pull from host[:port]. Names are resolved as part of a dial, so what a
// name means cannot change between the check and the use.
func (s source) dialer(host string) func(ctx context.Context, network, address string) (net.Conn, error) {
	usual := &net.Dialer{Timeout: dialTimeout, ControlContext: onlyPlausible(isLoopback(host))}
	if s.Local {
		return usual.DialContext
	}
	public := &net.Dialer{Timeout: dialTimeout, ControlContext: onlyPublic}
	listed := slices.Contains(s.Plain, host)
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		// What the administrator lists may be anywhere, but not what it redirects to.
		if listed && (address == host || address == host+":443" || address == host+":80") {
			return usual.DialContext(ctx, network, address)
		}
		return public.DialContext(ctx, network, address)
	}
}

// onlyPlausible refuses addresses where no registry is but where a registry that lies could send us for its own ends:
// a host's metadata service (whose answer would be sent back as if it were a token), and this host itself.
func onlyPlausible(loopback bool) control {
	return func(_ context.Context, _, address string, _ syscall.RawConn) error {
		ap, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		a := ap.Addr().Unmap()
		switch {
		case a.IsLinkLocalUnicast(), a.IsMulticast(), a.IsUnspecified(), a == netip.MustParseAddr("fd00:ec2::254"),
			a == netip.MustParseAddr("100.100.100.200"), a.IsLoopback() && !loopback:
			return caisson.Errorf(caisson.Denied, "the registry leads to the address %s, which cannot be a registry's", a)
		}
		return nil
	}
}

// onlyPublic refuses what this host can reach and the rest of the world cannot: whoever holds a token would otherwise
// look around in the networks that this host is in. The error does not say what a name resolves to.
func onlyPublic(_ context.Context, _, address string, _ syscall.RawConn) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	own := false
	if public(ap.Addr()) {
		if own, err = isOwn(ap); err != nil {
			return err
		}
	}
	if own || !public(ap.Addr()) {
		return caisson.Errorf(caisson.Denied, "with a token only registries at public addresses can be reached; "+
			"pull the image on the host, or have its administrator list the registry in insecureRegistries")
	}
	return nil
}

var (
	// notPublic4 is what of IPv4 is not everybody's. 168.63.129.16 is Azure's for each machine's own use. The networks for
	// documentation are missing: they lead nowhere, or somebody has given them a use.
	notPublic4 = prefixes("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "168.63.129.16/32", "169.254.0.0/16",
		"172.16.0.0/12", "192.0.0.0/24", "192.168.0.0/16", "198.18.0.0/15", "224.0.0.0/4", "240.0.0.0/4")
	// public6 is what has been assigned of IPv6, and tunnels6 what of it stands for an address of IPv4.
	public6  = netip.MustParsePrefix("2000::/3")
	tunnels6 = prefixes("2001::/32", "2002::/16")
	// nat64 are IPv4 addresses as seen from networks without IPv4.
	nat64 = netip.MustParsePrefix("64:ff9b::/96")
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
	a = a.Unmap()
	in := func(p netip.Prefix) bool { return p.Contains(a) }
	switch {
	case a.Is4():
		return !slices.ContainsFunc(notPublic4, in)
	case nat64.Contains(a):
		b := a.As16()
		return public(netip.AddrFrom4([4]byte(b[12:])))
	}
	return public6.Contains(a) && !slices.ContainsFunc(tunnels6, in)
}

// isOwn reports whether an address is this host's: what goes there would come from there. Nothing is sent.
func isOwn(ap netip.AddrPort) (bool, error) {
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(ap))
	if err != nil {
		return false, err
	}
	defer c.Close()
	from, ok := c.LocalAddr().(*net.UDPAddr)
	return !ok || from.AddrPort().Addr().Unmap() == ap.Addr().Unmap(), nil
}

// isLoopback reports whether host[:port] names this host.
func isLoopback(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	a, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return host == "localhost" || err == nil && a.IsLoopback()
}
