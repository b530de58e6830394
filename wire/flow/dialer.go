package flow

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	caisson "github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/reach"
	"golang.org/x/sys/unix"
)

// Keepalive parameters on both sides of a connection: an unreachable peer is detected after about five minutes.
const (
	keepaliveIdle     = 2 * time.Minute
	keepaliveInterval = 30 * time.Second
	keepaliveCount    = 6
)

// NewDialer returns a Dialer that uses the host's network. It calls settings for each dial.
func NewDialer(settings func() Settings) Dialer { return &hostDialer{settings} }

// Settings tell a [Dialer] how to recognize addresses of this machine, and where it must not connect to.
type Settings struct {
	Host reach.Host // determines which addresses are those of this machine
	// Forbidden are destinations that no policy can allow; an unspecified address stands for all addresses of this machine.
	Forbidden []netip.AddrPort
}

// A hostDialer is a Dialer that connects over the host's network.
type hostDialer struct{ settings func() Settings }

// Own implements [Dialer], with Host of the current settings.
func (d *hostDialer) Own(addr netip.Addr) (bool, error) { return d.settings().Host.IsOwn(addr) }

// DialTCP connects to dst, unless that is forbidden.
func (d *hostDialer) DialTCP(ctx context.Context, dst netip.AddrPort) (*net.TCPConn, error) {
	if err := d.admit(dst); err != nil {
		return nil, err
	}
	dialer := net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: keepaliveIdle, Interval: keepaliveInterval, Count: keepaliveCount},
	}
	dialer.SetMultipathTCP(false)
	// DialContext is used because dialer.DialTCP first binds to the unspecified address and port 0, and the wire process may not
	// bind TCP sockets.
	c, err := dialer.DialContext(ctx, "tcp", dst.String())
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

// DialUDP returns a socket connected to dst, unless that is forbidden.
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

// noBroadcast clears SO_BROADCAST, which package net sets on every datagram socket.
func noBroadcast(_, _ string, conn syscall.RawConn) error {
	var err error
	if cerr := conn.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BROADCAST, 0) }); cerr != nil {
		return cerr
	}
	return err
}

// admit returns a Denied error if dst is not a valid destination or is forbidden. A forbidden IPv4 address is also found if dst
// is an IPv6 address in which it is embedded.
func (d *hostDialer) admit(dst netip.AddrPort) error {
	addr := dst.Addr()
	if !addr.IsValid() || addr.Is4In6() || addr.IsUnspecified() || addr.Zone() != "" || dst.Port() == 0 {
		return caisson.Errorf(caisson.Denied, "not an address that can be connected to")
	}
	settings := d.settings()
	for _, f := range settings.Forbidden {
		if f.Port() != dst.Port() {
			continue
		}
		listener := f.Addr().Unmap().WithZone("")
		if listener == addr || slices.Contains(reach.Embedded(addr), listener) || settings.Host.Listed(addr) {
			return caisson.Errorf(caisson.Denied, "the daemon's own address; no policy can allow it")
		}
		if !listener.IsUnspecified() {
			continue
		}
		if own, err := settings.Host.IsOwn(addr); err != nil || own {
			return caisson.Errorf(caisson.Denied, "the daemon's own port; no policy can allow it")
		}
	}
	return nil
}
