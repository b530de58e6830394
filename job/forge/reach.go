package forge

import (
	"net"
	"net/netip"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/reach"
)

const dialTime = 20 * time.Second // time limit for connecting to a forge

// dialer returns a dialer for connections to a forge. Unless scheme is https, it connects only to loopback addresses. These are
// allowed only if loopback is set: the URL of the API names a loopback address, localhost or a name below it. Unless local is
// set (see Server.Local), loopback and private addresses, and own, the addresses of this host, are refused.
func dialer(scheme string, loopback, local bool, own reach.Host) *net.Dialer {
	return reach.Dialer(dialTime, func(a netip.AddrPort) error { return checkReachable(a.Addr(), scheme, loopback, local, own) })
}

// checkReachable returns nil if a token may be sent to the address a. Unless scheme is https, a must be a loopback address. It
// may be one only if loopback is set. Unless local is set, a must be public and none of own, the addresses of this host.
func checkReachable(a netip.Addr, scheme string, loopback, local bool, own reach.Host) error {
	if scheme != "https" && !a.Unmap().IsLoopback() {
		return caisson.Errorf(caisson.Denied, "the token is not sent to %s without TLS", a)
	}
	return own.Check(a, loopback, local)
}
