package wire

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	caisson "github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/wire/flow"
)

// A limitedDialer is a dialer that refuses connections of sandboxes when few file descriptors are left, so that some remain for
// new wires, model calls, DNS lookups and journals. One sandbox may have a thousand connections; all sandboxes together must not
// exhaust the descriptors that the process needs.
type limitedDialer struct {
	flow.Dialer
	maxFD int // sockets of sandboxes must have descriptors below this number
}

// newLimitedDialer returns a limitedDialer that dials with d. most is the process's limit of descriptors, of which the
// last tenth is not available to connections of sandboxes.
func newLimitedDialer(d flow.Dialer, most int) *limitedDialer {
	return &limitedDialer{Dialer: d, maxFD: most - most/10}
}

// descriptorLimit returns the number of descriptors that this process may have once it is confined. It must be called before
// confineSelf, because a confined process cannot query the limit.
func descriptorLimit() (int, error) {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 0, fmt.Errorf("limit of descriptors: %w", err)
	}
	return int(min(l.Max, maxDescriptors)), nil
}

// checkFree returns an Exhausted error if all descriptors below maxFD are in use. The kernel assigns the lowest free number, so
// a new descriptor then has a number of maxFD or higher. Concurrent dials can exceed the bound by about one per processor.
func (r *limitedDialer) checkFree() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		unix.Close(fd)
	}
	if err != nil || fd >= r.maxFD {
		return caisson.Errorf(caisson.Exhausted, "the sandboxes of this host have too many connections; try again")
	}
	return nil
}

// DialTCP connects to dst, or returns Exhausted if too few descriptors are left.
func (r *limitedDialer) DialTCP(ctx context.Context, dst netip.AddrPort) (*net.TCPConn, error) {
	if err := r.checkFree(); err != nil {
		return nil, err
	}
	return r.Dialer.DialTCP(ctx, dst)
}

// DialUDP returns a socket connected to dst, or Exhausted if too few descriptors are left.
func (r *limitedDialer) DialUDP(ctx context.Context, dst netip.AddrPort) (*net.UDPConn, error) {
	if err := r.checkFree(); err != nil {
		return nil, err
	}
	return r.Dialer.DialUDP(ctx, dst)
}
