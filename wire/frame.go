package wire

import (
	"encoding/binary"
	"net/netip"
)

const (
	etherIPv4 = 0x0800
	etherARP  = 0x0806
	etherIPv6 = 0x86dd

	protoICMP   = 1
	protoTCP    = 6
	protoUDP    = 17
	protoICMPv6 = 58
)

// A filter decides which frames from a sandbox its stack receives. It keeps the stack's attack surface small: frames that the
// stack has no use for (fragments, options, extension headers, multicast, foreign addresses) never reach code that would keep
// state for them. It is stateless, and safe for concurrent use.
type filter struct {
	sandbox4, gateway4 netip.Addr // IPv4 addresses of the sandbox, and of the wire's gateway
	sandbox6, gateway6 netip.Addr // their IPv6 addresses
	broadcast4         netip.Addr // broadcast address of the wire's IPv4 subnet
}

// newFilter returns the filter for frames from a sandbox. It is the same for all wires, because they have the same addresses.
func newFilter() *filter {
	net4 := netip.MustParsePrefix(SandboxIPv4 + "/30").Masked().Addr().As4()
	net4[3] |= 1<<(32-bitsIPv4) - 1
	return &filter{
		sandbox4:   netip.MustParseAddr(SandboxIPv4),
		gateway4:   netip.MustParseAddr(GatewayIPv4),
		sandbox6:   netip.MustParseAddr(SandboxIPv6),
		gateway6:   netip.MustParseAddr(GatewayIPv6),
		broadcast4: netip.AddrFrom4(net4),
	}
}

// admit reports whether the stack may receive frame. It does not modify frame.
func (f *filter) admit(frame []byte) bool {
	if len(frame) < ethernetHeader || len(frame) > maxFrame {
		return false
	}
	toGateway := string(frame[0:6]) == gatewayMAC
	if string(frame[6:12]) != sandboxMAC {
		return false
	}
	payload := frame[ethernetHeader:]
	switch binary.BigEndian.Uint16(frame[12:]) {
	case etherARP:
		return f.admitARP(payload)
	case etherIPv4:
		return toGateway && f.admitIPv4(payload)
	case etherIPv6:
		// Neighbour solicitations are sent to a multicast address, all other frames to the address of the wire's gateway.
		return (toGateway || frame[0] == 0x33 && frame[1] == 0x33) && f.admitIPv6(payload, toGateway)
	default:
		return false
	}
}

// admitARP accepts only requests for the address of the wire's gateway.
func (f *filter) admitARP(p []byte) bool {
	const (
		ethernetIPv4 = "\x00\x01\x08\x00\x06\x04" // hardware and protocol types, and their lengths
		request      = 1
	)
	return len(p) >= 28 && string(p[:6]) == ethernetIPv4 && binary.BigEndian.Uint16(p[6:]) == request &&
		string(p[8:14]) == sandboxMAC &&
		netip.AddrFrom4([4]byte(p[14:18])) == f.sandbox4 &&
		netip.AddrFrom4([4]byte(p[24:28])) == f.gateway4
}

// admitIPv4 reports whether the stack may receive the IPv4 packet p.
func (f *filter) admitIPv4(p []byte) bool {
	const header = 20
	if len(p) < header || p[0] != 4<<4|header/4 { // not IPv4, or a header with options
		return false
	}
	size := int(binary.BigEndian.Uint16(p[2:]))
	if size < header || size > len(p) {
		return false
	}
	const dontFragment = 0x4000
	if binary.BigEndian.Uint16(p[6:])&^dontFragment != 0 { // a fragment, or the reserved bit
		return false
	}
	src, dst := netip.AddrFrom4([4]byte(p[12:16])), netip.AddrFrom4([4]byte(p[16:20]))
	if src != f.sandbox4 || !f.unicast(dst) {
		return false
	}
	body := p[header:size]
	switch p[9] {
	case protoTCP:
		return len(body) >= 20
	case protoUDP:
		return len(body) >= 8
	case protoICMP:
		const echo = 8
		return len(body) >= 8 && body[0] == echo && dst == f.gateway4
	default:
		return false
	}
}

// admitIPv6 reports whether the stack may receive the IPv6 packet p; toGateway: it is sent to the gateway's link address.
func (f *filter) admitIPv6(p []byte, toGateway bool) bool {
	const header = 40
	if len(p) < header || p[0]>>4 != 6 {
		return false
	}
	size := int(binary.BigEndian.Uint16(p[4:]))
	if size > len(p)-header {
		return false
	}
	src, dst := netip.AddrFrom16([16]byte(p[8:24])), netip.AddrFrom16([16]byte(p[24:40]))
	if src != f.sandbox6 {
		return false
	}
	body := p[header : header+size]
	switch p[6] { // only the protocols listed are admitted, so a packet with an extension header is not
	case protoTCP:
		return toGateway && f.unicast(dst) && len(body) >= 20
	case protoUDP:
		return toGateway && f.unicast(dst) && len(body) >= 8
	case protoICMPv6:
		const echo, solicitation = 128, 135
		switch {
		case len(body) >= 8 && body[0] == echo:
			return toGateway && dst == f.gateway6
		case len(body) >= 24 && body[0] == solicitation:
			return netip.AddrFrom16([16]byte(body[8:24])) == f.gateway6
		}
	}
	return false
}

// unicast reports whether the stack may answer packets for dst as if it had that address, which must be a unicast address other
// than the sandbox's.
func (f *filter) unicast(dst netip.Addr) bool {
	switch {
	case dst.Is4In6(), dst.IsUnspecified(), dst.IsLoopback(), dst.IsMulticast(), dst == f.sandbox4, dst == f.sandbox6:
		return false
	case dst.Is6():
		return true
	default:
		a := dst.As4()
		return a[0] != 0 && a[0] < 240 && dst != f.broadcast4
	}
}
