package reach

import (
	"errors"
	"net"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// Listen returns a TCP listener on an address of the configuration. setting is the key of the address, which errors name.
func Listen(setting, addr string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	switch {
	case err == nil:
		return l, nil
	case errors.Is(err, unix.EADDRINUSE):
		return nil, &caisson.Error{Kind: caisson.Conflict, Field: setting, Err: err, Msg: "another program listens on " + addr +
			" already; choose another port, or end that program (ss -ltnp shows it)"}
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return nil, caisson.Invalidf(setting, "%s is no address of this machine; ip addr shows those there are", addr)
	default:
		return nil, caisson.Wrap(err, caisson.Unavailable, "cannot listen on %s: %v", addr, err)
	}
}
