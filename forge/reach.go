package forge

import (
	"net"
	"net/netip"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/reach"
)

const dialTime = 20 * time.Second

// dialer returns how to connect to a forge. Loopback says that its API's host is a name of this machine.
func dialer(scheme string, loopback, local bool, own reach.Host) *net.Dialer {
	return reach.Dialer(dialTime, func(a netip.AddrPort) error { return reachable(a.Addr(), scheme, loopback, local, own) })
}

// reachable is nil if a token may be sent to a: without TLS only if that is this machine, whatever the name was.
func reachable(a netip.Addr, scheme string, loopback, local bool, own reach.Host) error {
	if scheme != "https" && !a.Unmap().IsLoopback() {
		return caisson.Errorf(caisson.Denied, "the token is not sent to %s without TLS", a)
	}
	return own.Check(a, loopback, local)
}
