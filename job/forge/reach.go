package forge

import (
	"net"
	"net/netip"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/reach"
)

const dialTime = 20 * time.Second // time limit for connecting to a forge

// dialer returns a dialer for connections to a forge that refuses the addresses for which [checkReachable] returns an error.
// loopback: the host of its API is a loopback address or below localhost. local permits all addresses. own: those of this host.
func dialer(scheme string, loopback, local bool, own reach.Host) *net.Dialer {
	return reach.Dialer(dialTime, func(a netip.AddrPort) error { return checkReachable(a.Addr(), scheme, loopback, local, own) })
}

// checkReachable returns nil if a token may be sent to a. Without TLS, a must be a loopback address, regardless of the host name.
func checkReachable(a netip.Addr, scheme string, loopback, local bool, own reach.Host) error {
	if scheme != "https" && !a.Unmap().IsLoopback() {
		return caisson.Errorf(caisson.Denied, "the token is not sent to %s without TLS", a)
	}
	return own.Check(a, loopback, local)
}
