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

// A reserve connects sandboxes to the world as long as that leaves descriptors for everything else: new wires, calls of
// models, lookups of names, journals. One sandbox may have a thousand connections; all of them together must not be able to
// take what the others live on.
type reserve struct {
	flow.Dialer
	below int // sandboxes' sockets are descriptors below this
}

// newReserve keeps a tenth of the descriptors that this process may have.
func newReserve(d flow.Dialer, most int) *reserve {
	return &reserve{Dialer: d, below: most - most/10}
}

// mostDescriptors returns how many this process may have once it is confined; then it cannot ask any more.
func mostDescriptors() (int, error) {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 0, fmt.Errorf("limit of descriptors: %w", err)
	}
	return int(min(l.Max, maxDescriptors)), nil
}

// free returns an error if only the reserve is left. The kernel gives out the lowest number that is free, so that no count
// has to be kept: if the next one is below the mark, fewer than that many are in use. Dials that ask at the same moment get
// past the mark by as many as there are processors, more or less.
func (r *reserve) free() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		unix.Close(fd)
	}
	if err != nil || fd >= r.below {
		return caisson.Errorf(caisson.Exhausted, "the sandboxes of this host have too many connections; try again")
	}
	return nil
}

// DialTCP implements [flow.Dialer].
func (r *reserve) DialTCP(ctx context.Context, dst netip.AddrPort) (*net.TCPConn, error) {
	if err := r.free(); err != nil {
		return nil, err
	}
	return r.Dialer.DialTCP(ctx, dst)
}

// DialUDP implements [flow.Dialer].
func (r *reserve) DialUDP(ctx context.Context, dst netip.AddrPort) (*net.UDPConn, error) {
	if err := r.free(); err != nil {
		return nil, err
	}
	return r.Dialer.DialUDP(ctx, dst)
}
