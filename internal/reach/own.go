package reach

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// A Host determines which addresses are this machine's own. The zero Host uses only the kernel's information. It is
// passed to worker jobs as JSON.
type Host struct {
	// PublicAddresses lead to this machine although no interface has them: addresses of a router that translates them one to one.
	PublicAddresses []netip.Prefix `json:"publicAddresses,omitempty"`
}

// IsOwn reports whether packets to a are delivered to this machine, or to several machines. It sends no packets and
// caches nothing, because interfaces come and go. An IPv6 address that embeds an own IPv4 address is own. [NoRoute]
// reports whether the error means that there is no route to a.
//
// Two methods are used. First, binding a socket to an address succeeds if the address is local; that includes 127.0.0.0/8 and
// other networks on the loopback interface, broadcast and multicast. Second, the kernel chooses as the source address of a
// datagram to an own address that same address.
func (h Host) IsOwn(a netip.Addr) (bool, error) {
	a = a.Unmap()
	if !a.IsValid() || a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || h.Listed(a) {
		return true, nil
	}
	for _, inner := range Embedded(a) {
		if inner.IsLoopback() || inner.IsMulticast() {
			return true, nil
		}
		// An error because of a missing route is ignored: a translator may have a route to the IPv4 address although this
		// machine has none.
		if own, err := isLocal(inner); own || err != nil && !NoRoute(err) {
			return own, err
		}
	}
	return isLocal(a)
}

// Listed reports whether a, or an IPv4 address embedded in it, leads to this machine according to h.PublicAddresses.
func (h Host) Listed(a netip.Addr) bool {
	if len(h.PublicAddresses) == 0 {
		return false
	}
	return slices.ContainsFunc(append(Embedded(a), a.Unmap().WithZone("")), func(a netip.Addr) bool {
		return slices.ContainsFunc(h.PublicAddresses, func(p netip.Prefix) bool { return p.Contains(a) })
	})
}

// Loopback reports whether host is certain to be this machine. A name other than localhost may resolve to another address later.
func Loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || (err == nil && ip.IsLoopback())
}

// NoRoute reports whether an error of [Host.IsOwn] means that this machine has no route to the address.
func NoRoute(err error) bool {
	return errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH)
}

// isLocal reports whether the kernel delivers packets to a on this machine. a must be valid and not IPv4-mapped.
func isLocal(a netip.Addr) (bool, error) {
	family := unix.AF_INET
	if a.Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false, fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(fd)
	tells := bindRejectsForeign(family)
	if tells {
		switch err := unix.Bind(fd, sockaddr(netip.AddrPortFrom(a, 0))); {
		case err == nil:
			return true, nil
		case !errors.Is(err, unix.EADDRNOTAVAIL):
			return false, fmt.Errorf("bind: %w", err)
		}
	}
	if err := unix.Connect(fd, sockaddr(netip.AddrPortFrom(a, 9))); err != nil {
		return false, fmt.Errorf("connect: %w", err)
	}
	if !tells || a.Is6() {
		if loop, err := throughLoopback(fd, a.Is6()); loop || err != nil {
			return loop, err
		}
	}
	from, err := unix.Getsockname(fd)
	if err != nil {
		return false, fmt.Errorf("getsockname: %w", err)
	}
	switch from := from.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(from.Addr) == a, nil
	case *unix.SockaddrInet6:
		return netip.AddrFrom16(from.Addr) == a.WithZone(""), nil
	default:
		return false, errors.New("getsockname: unknown family")
	}
}

// throughLoopback reports whether the route of the connected socket fd uses the loopback interface. It does for own addresses
// whose packets have another source address: those that are own only because of a route, and secondary addresses of an
// interface. It compares the MTU: the loopback interface has 65,536 by default, of which IPv4 reports 65,535, and external
// interfaces have less.
func throughLoopback(fd int, ip6 bool) (bool, error) {
	level, option, least := unix.IPPROTO_IP, unix.IP_MTU, 65535
	if ip6 {
		level, option, least = unix.IPPROTO_IPV6, unix.IPV6_MTU, 65536
	}
	mtu, err := unix.GetsockoptInt(fd, level, option)
	if err != nil {
		return false, fmt.Errorf("getsockopt: %w", err)
	}
	return mtu >= least, nil
}

// bindRejectsForeign reports whether binding to an address fails if it is not the host's own. With the sysctl ip_nonlocal_bind,
// which may be changed at any time, binding does not fail. bindRejectsForeign tries documentation addresses, which should be on
// no host.
func bindRejectsForeign(family int) bool {
	a := netip.AddrFrom4([4]byte{192, 0, 2, 1})
	if family == unix.AF_INET6 {
		a = netip.AddrFrom16([16]byte{0: 0x20, 1: 0x01, 2: 0x0d, 3: 0xb8, 15: 1})
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return unix.Bind(fd, sockaddr(netip.AddrPortFrom(a, 0))) != nil
}

// sockaddr converts a to the type that system calls of package unix take.
func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}
