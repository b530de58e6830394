package flow

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	caisson "github.com/caisson-dev/caisson"
	"golang.org/x/sys/unix"
)

// Keepalive, on both sides of a connection: a peer that is gone is noticed after some five minutes.
const (
	keepaliveIdle     = 2 * time.Minute
	keepaliveInterval = 30 * time.Second
	keepaliveCount    = 6
)

// NewDialer returns a Dialer that connects from the host's own network. Forbidden, called for each dial, returns what no
// policy can allow; an unspecified address means its port at every address of the host.
func NewDialer(forbidden func() []netip.AddrPort) Dialer {
	return &hostDialer{
		forbidden: forbidden,
		bind4:     bindTells(unix.AF_INET, netip.AddrFrom4([4]byte{192, 0, 2, 1})),
		bind6:     bindTells(unix.AF_INET6, netip.AddrFrom16([16]byte{0: 0x20, 1: 0x01, 2: 0x0d, 3: 0xb8, 15: 1})),
	}
}

type hostDialer struct {
	forbidden    func() []netip.AddrPort
	bind4, bind6 bool // binding to an address tells whether it is the host's own
}

// bindTells says whether binding to an address fails if it is not the host's own; with the sysctl ip_nonlocal_bind it does
// not. Nobody, a documentation address, should be nobody's.
func bindTells(family int, nobody netip.Addr) bool {
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return unix.Bind(fd, sockaddr(netip.AddrPortFrom(nobody, 0))) != nil
}

// Own asks the kernel in two ways. To bind to an address succeeds if it is local, which includes all of 127.0.0.0/8 and
// other networks on the loopback interface, broadcast and multicast. And a datagram to an address of its own leaves the
// host from that same address.
func (d *hostDialer) Own(addr netip.Addr) (bool, error) {
	addr = addr.Unmap()
	if !addr.IsValid() || addr.IsUnspecified() || addr.IsLoopback() || addr.IsMulticast() {
		return true, nil
	}
	family, bindTells := unix.AF_INET, d.bind4
	if addr.Is6() {
		family, bindTells = unix.AF_INET6, d.bind6
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false, fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(fd)
	if bindTells {
		switch err := unix.Bind(fd, sockaddr(netip.AddrPortFrom(addr, 0))); {
		case err == nil:
			return true, nil
		case !errors.Is(err, unix.EADDRNOTAVAIL):
			return false, fmt.Errorf("bind: %w", err)
		}
	}
	if err := unix.Connect(fd, sockaddr(netip.AddrPortFrom(addr, 9))); err != nil {
		return false, fmt.Errorf("connect: %w", err)
	}
	from, err := unix.Getsockname(fd)
	if err != nil {
		return false, fmt.Errorf("getsockname: %w", err)
	}
	switch from := from.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(from.Addr) == addr, nil
	case *unix.SockaddrInet6:
		return netip.AddrFrom16(from.Addr) == addr, nil
	default:
		return false, errors.New("getsockname: unknown family")
	}
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

func (d *hostDialer) DialTCP(ctx context.Context, dst netip.AddrPort) (*net.TCPConn, error) {
	if err := d.admit(dst); err != nil {
		return nil, err
	}
	dialer := net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: keepaliveIdle, Interval: keepaliveInterval, Count: keepaliveCount},
	}
	dialer.SetMultipathTCP(false)
	// Not dialer.DialTCP: that binds to no address and no port first, and the wire process may not bind TCP sockets.
	c, err := dialer.DialContext(ctx, "tcp", dst.String())
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

func (d *hostDialer) DialUDP(ctx context.Context, dst netip.AddrPort) (*net.UDPConn, error) {
	if err := d.admit(dst); err != nil {
		return nil, err
	}
	dialer := net.Dialer{Control: noBroadcast}
	c, err := dialer.DialContext(ctx, "udp", dst.String())
	if err != nil {
		return nil, err
	}
	return c.(*net.UDPConn), nil
}

// noBroadcast takes back what package net allows every datagram socket: to reach all of a network at once.
func noBroadcast(_, _ string, conn syscall.RawConn) error {
	var err error
	if cerr := conn.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BROADCAST, 0) }); cerr != nil {
		return cerr
	}
	return err
}

// admit refuses what is forbidden, in whatever form it is written.
func (d *hostDialer) admit(dst netip.AddrPort) error {
	addr := dst.Addr()
	if !addr.IsValid() || addr.Is4In6() || addr.IsUnspecified() || addr.Zone() != "" || dst.Port() == 0 {
		return caisson.Errorf(caisson.Denied, "not an address that can be connected to")
	}
	if d.forbidden == nil {
		return nil
	}
	for _, f := range d.forbidden() {
		if f.Port() != dst.Port() {
			continue
		}
		if f.Addr().Unmap().WithZone("") == addr {
			return caisson.Errorf(caisson.Denied, "the daemon's own address; no policy can allow it")
		}
		if !f.Addr().Unmap().IsUnspecified() {
			continue
		}
		if own, err := d.Own(addr); err != nil || own {
			return caisson.Errorf(caisson.Denied, "the daemon's own port; no policy can allow it")
		}
	}
	return nil
}
