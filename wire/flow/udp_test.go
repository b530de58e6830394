package flow

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	caisson "github.com/caisson-dev/caisson"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// udp returns a socket of the sandbox.
func (w *testWorld) udp(to netip.AddrPort) *gonet.UDPConn {
	w.t.Helper()
	proto, _ := protocol(to.Addr())
	remote := full(to)
	c, err := gonet.DialUDP(w.guest, nil, &remote, proto)
	if err != nil {
		w.t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(patience))
	w.t.Cleanup(func() { c.Close() })
	return c
}

// listenUDP echoes the datagrams sent to addr.
func (w *testWorld) listenUDP(addr string) {
	w.t.Helper()
	l, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		w.t.Fatal(err)
	}
	w.mu.Lock()
	w.hosts[netip.MustParseAddrPort(addr)] = l.LocalAddr().(*net.UDPAddr).AddrPort()
	w.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 64<<10)
		for {
			n, from, err := l.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			l.WriteToUDPAddrPort(buf[:n], from)
		}
	}()
	w.t.Cleanup(func() { l.Close(); <-done })
}

func TestUDP(t *testing.T) {
	w := newWorld(t)
	for _, addr := range []string{"192.0.2.1:9", "[2001:db8::1]:9"} {
		w.listenUDP(addr)
		to := netip.MustParseAddrPort(addr)
		w.policy(allowAddr(to.Addr().String()))
		c := w.udp(to)
		for _, size := range []int{0, 1, 1400, 65000} {
			want := bytes.Repeat([]byte{byte(size)}, size)
			if _, err := c.Write(want); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, 64<<10)
			n, err := c.Read(got)
			if err != nil || !bytes.Equal(got[:n], want) {
				t.Fatalf("%d bytes to %s: got %d, %v", size, addr, n, err)
			}
		}
		if s := w.f.Stats(); s.UDP != 1 {
			t.Errorf("one flow is %d", s.UDP)
		}
		w.policy()
		eventually(t, w.empty)
		w.reportedDenied("flow", "ended by a change of policy")
	}
	end := w.reported("bytes", func(d caisson.Decision) bool { return d.Count == 0 })
	if end.BytesIn != 66401 || end.BytesOut != 66401 || end.Protocol != "udp" {
		t.Errorf("%+v", end)
	}
}

func TestUDPDenied(t *testing.T) {
	w := newWorld(t)
	w.resolved("192.0.2.3", "quic.example")
	w.policy(allowAddr("192.0.2.2"), allowName("quic.example"))
	for addr, reason := range map[string]string{
		"192.0.2.1:9":   "no rule allows it",
		"192.0.2.3:443": "QUIC",
		"10.87.0.1:9":   "no service",
	} {
		c, terr := w.guest.NewEndpoint(udp.ProtocolNumber, ipv4.ProtocolNumber, new(waiter.Queue))
		if terr != nil {
			t.Fatal(terr)
		}
		defer c.Close()
		if err := c.Connect(full(netip.MustParseAddrPort(addr))); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write(strings.NewReader("hello"), tcpip.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() error {
			err := c.LastError()
			if _, ok := err.(*tcpip.ErrConnectionRefused); !ok {
				return fmt.Errorf("%s: %v, want a refusal", addr, err)
			}
			return nil
		})
		w.reportedDenied("flow", reason)
	}
	if d := w.dials(); len(d) != 0 {
		t.Errorf("dialled %v", d)
	}
	eventually(t, w.empty)
}

func TestUDPIdle(t *testing.T) {
	// An answer that takes longer than udpOnce is lost, and its delay depends on the load of the machine.
	w := newWorld(t, func(_ *Config, t *timeouts) { t.udpIdle, t.udpOnce = 40*time.Millisecond, time.Second })
	w.listenUDP("192.0.2.1:9")
	w.policy(allowAll)
	c := w.udp(netip.MustParseAddrPort("192.0.2.1:9"))
	for range 2 { // the second time with a new flow
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		eventually(t, w.empty)
	}
	if n := len(w.dials()); n != 2 {
		t.Errorf("%d flows, want 2", n)
	}
}

func TestUDPLimit(t *testing.T) {
	w := newWorld(t, func(c *Config, _ *timeouts) { c.Limits.UDP = 2 })
	w.listenUDP("192.0.2.1:9")
	w.policy(allowAll)
	for range 2 {
		c := w.udp(netip.MustParseAddrPort("192.0.2.1:9"))
		c.Write([]byte("x"))
		if _, err := c.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	w.udp(netip.MustParseAddrPort("192.0.2.1:9")).Write([]byte("x"))
	w.reportedDenied("flow", "limit of 2 udp flows")
}

func TestLocalUDP(t *testing.T) {
	release := make(chan struct{})
	w := newWorld(t, func(c *Config, _ *timeouts) {
		c.Limits.Queries = 2
		c.LocalUDP = map[uint16]func(context.Context, []byte, netip.AddrPort) []byte{
			53: func(ctx context.Context, q []byte, from netip.AddrPort) []byte {
				if string(q) == "wait" {
					select {
					case <-release:
					case <-ctx.Done():
					}
				}
				return fmt.Appendf(nil, "%s from %s", q, from.Addr())
			},
		}
	})
	for _, addr := range []netip.Addr{gateway4, gateway6} {
		c := w.udp(netip.AddrPortFrom(addr, 53))
		for _, q := range []string{"a", "aaaa"} {
			c.Write([]byte(q))
		}
		got := map[string]bool{}
		for range 2 {
			buf := make([]byte, 100)
			n, err := c.Read(buf)
			if err != nil {
				t.Fatal(err)
			}
			got[string(buf[:n])] = true
		}
		from := guest4
		if addr.Is6() {
			from = guest6
		}
		if !got["a from "+from.String()] || !got["aaaa from "+from.String()] {
			t.Errorf("answers %v", got)
		}
	}
	c := w.udp(netip.AddrPortFrom(gateway4, 53))
	for range 3 {
		c.Write([]byte("wait"))
	}
	eventually(t, func() error {
		if s := w.f.Stats(); s.Dropped != 1 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	close(release)
}
