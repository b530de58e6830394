package wire

import (
	"fmt"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
)

const nicID tcpip.NICID = 1

// newStack returns a TCP/IP stack for one wire. It answers for the address of the wire's gateway and, as if it had all addresses,
// for any other: it refuses packets to those, unless prepare installs handlers for them. prepare is called before the first
// packet. Stop the stack with stopStack.
func newStack(link stack.LinkEndpoint, prepare func(*stack.Stack) error) (_ *stack.Stack, err error) {
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, ipv6.NewProtocol, arp.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol},
	})
	defer func() {
		if err != nil {
			stopStack(s)
		}
	}()
	if err := prepare(s); err != nil {
		return nil, err
	}
	if err := s.CreateNIC(nicID, link); err != nil {
		return nil, fmt.Errorf("create nic: %s", err)
	}
	for _, a := range []struct {
		proto            tcpip.NetworkProtocolNumber
		gateway, sandbox string
		all              tcpip.Subnet
	}{
		{header.IPv4ProtocolNumber, GatewayIPv4, SandboxIPv4, header.IPv4EmptySubnet},
		{header.IPv6ProtocolNumber, GatewayIPv6, SandboxIPv6, header.IPv6EmptySubnet},
	} {
		own := tcpip.ProtocolAddress{Protocol: a.proto, AddressWithPrefix: address(a.gateway).WithPrefix()}
		if err := s.AddProtocolAddress(nicID, own, stack.AddressProperties{}); err != nil {
			return nil, fmt.Errorf("add address %s: %s", a.gateway, err)
		}
		// Neighbours are static, so that a sandbox cannot make the stack wait for a neighbour or store one.
		if err := s.AddStaticNeighbor(nicID, a.proto, address(a.sandbox), tcpip.LinkAddress(sandboxMAC)); err != nil {
			return nil, fmt.Errorf("add neighbour %s: %s", a.sandbox, err)
		}
		s.AddRoute(tcpip.Route{Destination: a.all, NIC: nicID})
	}
	if err := s.SetPromiscuousMode(nicID, true); err != nil {
		return nil, fmt.Errorf("set promiscuous mode: %s", err)
	}
	if err := s.SetSpoofing(nicID, true); err != nil {
		return nil, fmt.Errorf("set spoofing: %s", err)
	}
	return s, nil
}

// stopStack stops s and the link below it, and waits for their goroutines.
func stopStack(s *stack.Stack) {
	s.RemoveNIC(nicID) // returns an error only if there is no NIC
	s.Destroy()
}

func address(s string) tcpip.Address {
	return tcpip.AddrFromSlice(netip.MustParseAddr(s).AsSlice())
}
