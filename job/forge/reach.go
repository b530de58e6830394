package forge

import (
	"net"
	"net/netip"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/reach"
)

const dialTime = 20 * time.Second // time limit for connecting to a forge

// dialer returns a dialer for connections to a forge. It refuses an address if [checkReachable] with these arguments fails.
func dialer(scheme string, loopback, local bool, own reach.Host) *net.Dialer {
	return reach.Dialer(dialTime, func(a netip.AddrPort) error { return checkReachable(a.Addr(), scheme, loopback, local, own) })
}

// checkReachable returns nil if a token may be sent to the address a. Unless scheme is https, a must be a loopback address.
// That is allowed only if loopback is set: the host of the API is a loopback address, localhost or below localhost. Unless
// local is set, a must be a public address and none of own, the addresses of this host.
func checkReachable(a netip.Addr, scheme string, loopback, local bool, own reach.Host) error {
	if scheme != "https" && !a.Unmap().IsLoopback() {
		return caisson.Errorf(caisson.Denied, "the token is not sent to %s without TLS", a)
	}
	return own.Check(a, loopback, local)
}
