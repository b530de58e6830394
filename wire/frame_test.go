package wire

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// A packet describes a valid frame of a sandbox.
type packet struct {
	src, dst string // "" is the sandbox
	proto    byte
	body     []byte // of the IP packet; checksums are filled in
}

// syn is the start of a TCP connection to port 443.
func syn() []byte {
	b := make([]byte, header.TCPMinimumSize)
	header.TCP(b).Encode(&header.TCPFields{
		SrcPort: 40000, DstPort: 443, SeqNum: 1000, DataOffset: header.TCPMinimumSize, Flags: header.TCPFlagSyn, WindowSize: 65535,
	})
	return b
}

func datagram() []byte {
	b := make([]byte, header.UDPMinimumSize+5)
	header.UDP(b).Encode(&header.UDPFields{SrcPort: 40000, DstPort: 53, Length: uint16(len(b))})
	copy(b[header.UDPMinimumSize:], "hello")
	return b
}

func echo(kind byte) []byte { return []byte{kind, 0, 0, 0, 0, 1, 0, 1, 'd', 'a', 't', 'a'} }

// solicitation returns a request for the link address of an IPv6 address.
func solicitation(target string) []byte {
	b := make([]byte, 32)
	b[0] = 135
	copy(b[8:], netip.MustParseAddr(target).AsSlice())
	b[24], b[25] = 1, 1 // source link-layer address
	copy(b[26:], sandboxMAC)
	return b
}

func (p packet) frame() []byte {
	dst := netip.MustParseAddr(p.dst)
	f := append([]byte(gatewayMAC+sandboxMAC), 0, 0)
	if dst.Is4() {
		binary.BigEndian.PutUint16(f[12:], etherIPv4)
		if p.src == "" {
			p.src = SandboxIPv4
		}
		f = append(f, make([]byte, header.IPv4MinimumSize)...)
		header.IPv4(f[14:]).Encode(&header.IPv4Fields{
			TotalLength: uint16(header.IPv4MinimumSize + len(p.body)), TTL: 64, Protocol: p.proto,
			SrcAddr: address(p.src), DstAddr: address(p.dst),
		})
	} else {
		binary.BigEndian.PutUint16(f[12:], etherIPv6)
		if p.src == "" {
			p.src = SandboxIPv6
		}
		f = append(f, make([]byte, header.IPv6MinimumSize)...)
		header.IPv6(f[14:]).Encode(&header.IPv6Fields{
			PayloadLength: uint16(len(p.body)), TransportProtocol: tcpip.TransportProtocolNumber(p.proto), HopLimit: 255,
			SrcAddr: address(p.src), DstAddr: address(p.dst),
		})
	}
	f = append(f, p.body...)
	repair(f)
	return f
}

// repair sets the checksums of a frame if it has any, so that the code behind their verification is tested.
func repair(f []byte) {
	if len(f) < ethernetHeader {
		return
	}
	p := f[ethernetHeader:]
	switch binary.BigEndian.Uint16(f[12:]) {
	case etherIPv4:
		if len(p) < header.IPv4MinimumSize {
			return
		}
		ip := header.IPv4(p)
		hl := int(ip.HeaderLength())
		if hl < header.IPv4MinimumSize || hl > len(p) || int(ip.TotalLength()) < hl || int(ip.TotalLength()) > len(p) {
			return
		}
		ip.SetChecksum(0)
		ip.SetChecksum(^ip.CalculateChecksum())
		repairBody(p[9], p[hl:ip.TotalLength()], ip.SourceAddress(), ip.DestinationAddress())
	case etherIPv6:
		if len(p) < header.IPv6MinimumSize {
			return
		}
		ip := header.IPv6(p)
		if n := int(ip.PayloadLength()); n <= len(p)-header.IPv6MinimumSize {
			repairBody(p[6], p[header.IPv6MinimumSize:][:n], ip.SourceAddress(), ip.DestinationAddress())
		}
	}
}

func repairBody(proto byte, b []byte, src, dst tcpip.Address) {
	at := map[byte]int{protoTCP: 16, protoUDP: 6, protoICMP: 2, protoICMPv6: 2}[proto]
	if at == 0 || len(b) < at+2 {
		return
	}
	b[at], b[at+1] = 0, 0
	sum := uint16(0)
	if proto != protoICMP {
		sum = header.PseudoHeaderChecksum(tcpip.TransportProtocolNumber(proto), src, dst, uint16(len(b)))
	}
	binary.BigEndian.PutUint16(b[at:], ^checksum.Checksum(b, sum))
}

// who returns a request for the link address of an IPv4 address.
func who(target string) []byte {
	f := append([]byte("\xff\xff\xff\xff\xff\xff"+sandboxMAC), 0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1)
	f = append(f, sandboxMAC...)
	f = append(f, netip.MustParseAddr(SandboxIPv4).AsSlice()...)
	f = append(f, 0, 0, 0, 0, 0, 0)
	return append(f, netip.MustParseAddr(target).AsSlice()...)
}

// change returns a copy of frame in which the bytes at at are replaced.
func change(frame []byte, at int, b ...byte) []byte {
	frame = bytes.Clone(frame)
	copy(frame[at:], b)
	return frame
}

func TestFilter(t *testing.T) {
	t.Parallel()
	const any4, any6 = "192.0.2.1", "2001:db8::1"
	tcp4 := packet{dst: any4, proto: protoTCP, body: syn()}.frame()
	tcp6 := packet{dst: any6, proto: protoTCP, body: syn()}.frame()
	ask := packet{dst: GatewayIPv6, proto: protoICMPv6, body: solicitation(GatewayIPv6)}.frame()
	for _, c := range []struct {
		name  string
		frame []byte
		want  bool
	}{
		{"tcp", tcp4, true},
		{"tcp6", tcp6, true},
		{"tcp to the gateway", packet{dst: GatewayIPv4, proto: protoTCP, body: syn()}.frame(), true},
		{"padded", append(bytes.Clone(tcp4), 0, 0, 0, 0), true},
		{"udp", packet{dst: any4, proto: protoUDP, body: datagram()}.frame(), true},
		{"udp6", packet{dst: any6, proto: protoUDP, body: datagram()}.frame(), true},
		{"ping", packet{dst: GatewayIPv4, proto: protoICMP, body: echo(8)}.frame(), true},
		{"ping6", packet{dst: GatewayIPv6, proto: protoICMPv6, body: echo(128)}.frame(), true},
		{"arp", who(GatewayIPv4), true},
		{"solicitation", ask, true},
		{"multicast solicitation", change(ask, 0, 0x33, 0x33), true},

		{"nothing", nil, false},
		{"no header", tcp4[:13], false},
		{"too long", append(bytes.Clone(tcp4), make([]byte, maxFrame)...), false},
		{"another's link address", change(tcp4, 11, 0x07), false},
		{"to another link address", change(tcp4, 5, 0x07), false},
		{"broadcast ip", change(tcp4, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff), false},
		{"vlan", change(tcp4, 12, 0x81, 0x00), false},
		{"arp for another", who("10.87.0.3"), false},
		{"arp reply", change(who(GatewayIPv4), 21, 2), false},
		{"arp in another's name", change(who(GatewayIPv4), 31, 9), false},
		{"short arp", who(GatewayIPv4)[:41], false},
		{"solicitation for another", packet{dst: GatewayIPv6, proto: protoICMPv6, body: solicitation(any6)}.frame(), false},
		{"advertisement", change(ask, 14+40, 136), false},
		{"router advertisement", change(ask, 14+40, 134), false},
		{"ping of another", packet{dst: any4, proto: protoICMP, body: echo(8)}.frame(), false},
		{"ping6 of another", packet{dst: any6, proto: protoICMPv6, body: echo(128)}.frame(), false},
		{"redirect", packet{dst: GatewayIPv4, proto: protoICMP, body: echo(5)}.frame(), false},
		{"unreachable", packet{dst: GatewayIPv4, proto: protoICMP, body: echo(3)}.frame(), false},
		{"igmp", packet{dst: GatewayIPv4, proto: 2, body: echo(8)}.frame(), false},
		{"hop-by-hop", packet{dst: any6, proto: 0, body: syn()}.frame(), false},
		{"fragment header", packet{dst: any6, proto: 44, body: syn()}.frame(), false},
		{"first fragment", change(tcp4, 14+6, 0x20, 0), false},
		{"later fragment", change(tcp4, 14+6, 0, 1), false},
		{"options", change(tcp4, 14, 0x46), false},
		{"version", change(tcp4, 14, 0x65), false},
		{"length beyond the frame", change(tcp4, 14+2, 0xff, 0xff), false},
		{"length below the header", change(tcp4, 14+2, 0, 19), false},
		{"length beyond the frame, 6", change(tcp6, 14+4, 0xff, 0xff), false},
		{"short tcp", packet{dst: any4, proto: protoTCP, body: syn()[:19]}.frame(), false},
		{"short udp", packet{dst: any4, proto: protoUDP, body: datagram()[:7]}.frame(), false},
		{"foreign source", packet{src: "192.0.2.7", dst: any4, proto: protoTCP, body: syn()}.frame(), false},
		{"foreign source, 6", packet{src: "2001:db8::7", dst: any6, proto: protoTCP, body: syn()}.frame(), false},
		{"gateway's source", packet{src: GatewayIPv4, dst: any4, proto: protoTCP, body: syn()}.frame(), false},
		{"loopback", packet{dst: "127.0.0.1", proto: protoTCP, body: syn()}.frame(), false},
		{"loopback, 6", packet{dst: "::1", proto: protoTCP, body: syn()}.frame(), false},
		{"mapped", packet{dst: "::ffff:192.0.2.1", proto: protoTCP, body: syn()}.frame(), false},
		{"itself", packet{dst: SandboxIPv4, proto: protoTCP, body: syn()}.frame(), false},
		{"unspecified", packet{dst: "0.0.0.0", proto: protoUDP, body: datagram()}.frame(), false},
		{"multicast", packet{dst: "224.0.0.251", proto: protoUDP, body: datagram()}.frame(), false},
		{"multicast, 6", packet{dst: "ff02::fb", proto: protoUDP, body: datagram()}.frame(), false},
		{"broadcast", packet{dst: "255.255.255.255", proto: protoUDP, body: datagram()}.frame(), false},
		{"subnet broadcast", packet{dst: "10.87.0.3", proto: protoUDP, body: datagram()}.frame(), false},
	} {
		if got := newFilter().admit(c.frame); got != c.want {
			t.Errorf("%s: %t, want %t", c.name, got, c.want)
		}
	}
}
