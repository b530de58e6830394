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

// Keepalive, on both sides of a connection: a peer that is gone is noticed after some five minutes.
const (
	keepaliveIdle     = 2 * time.Minute
	keepaliveInterval = 30 * time.Second
	keepaliveCount    = 6
)

// NewDialer returns a Dialer that connects from the host's own network. Settings is called for each dial.
func NewDialer(settings func() Settings) Dialer { return &hostDialer{settings} }

// Settings say what a [Dialer] knows about its host.
type Settings struct {
	Host reach.Host
	// Forbidden is what no policy can allow; an unspecified address means its port at every address of the host.
	Forbidden []netip.AddrPort
}

type hostDialer struct{ settings func() Settings }

// Own implements [Dialer].
func (d *hostDialer) Own(addr netip.Addr) (bool, error) { return d.settings().Host.Own(addr) }

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
		if own, err := settings.Host.Own(addr); err != nil || own {
			return caisson.Errorf(caisson.Denied, "the daemon's own port; no policy can allow it")
		}
	}
	return nil
}
