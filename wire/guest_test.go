package wire

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/fdbased"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// newGuest returns a stack with the configuration that gVisor's sentry takes from the namespace.
func newGuest(t *testing.T, file *os.File) *stack.Stack {
	t.Helper()
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, ipv6.NewProtocol, arp.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol},
	})
	link, err := fdbased.New(&fdbased.Options{
		FDs: []int{int(file.Fd())}, MTU: MTU, EthernetHeader: true, Address: sandboxMAC,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.CreateNIC(nicID, link); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stopStack(s) })
	for proto, a := range map[tcpip.NetworkProtocolNumber][3]string{
		header.IPv4ProtocolNumber: {SandboxIPv4, "/30", GatewayIPv4},
		header.IPv6ProtocolNumber: {SandboxIPv6, "/126", GatewayIPv6},
	} {
		prefix := netip.MustParsePrefix(a[0] + a[1])
		own := tcpip.AddressWithPrefix{Address: address(a[0]), PrefixLen: prefix.Bits()}
		if err := s.AddProtocolAddress(nicID, tcpip.ProtocolAddress{Protocol: proto, AddressWithPrefix: own}, stack.AddressProperties{}); err != nil {
			t.Fatal(err)
		}
		all := header.IPv4EmptySubnet
		if prefix.Addr().Is6() {
			all = header.IPv6EmptySubnet
		}
		s.AddRoute(tcpip.Route{Destination: own.Subnet(), NIC: nicID})
		s.AddRoute(tcpip.Route{Destination: all, Gateway: address(a[2]), NIC: nicID})
	}
	return s
}

// The stack of a sandbox is gVisor's, not Linux's: it must reach its gateway and receive refusals.
func TestGuestOfGVisor(t *testing.T) {
	t.Parallel()
	file, sandbox := pairTAP(t)
	link, err := newTap(file, &sync.Pool{New: func() any { return new([maxFrame]byte) }})
	if err != nil {
		t.Fatal(err)
	}
	far, err := newStack(link, func(*stack.Stack) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stopStack(far) })
	guest := newGuest(t, sandbox)
	for _, target := range []string{"192.0.2.1:443", GatewayIPv4 + ":80", "[2001:db8::1]:443", "[" + GatewayIPv6 + "]:80"} {
		a := netip.MustParseAddrPort(target)
		proto := ipv4.ProtocolNumber
		if a.Addr().Is6() {
			proto = ipv6.ProtocolNumber
		}
		ctx, cancel := context.WithTimeout(t.Context(), deadline)
		to := tcpip.FullAddress{NIC: nicID, Addr: address(a.Addr().String()), Port: a.Port()}
		_, err := gonet.DialContextTCP(ctx, guest, to, proto)
		cancel()
		if err == nil || err.Error() != "connect tcp "+target+": connection was refused" {
			t.Errorf("tcp %s: %v, want a refusal", target, err)
		}
		var queue waiter.Queue
		c, terr := guest.NewEndpoint(udp.ProtocolNumber, proto, &queue)
		if terr != nil {
			t.Fatal(terr)
		}
		defer c.Close()
		if err := c.Connect(to); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write(strings.NewReader("hello"), tcpip.WriteOptions{}); err != nil {
			t.Error(err)
		}
		eventually(t, func() error {
			err := c.LastError()
			if _, ok := err.(*tcpip.ErrConnectionRefused); !ok {
				return fmt.Errorf("udp %s: %v, want a refusal", target, err)
			}
			return nil
		})
	}
	if s := link.stats(); s.DroppedOut != 0 {
		t.Errorf("%d frames of a well-behaved guest were dropped", s.DroppedOut)
	}
}
