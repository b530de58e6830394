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

// dialTimeout limits the time to establish one connection to a registry.
const dialTimeout = 20 * time.Second

// dialer returns the dial function for a pull from host[:port]. Names are resolved as part of the dial, so that the address
// that is checked is the address to which it connects.
func (s source) dialer(host string) func(ctx context.Context, network, address string) (net.Conn, error) {
	usual := reach.Dialer(dialTimeout, s.denyMetadata(isLoopback(host)))
	if s.Local {
		return usual.DialContext
	}
	public := reach.Dialer(dialTimeout, s.denyPrivate)
	listed := slices.Contains(s.Plain, host)
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		// A registry that the administrator lists may be at a private address, but the hosts that it redirects to may not.
		if listed && (address == host || address == host+":443" || address == host+":80") {
			return usual.DialContext(ctx, network, address)
		}
		return public.DialContext(ctx, network, address)
	}
}

// denyMetadata returns a check that denies the addresses at which no registry can be, but to which a malicious registry could
// redirect a pull: cloud metadata services (the pull would send their response to the registry as a token) and, unless loopback
// is set, this host's loopback interface.
func (s source) denyMetadata(loopback bool) func(netip.AddrPort) error {
	return func(ap netip.AddrPort) error {
		err := s.Own.Check(ap.Addr(), loopback, true)
		if caisson.KindOf(err) == caisson.Denied {
			return caisson.Errorf(caisson.Denied, "the registry leads to the address %s, which cannot be a registry's", ap.Addr().Unmap())
		}
		return err
	}
}

// denyPrivate returns an error if ap is a private address or one of this host, so that remote callers cannot probe the host's
// networks with pulls. The error does not contain the address.
func (s source) denyPrivate(ap netip.AddrPort) error {
	err := s.Own.Check(ap.Addr(), false, false)
	if caisson.KindOf(err) == caisson.Denied {
		return caisson.Errorf(caisson.Denied, "callers with a token can only use registries at public addresses of other machines; "+
			"pull the image on the host, or have its administrator list the registry in insecureRegistries")
	}
	return err
}

// isLoopback reports whether host[:port] is "localhost" or a loopback address.
func isLoopback(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	a, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return host == "localhost" || err == nil && a.IsLoopback()
}
