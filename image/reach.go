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
	usual := reach.Dialer(dialTimeout, s.plausible(isLoopback(host)))
	if s.Local {
		return usual.DialContext
	}
	public := reach.Dialer(dialTimeout, s.public)
	listed := slices.Contains(s.Plain, host)
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		// What the administrator lists may be anywhere, but not what it redirects to.
		if listed && (address == host || address == host+":443" || address == host+":80") {
			return usual.DialContext(ctx, network, address)
		}
		return public.DialContext(ctx, network, address)
	}
}

// plausible refuses addresses where no registry is but where a registry that lies could send us for its own ends:
// a host's metadata service (whose answer would be sent back as if it were a token), and this host's loopback interface.
func (s source) plausible(loopback bool) func(netip.AddrPort) error {
	return func(ap netip.AddrPort) error {
		err := s.Own.Check(ap.Addr(), loopback, true)
		if caisson.KindOf(err) == caisson.Denied {
			return caisson.Errorf(caisson.Denied, "the registry leads to the address %s, which cannot be a registry's", ap.Addr().Unmap())
		}
		return err
	}
}

// public refuses what this host can reach and the rest of the world cannot, and the host itself: whoever holds a token would otherwise
// look around there. The error does not say what a name resolves to.
func (s source) public(ap netip.AddrPort) error {
	err := s.Own.Check(ap.Addr(), false, false)
	if caisson.KindOf(err) == caisson.Denied {
		return caisson.Errorf(caisson.Denied, "with a token only registries at public addresses of other machines can be reached; "+
			"pull the image on the host, or have its administrator list the registry in insecureRegistries")
	}
	return err
}

// isLoopback reports whether host[:port] names this host.
func isLoopback(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	a, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return host == "localhost" || err == nil && a.IsLoopback()
}
