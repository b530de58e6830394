package test_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// Addresses of the two ends of a wire.
const (
	sandboxMAC, gatewayMAC = "\x02\xca\x15\x50\x00\x02", "\x02\xca\x15\x50\x00\x01"
	sandbox4, sandbox6     = "10.87.0.2", "fdca:1550:a87::2"
)

const outsideAddr = "203.0.113.77"

const (
	protoICMP, protoIPIP, protoTCP, protoUDP, proto6in4, protoGRE, protoESP, protoICMP6, protoSCTP = 1, 4, 6, 17, 41, 47, 50, 58, 132
)

// sum computes the internet checksum.
func sum(parts ...[]byte) uint16 {
	var s uint32
	for _, p := range parts {
		for i, b := range p {
			s += uint32(b) << (8 * (1 - i%2))
		}
	}
	for s > 0xffff {
		s = s&0xffff + s>>16
	}
	return ^uint16(s)
}

// packet returns an IP packet with valid checksums.
func packet(src, dst string, proto byte, body []byte) []byte {
	from, to := netip.MustParseAddr(src).AsSlice(), netip.MustParseAddr(dst).AsSlice()
	body = append([]byte{}, body...)
	at := map[byte]int{protoTCP: 16, protoUDP: 6, protoICMP: 2, protoICMP6: 2}[proto]
	if at > 0 {
		pseudo := append(append(append([]byte{}, from...), to...), 0, proto, byte(len(body)>>8), byte(len(body)))
		if proto == protoICMP {
			pseudo = nil
		}
		binary.BigEndian.PutUint16(body[at:], sum(pseudo, body))
	}
	if len(from) == 16 {
		head := []byte{0x60, 0, 0, 0, byte(len(body) >> 8), byte(len(body)), proto, 64}
		return append(append(append(head, from...), to...), body...)
	}
	size := 20 + len(body)
	head := []byte{0x45, 0, byte(size >> 8), byte(size), 0, 1, 0, 0, 64, proto, 0, 0}
	head = append(append(head, from...), to...)
	binary.BigEndian.PutUint16(head[10:], sum(head))
	return append(head, body...)
}

// resum recomputes the checksum of a modified IPv4 header.
func resum(p []byte) []byte {
	p[10], p[11] = 0, 0
	binary.BigEndian.PutUint16(p[10:], sum(p[:int(p[0]&15)*4]))
	return p
}

func ether(dst, src string, kind uint16, p []byte) []byte {
	return append(binary.BigEndian.AppendUint16([]byte(dst+src), kind), p...)
}

// framed wraps an IP packet in a frame from the sandbox to the gateway.
func framed(p []byte) []byte {
	kind := uint16(0x0800)
	if p[0]>>4 == 6 {
		kind = 0x86dd
	}
	return ether(gatewayMAC, sandboxMAC, kind, p)
}

func syn(port uint16) []byte {
	b := make([]byte, 20)
	binary.BigEndian.PutUint16(b, 40_000)
	binary.BigEndian.PutUint16(b[2:], port)
	b[12], b[13], b[14] = 5<<4, 2, 0xff
	return b
}

func datagram(port uint16) []byte {
	b := make([]byte, 8, 13)
	binary.BigEndian.PutUint16(b, 40_000)
	binary.BigEndian.PutUint16(b[2:], port)
	b = append(b, "hello"...)
	b[5] = byte(len(b))
	return b
}

var echoRequest = []byte{8, 0, 0, 0, 0, 1, 0, 1}

// packetAttempts send packets that programs using ordinary sockets do not send, as far as gVisor permits root to send
// them.
func packetAttempts() []attempt {
	raw := func(to string, proto int, data string) attempt {
		return attempt{Do: "raw", To: to, Proto: proto, Data: data}
	}
	whole := func(id, to string, p []byte) attempt { return attempt{ID: id, Do: "raw", To: to, Frame: p} }
	list := []attempt{
		// A control: raw packets reach the wire.
		{ID: "plain", Do: "raw", To: badAddr4, Frame: packet(sandbox4, badAddr4, protoUDP, datagram(2005)), why: flowTo("udp", badAddr4+":2005", noRule)},
		{ID: "frame", Do: "frame", Frame: framed(packet(sandbox4, badAddr4, protoUDP, datagram(2006)))},
		raw("1.1.1.1", protoICMP, string(packet(sandbox4, "1.1.1.1", protoICMP, echoRequest)[20:])),
		raw(goodAddr4, protoICMP, string(packet(sandbox4, goodAddr4, protoICMP, echoRequest)[20:])),
		raw(hostAddr4, protoICMP, string(packet(sandbox4, hostAddr4, protoICMP, echoRequest)[20:])),
		raw(badAddr6, protoICMP6, "\x80\x00\x00\x00\x00\x01\x00\x01"),
		raw(goodAddr4, protoGRE, "\x00\x00\x08\x00tunnel"), raw(badAddr4, protoGRE, "\x00\x00\x08\x00tunnel"),
		raw(goodAddr4, protoIPIP, string(packet("10.99.0.2", "10.99.0.1", protoUDP, datagram(2020)))),
		raw(goodAddr4, proto6in4, string(packet("fd12:3456::2", "fd12:3456::1", protoUDP, datagram(2021)))),
		raw(goodAddr4, protoESP, "\x00\x00\x00\x01\x00\x00\x00\x01tunnel"),
		raw(goodAddr4, protoSCTP, "\x9c\x40\x01\xbb\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x14"),
		whole("from outside", badAddr4, packet(outsideAddr, badAddr4, protoUDP, datagram(2030))),
		whole("from a neighbour", badAddr4, packet("10.87.0.6", badAddr4, protoTCP, syn(2031))),
	}
	for i := range list {
		if list[i].ID == "" {
			list[i].ID = fmt.Sprintf("protocol %d", list[i].Proto)
		}
	}
	return numbered("packet", list)
}

// frames returns frames that a sandbox that controls its gVisor may send. Only the first ones reach the policy; the
// wire drops all others before they reach its stack. Nothing else uses their ports, so packets that leave can be
// identified.
func frames() []attempt {
	frame := func(id string, f []byte, why string) attempt { return attempt{ID: id, Frame: f, why: why} }
	options := resum(append(append([]byte{0x46}, packet(sandbox4, badAddr4, protoUDP, datagram(2001))[1:20]...),
		append([]byte{0x83, 3, 4, 0}, datagram(2001)...)...))
	fragment := packet(sandbox4, badAddr4, protoUDP, datagram(2002))
	fragment[6] = 0x20
	extended := packet(sandbox6, badAddr6, 0, append([]byte{protoUDP, 0, 1, 4, 0, 0, 0, 0}, datagram(2003)...))
	routed := packet(sandbox6, goodAddr6, 43, append([]byte{protoUDP, 2, 0, 1, 0, 0, 0, 0}, append(netip.MustParseAddr(badAddr6).AsSlice(), datagram(2004)...)...))
	return []attempt{
		// These reach the policy.
		frame("tcp", framed(packet(sandbox4, badAddr4, protoTCP, syn(2010))), flowTo("tcp", badAddr4+":2010", noRule)),
		frame("udp", framed(packet(sandbox6, badAddr6, protoUDP, datagram(2011))), flowTo("udp", "["+badAddr6+"]:2011", noRule)),
		frame("udp to the metadata service", framed(packet(sandbox4, "169.254.169.254", protoUDP, datagram(2012))), flowTo("udp", "169.254.169.254:2012", special)),
		// Source addresses of others.
		frame("from outside", framed(packet(outsideAddr, goodAddr4, protoTCP, syn(443))), ""),
		frame("from the host", framed(packet(hostAddr4, goodAddr4, protoUDP, datagram(2032))), ""),
		frame("from the gateway", framed(packet("10.87.0.1", "10.87.0.1", protoUDP, datagram(53))), ""),
		frame("from loopback", framed(packet("127.0.0.1", "127.0.0.1", protoTCP, syn(7070))), ""),
		frame("to loopback", framed(packet(sandbox4, "127.0.0.1", protoTCP, syn(7070))), ""),
		frame("to loopback, IPv6", framed(packet(sandbox6, "::1", protoTCP, syn(7070))), ""),
		frame("to this network", framed(packet(sandbox4, "0.0.0.0", protoTCP, syn(7070))), ""),
		frame("IPv4-mapped", framed(packet(sandbox6, "::ffff:"+badAddr4, protoTCP, syn(2033))), ""),
		frame("IPv6 from outside", framed(packet("2001:db8:99::1", badAddr6, protoUDP, datagram(2034))), ""),
		// MAC addresses of other stations on the wire.
		frame("as another station", ether(gatewayMAC, "\x02\xca\x15\x50\x00\x03", 0x0800, packet(sandbox4, badAddr4, protoUDP, datagram(2040))), ""),
		frame("to another station", ether("\x02\xca\x15\x50\x00\x03", sandboxMAC, 0x0800, packet(sandbox4, badAddr4, protoUDP, datagram(2041))), ""),
		frame("to all stations", ether("\xff\xff\xff\xff\xff\xff", sandboxMAC, 0x0800, packet(sandbox4, badAddr4, protoUDP, datagram(2042))), ""),
		frame("broadcast", framed(packet(sandbox4, "255.255.255.255", protoUDP, datagram(67))), ""),
		frame("subnet broadcast", framed(packet(sandbox4, "10.87.0.3", protoUDP, datagram(2043))), ""),
		frame("multicast", ether("\x01\x00\x5e\x00\x00\xfb", sandboxMAC, 0x0800, packet(sandbox4, "224.0.0.251", protoUDP, datagram(5353))), ""),
		frame("IPv6 multicast", ether("\x33\x33\x00\x00\x00\x01", sandboxMAC, 0x86dd, packet(sandbox6, "ff02::1", protoUDP, datagram(5353))), ""),
		frame("reserved", framed(packet(sandbox4, "240.0.0.1", protoUDP, datagram(2044))), ""),
		frame("VLAN", ether(gatewayMAC, sandboxMAC, 0x8100, append([]byte{0, 5, 8, 0}, packet(sandbox4, badAddr4, protoUDP, datagram(2045))...)), ""),
		frame("spanning tree", ether("\x01\x80\xc2\x00\x00\x00", sandboxMAC, 38, make([]byte, 60)), ""),
		frame("PPPoE", ether("\xff\xff\xff\xff\xff\xff", sandboxMAC, 0x8863, make([]byte, 60)), ""),
		frame("ARP for a neighbour", ether("\xff\xff\xff\xff\xff\xff", sandboxMAC, 0x0806,
			[]byte("\x00\x01\x08\x00\x06\x04\x00\x01"+sandboxMAC+"\x0a\x57\x00\x02\x00\x00\x00\x00\x00\x00\xc0\xa8\x4d\x09")), ""),
		frame("ARP reply", ether(gatewayMAC, sandboxMAC, 0x0806,
			[]byte("\x00\x01\x08\x00\x06\x04\x00\x02"+sandboxMAC+"\x0a\x57\x00\x01"+gatewayMAC+"\x0a\x57\x00\x01")), ""),
		// Packets that a stack would have to reassemble, forward or obey.
		frame("options", framed(options), ""), frame("fragment", framed(resum(fragment)), ""),
		frame("extension header", framed(extended), ""), frame("routing header", framed(routed), ""),
		frame("ICMP redirect", framed(packet(sandbox4, "10.87.0.1", protoICMP, append([]byte{5, 1, 0, 0, 198, 51, 100, 20}, packet(sandbox4, badAddr4, protoTCP, syn(80))...))), ""),
		frame("router advertisement", framed(packet(sandbox6, "fdca:1550:a87::1", protoICMP6, make([]byte, 16))), ""),
		frame("a length that lies", framed(append(packet(sandbox4, badAddr4, protoUDP, datagram(2046))[:24:24], 0)), ""),
		frame("a runt", []byte(gatewayMAC+sandboxMAC+"\x08\x00"), ""),
	}
}
