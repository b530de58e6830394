package flow

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// inject sends a TCP segment from an address whose stack does not answer.
func (w *testWorld) inject(from, to netip.AddrPort, flags header.TCPFlags) {
	const size = header.IPv4MinimumSize + header.TCPMinimumSize
	b := make([]byte, size)
	src, dst := tcpip.AddrFromSlice(from.Addr().AsSlice()), tcpip.AddrFromSlice(to.Addr().AsSlice())
	ip := header.IPv4(b)
	ip.Encode(&header.IPv4Fields{TotalLength: size, TTL: 64, Protocol: uint8(tcp.ProtocolNumber), SrcAddr: src, DstAddr: dst})
	ip.SetChecksum(^ip.CalculateChecksum())
	h := header.TCP(b[header.IPv4MinimumSize:])
	h.Encode(&header.TCPFields{SrcPort: from.Port(), DstPort: to.Port(), SeqNum: 1, DataOffset: header.TCPMinimumSize, Flags: flags, WindowSize: 65535})
	sum := header.PseudoHeaderChecksum(tcp.ProtocolNumber, src, dst, header.TCPMinimumSize)
	h.SetChecksum(^h.CalculateChecksum(sum))
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(b)})
	defer pkt.DecRef()
	w.wire.InjectInbound(header.IPv4ProtocolNumber, pkt)
}

// Incomplete connections are limited, and do not use the limits of others.
func TestHalfOpenFlood(t *testing.T) {
	w := newWorld(t, func(c *Config, _ *timeouts) { c.Limits.InFlight, c.Limits.PerSecond, c.Limits.Burst = 16, 1e9, 1e9 })
	var mu sync.Mutex
	accepted := 0
	w.listen("192.0.2.1:7", func(c *net.TCPConn) {
		mu.Lock()
		accepted++
		mu.Unlock()
		c.Read(make([]byte, 1))
	})
	w.policy(allowAll)
	silent := netip.MustParseAddr("10.87.0.99")
	for i := range 20000 {
		w.inject(netip.AddrPortFrom(silent, uint16(1024+i)), netip.MustParseAddrPort("192.0.2.1:7"), header.TCPFlagSyn)
		if i%1000 == 0 {
			if s := w.f.Stats(); s.TCP > 16+1 || runtime.NumGoroutine() > 400 {
				t.Fatalf("%+v, %d goroutines", s, runtime.NumGoroutine())
			}
		}
	}
	eventually(t, func() error {
		mu.Lock()
		defer mu.Unlock()
		if s := w.f.Stats(); s.InFlight != 16 || accepted != 16 {
			return fmt.Errorf("%+v, %d dialled", s, accepted)
		}
		return nil
	})
	w.mustRefuse("192.0.2.1:7")
	w.reportedDenied("flow", "limit of 16 connections that are being made")
}

// Segments that do not begin a connection are reset without a dial.
func TestOddSegments(t *testing.T) {
	w := newWorld(t)
	w.policy(allowAll)
	from, to := netip.MustParseAddrPort("10.87.0.99:1024"), netip.MustParseAddrPort("192.0.2.1:7")
	for flags := range 256 {
		f := header.TCPFlags(flags)
		if f&header.TCPFlagSyn != 0 && f&(header.TCPFlagAck|header.TCPFlagRst|header.TCPFlagFin) == 0 {
			continue
		}
		w.inject(from, to, f)
	}
	if s := w.f.Stats(); s.TCP != 0 || len(w.dials()) != 0 {
		t.Errorf("%+v, dialled %v", s, w.dials())
	}
}

// A sandbox that opens as many connections as it can is limited, and is served again afterwards.
func TestConnectionFlood(t *testing.T) {
	const places, attempts = 32, 2000
	w := newWorld(t, func(c *Config, _ *timeouts) { c.Limits.TCP, c.Limits.PerSecond, c.Limits.Burst = places, 1e9, 1e9 })
	w.listen("192.0.2.1:7", echo)
	w.policy(allowAll)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var mu sync.Mutex
	var open []*gonet.TCPConn
	var dialling sync.WaitGroup
	turns := make(chan struct{}, 200)
	for range attempts {
		turns <- struct{}{}
		dialling.Go(func() {
			defer func() { <-turns }()
			to := netip.MustParseAddrPort("192.0.2.1:7")
			c, err := gonet.DialContextTCP(ctx, w.guest, full(to), header.IPv4ProtocolNumber)
			if s := w.f.Stats(); s.TCP > places {
				t.Errorf("%d connections", s.TCP)
			}
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
		})
	}
	dialling.Wait()
	if len(open) == 0 || len(open) > places {
		t.Errorf("%d of %d connections were made, want at most %d", len(open), attempts, places)
	}
	for _, c := range open {
		c.Close()
	}
	eventually(t, w.empty)
	wantEcho(t, w.mustDial("192.0.2.1:7"), "hello")
}

// A sandbox that disappears while it closes a connection does not use resources for long.
func TestVanishing(t *testing.T) {
	w := newWorld(t, func(_ *Config, t *timeouts) { t.halfClosed = 50 * time.Millisecond })
	w.listen("192.0.2.1:7", func(c *net.TCPConn) {
		c.SetDeadline(time.Now().Add(patience))
		c.Write(make([]byte, 1<<20))
	})
	w.policy(allowAll)
	for range 10 {
		w.mustDial("192.0.2.1:7") // never reads, never closes
	}
	eventually(t, w.empty)
}

// Datagrams to many destinations are limited in flows and rate.
func TestDatagramFlood(t *testing.T) {
	w := newWorld(t, func(c *Config, _ *timeouts) { c.Limits.UDP, c.Limits.PerSecond, c.Limits.Burst = 8, 1, 100 })
	w.listenUDP("192.0.2.1:9")
	w.policy(allowAll)
	for i := range 1000 {
		c := w.udp(netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), uint16(i+1)))
		c.Write([]byte("x"))
		c.Close()
	}
	eventually(t, func() error {
		s := w.f.Stats()
		if s.UDP > 8 {
			t.Fatalf("%+v", s)
		}
		if s.Allowed+s.Limited+s.Failed+s.Dropped != 1000 || s.Dropped < 850 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
}
