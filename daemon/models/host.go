package models

import (
	"bufio"
	"context"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/smallfile"
)

// resolvConf is the file that lists the host's nameservers.
const resolvConf = "/etc/resolv.conf"

// nameservers returns the nameservers in a resolv.conf(5) file.
func nameservers(file string) ([]netip.AddrPort, error) {
	b, err := smallfile.Read(file)
	if err != nil {
		return nil, err
	}
	var list []netip.AddrPort
	lines := bufio.NewScanner(strings.NewReader(string(b)))
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) < 2 || f[0] != "nameserver" {
			continue
		}
		if a, err := netip.ParseAddr(f[1]); err == nil {
			list = append(list, netip.AddrPortFrom(a.Unmap(), 53))
		}
	}
	return list, lines.Err()
}

// listenerAddrs returns the IP addresses and ports of listeners, given their addresses in the format of net.Listen; "" is
// skipped. For a listener on all interfaces it returns the unspecified addresses 0.0.0.0 and ::.
func listenerAddrs(listen ...string) ([]netip.AddrPort, error) {
	var list []netip.AddrPort
	for _, l := range listen {
		if l == "" {
			continue
		}
		host, port, err := net.SplitHostPort(l)
		if err != nil {
			return nil, caisson.Invalidf("listen", "%.100q is not HOST:PORT", l)
		}
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			return nil, caisson.Invalidf("listen", "%.100q has no port number", l)
		}
		addrs := []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}
		if host != "" {
			if addrs, err = hostAddrs(host); err != nil {
				return nil, caisson.Wrap(err, caisson.Invalid, "the address of the listener %.100q cannot be found; give it as a number", l)
			}
		}
		for _, a := range addrs {
			list = append(list, netip.AddrPortFrom(a.Unmap(), uint16(n)))
		}
	}
	return list, nil
}

// lookupTimeout is the timeout for resolving a listener's host name.
const lookupTimeout = 10 * time.Second

// hostAddrs returns all addresses of a host name. net.Listen listens on only one of these addresses, but which one is not known
// here.
func hostAddrs(host string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a}, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookupTimeout)
	defer cancel()
	return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
}

// watchInterval is the interval between checks of the host's nameservers.
const watchInterval = 5 * time.Second

// WatchNameservers refreshes the wire process's settings when the nameservers in resolv.conf change, until ctx is done.
func (s *Settings) WatchNameservers(ctx context.Context) error {
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	last, _ := nameservers(resolvConf)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now, err := nameservers(resolvConf)
		if err != nil || slices.Equal(now, last) {
			continue
		}
		if err := s.Wire.Refresh(ctx); err != nil && ctx.Err() == nil {
			s.Log.WarnContext(ctx, "the wire process could not be updated with the host's new nameservers", "err", err)
			continue
		}
		last = now
	}
}
