package image

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/reach"
)

const dialTimeout = 20 * time.Second

// dialer returns how to connect on behalf of a pull from host[:port]. Names are resolved as part of a dial, so what a
// name means cannot change between the check and the use.
func (s source) dialer(host string) func(ctx context.Context, network, address string) (net.Conn, error) {
	usual := reach.Dialer(dialTimeout, onlyPlausible(isLoopback(host)))
	if s.Local {
		return usual.DialContext
	}
	public := reach.Dialer(dialTimeout, onlyPublic)
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
func onlyPlausible(loopback bool) func(netip.AddrPort) error {
	return func(ap netip.AddrPort) error {
		if a := ap.Addr().Unmap(); !reach.Plausible(a, loopback) {
			return caisson.Errorf(caisson.Denied, "the registry leads to the address %s, which cannot be a registry's", a)
		}
		return nil
	}
}

// onlyPublic refuses what this host can reach and the rest of the world cannot: whoever holds a token would otherwise
// look around in the networks that this host is in. The error does not say what a name resolves to.
func onlyPublic(ap netip.AddrPort) error {
	public, own := reach.Public(ap.Addr()), false
	if public {
		var err error
		if own, err = isOwn(ap); err != nil {
			return err
		}
	}
	if own || !public {
		return caisson.Errorf(caisson.Denied, "with a token only registries at public addresses can be reached; "+
			"pull the image on the host, or have its administrator list the registry in insecureRegistries")
	}
	return nil
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
