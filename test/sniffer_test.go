package test_test

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/poll"
)

// A sniffer records every packet that arrives at an interface.
type sniffer struct {
	place *place
	name  string

	mu   sync.Mutex
	seen map[string]int // Guarded by mu; by the result of describe.
}

// newSniffer starts a sniffer. It records packets that arrive after that.
func newSniffer(t testing.TB, p *place, name string) *sniffer {
	t.Helper()
	const all = 0x0003 // ETH_P_ALL
	var fd int
	if err := p.run(func() error {
		dev, err := net.InterfaceByName(name)
		if err != nil {
			return err
		}
		proto := uint16(all<<8 | all>>8) // In network byte order.
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(proto)); err != nil {
			return err
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20); err != nil {
			return err
		}
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000}); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: proto, Ifindex: dev.Index})
	}); err != nil {
		t.Fatalf("look at %s: %v", name, err)
	}
	c := &sniffer{place: p, name: name, seen: map[string]int{}}
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		defer unix.Close(fd)
		for buf := make([]byte, 256); ; {
			n, from, err := unix.Recvfrom(fd, buf, 0)
			if at, ok := from.(*unix.SockaddrLinklayer); err == nil && ok && at.Pkttype != unix.PACKET_OUTGOING {
				if what := describe(buf[:n]); what != "" {
					c.mu.Lock()
					c.seen[what]++
					c.mu.Unlock()
				}
			}
			select {
			case <-end:
				return
			default:
			}
		}
	}()
	t.Cleanup(func() {
		close(end)
		<-ended
	})
	return c
}

// describe returns the kind and destination of a frame: "tcp 192.0.2.1:443", "udp [2001:db8::1]:53", "icmp 192.0.2.1",
// "arp 192.0.2.1", "protocol 47 192.0.2.1". It returns "" for responses on a connection and for packets that a kernel
// sends on its own.
func describe(f []byte) string {
	if len(f) < 14 {
		return "runt"
	}
	p := f[14:]
	switch kind := binary.BigEndian.Uint16(f[12:]); {
	case kind == 0x0800 && len(p) >= 20:
		header := int(p[0]&15) * 4
		return transport(int(p[9]), netip.AddrFrom4([4]byte(p[16:20])), p[min(header, len(p)):])
	case kind == 0x86dd && len(p) >= 40:
		return transport(int(p[6]), netip.AddrFrom16([16]byte(p[24:40])), p[40:])
	case kind == 0x0806 && len(p) >= 28:
		return "arp " + netip.AddrFrom4([4]byte(p[24:28])).String()
	default:
		return fmt.Sprintf("ethertype %04x", kind)
	}
}

func transport(proto int, dst netip.Addr, p []byte) string {
	const syn, ack = 0x02, 0x10
	switch {
	case proto == unix.IPPROTO_TCP && len(p) >= 20:
		if p[13]&(syn|ack) != syn {
			return ""
		}
		return "tcp " + netip.AddrPortFrom(dst, binary.BigEndian.Uint16(p[2:])).String()
	case proto == unix.IPPROTO_UDP && len(p) >= 8:
		return "udp " + netip.AddrPortFrom(dst, binary.BigEndian.Uint16(p[2:])).String()
	case proto == unix.IPPROTO_ICMP:
		return "icmp " + dst.String()
	case proto == unix.IPPROTO_ICMPV6 && len(p) > 0 && p[0] == 135: // A neighbour solicitation.
		return "neighbour " + netip.AddrFrom16([16]byte(p[8:24])).String()
	case proto == unix.IPPROTO_ICMPV6 && len(p) > 0 && (p[0] >= 133 && p[0] <= 137 || p[0] == 143 || p[0] == 1):
		return "" // Sent by the kernel: routers, neighbours, groups, unreachable.
	case proto == unix.IPPROTO_HOPOPTS && dst.IsMulticast(): // A multicast group report.
		return ""
	case proto == unix.IPPROTO_ICMPV6:
		return "icmp " + dst.String()
	}
	return fmt.Sprintf("protocol %d %s", proto, dst)
}

// list returns the recorded packets except the expected ones.
func (c *sniffer) list(expected ...string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []string
	for _, what := range slices.Sorted(maps.Keys(c.seen)) {
		if !slices.Contains(expected, what) {
			list = append(list, fmt.Sprintf("%s: %s, %d times", c.name, what, c.seen[what]))
		}
	}
	return list
}

func (c *sniffer) count(what string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen[what]
}

// Destinations of marks: ports that nothing else in a test uses.
const (
	markOut = "198.51.100.53:9"
	markLAN = "192.168.77.255:9"
	markLo  = "127.0.0.1:9"
)

// left fails the test if any packet except the expected ones has left the host or gone from it to itself. It covers
// everything before the call: it sends a last packet itself and waits until that is recorded.
func (w *world) left(expected ...string) {
	w.t.Helper()
	for i, c := range []*sniffer{w.out[0], w.out[1], w.self} {
		mark := []string{markOut, markLAN, markLo}[i]
		before := c.count("udp " + mark)
		if err := w.inside.run(func() error {
			conn, err := net.Dial("udp", mark)
			if err != nil {
				return err
			}
			defer conn.Close()
			_, err = conn.Write([]byte("mark"))
			return err
		}); err != nil {
			w.t.Fatal(err)
		}
		poll.Until(w.t, settle, func() bool { return c.count("udp "+mark) > before })
	}
	expected = append(slices.Clone(expected), "udp "+markOut, "udp "+markLAN, "udp "+markLo, "arp "+routerAddr4, "arp "+hostAddr4,
		"neighbour "+routerAddr6, "neighbour "+hostAddr6,
		"udp "+nameserverAddr+":53", "tcp "+nameserverAddr+":53")
	var list []string
	for _, c := range append(slices.Clone(w.out), w.self) {
		list = append(list, c.list(expected...)...)
	}
	list = slices.DeleteFunc(list, func(s string) bool { return strings.Contains(s, "neighbour fe80:") })
	if len(list) > 0 {
		w.t.Errorf("what has left the wire:\n\t%s", strings.Join(list, "\n\t"))
	}
}
