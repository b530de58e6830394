package flow

import (
	"context"
	"net"
	"net/netip"
	"testing"

	caisson "github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/reach"
)

func TestOwn(t *testing.T) {
	d := NewDialer(func() Settings { return Settings{} })
	want := map[string]bool{
		"127.0.0.1": true, "127.0.0.2": true, "127.255.1.2": true, "::1": true, "::ffff:127.0.0.9": true,
		"0.0.0.0": true, "::": true, "224.0.0.1": true, "ff02::1": true, "255.255.255.255": true,
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.(*net.IPNet).IP); ok && !ip.IsLinkLocalUnicast() {
			want[ip.Unmap().String()] = true
		}
	}
	for a, own := range want {
		if got, err := d.Own(netip.MustParseAddr(a)); err != nil || got != own {
			t.Errorf("%s: %v, %v; want %v", a, got, err, own)
		}
	}
	// The host may have no route to other addresses, but must not report them as its own.
	for _, a := range []string{"192.0.2.77", "2001:db8::77", "8.8.8.8", "fe80::1"} {
		if got, err := d.Own(netip.MustParseAddr(a)); err == nil && got {
			t.Errorf("%s is the host's own", a)
		}
	}
}

func TestForbidden(t *testing.T) {
	tcp, err := net.Listen("tcp4", "127.0.0.2:0") // an address of the host that is not listed on any interface
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	dst := tcp.Addr().(*net.TCPAddr).AddrPort()
	dst = netip.AddrPortFrom(dst.Addr().Unmap(), dst.Port())
	public := reach.Host{PublicAddresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.77/32")}}
	for _, c := range []struct {
		name      string
		forbidden []netip.AddrPort
		dst       netip.AddrPort
		denied    bool
	}{
		{"none", nil, dst, false},
		{"itself", []netip.AddrPort{dst}, dst, true},
		{"mapped", []netip.AddrPort{netip.AddrPortFrom(netip.AddrFrom16(dst.Addr().As16()), dst.Port())}, dst, true},
		{"another port", []netip.AddrPort{netip.AddrPortFrom(dst.Addr(), dst.Port()+1)}, dst, false},
		{"another address", []netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr("127.0.0.3"), dst.Port())}, dst, false},
		{"wildcard", []netip.AddrPort{netip.AddrPortFrom(netip.IPv4Unspecified(), dst.Port())}, dst, true},
		{"wildcard of IPv6", []netip.AddrPort{netip.AddrPortFrom(netip.IPv6Unspecified(), dst.Port())}, dst, true},
		{"translated", []netip.AddrPort{dst}, netip.AddrPortFrom(netip.MustParseAddr("64:ff9b::7f00:2"), dst.Port()), true},
		{"wildcard, translated", []netip.AddrPort{netip.AddrPortFrom(netip.IPv4Unspecified(), dst.Port())}, netip.AddrPortFrom(netip.MustParseAddr("2002:7f00:2::1"), dst.Port()), true},
		{"public address", []netip.AddrPort{dst}, netip.AddrPortFrom(netip.MustParseAddr("192.0.2.77"), dst.Port()), true},
		{"public address, translated", []netip.AddrPort{dst}, netip.AddrPortFrom(netip.MustParseAddr("64:ff9b::c000:24d"), dst.Port()), true},
		{"to nowhere", nil, netip.AddrPortFrom(netip.IPv4Unspecified(), dst.Port()), true},
		{"to a mapped address", nil, netip.AddrPortFrom(netip.AddrFrom16(dst.Addr().As16()), dst.Port()), true},
		{"to port 0", nil, netip.AddrPortFrom(dst.Addr(), 0), true},
	} {
		d := NewDialer(func() Settings { return Settings{Host: public, Forbidden: c.forbidden} })
		conn, err := d.DialTCP(context.Background(), c.dst)
		if err == nil {
			conn.Close()
		}
		if denied := caisson.KindOf(err) == caisson.Denied && err != nil; denied != c.denied || !denied && err != nil {
			t.Errorf("%s, tcp: %v, want denied: %v", c.name, err, c.denied)
		}
		u, err := d.DialUDP(context.Background(), c.dst)
		if err == nil {
			u.Close()
		}
		if denied := caisson.KindOf(err) == caisson.Denied && err != nil; denied != c.denied || !denied && err != nil {
			t.Errorf("%s, udp: %v, want denied: %v", c.name, err, c.denied)
		}
	}
}

// The real dialer on the real host, whose addresses only an exact rule allows.
func TestOwnHostForReal(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Write([]byte("hello"))
			c.Close()
		}
	}()
	var forbidden []netip.AddrPort
	public := reach.Host{PublicAddresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.77/32")}}
	w := newWorld(t, func(c *Config, _ *timeouts) {
		c.Dialer = NewDialer(func() Settings { return Settings{Host: public, Forbidden: forbidden} })
	})
	w.policy(allowAll)
	addr := l.Addr().String()
	w.mustRefuse(addr)
	w.reportedDenied("flow", "the host's own")
	w.policy(allowAddr("127.0.0.2"))
	wantRead(t, w.mustDial(addr), "hello")
	for _, to := range []string{"192.0.2.77:9", "[64:ff9b::c000:24d]:9", "[64:ff9b::7f00:2]:9"} {
		w.mustRefuse(to)
		w.reportedDenied("flow", "the host's own")
	}
	forbidden = []netip.AddrPort{netip.MustParseAddrPort(addr)}
	w.mustRefuse(addr)
	w.reportedDenied("flow", "the daemon's own")
}
