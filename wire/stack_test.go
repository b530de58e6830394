package wire

import (
	"bytes"
	"encoding/binary"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// pairTAP returns a replacement for a TAP, and the descriptor at the sandbox's end. It needs no privileges.
func pairTAP(t testing.TB) (tapFile, sandbox *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	tapFile, sandbox = os.NewFile(uintptr(fds[0]), "tap"), os.NewFile(uintptr(fds[1]), "sandbox")
	t.Cleanup(func() { tapFile.Close(); sandbox.Close() })
	return tapFile, sandbox
}

// answers passes a frame to a stack as if it had just been read, and returns the frames sent in response.
type answers func(frame []byte) [][]byte

func newAnswers(t testing.TB) answers {
	file, sandbox := pairTAP(t)
	link, err := newTap(file, &sync.Pool{New: func() any { return new([maxFrame]byte) }})
	if err != nil {
		t.Fatal(err)
	}
	s, err := newStack(link, func(*stack.Stack) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stopStack(s) })
	conn, err := sandbox.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	return func(frame []byte) (out [][]byte) {
		link.deliver(frame)
		for {
			buf := make([]byte, maxFrame)
			n := 0
			if err := conn.Control(func(fd uintptr) { n, err = unix.Read(int(fd), buf) }); err != nil || n <= 0 {
				return out
			}
			out = append(out, buf[:n])
		}
	}
}

// kind returns the type of a frame from a stack, "" for a frame that it must not send.
func kind(f []byte) string {
	if len(f) < ethernetHeader || string(f[:12]) != sandboxMAC+gatewayMAC {
		return ""
	}
	p := f[ethernetHeader:]
	var proto byte
	switch binary.BigEndian.Uint16(f[12:]) {
	case etherARP:
		return "arp"
	case etherIPv4:
		if len(p) < header.IPv4MinimumSize {
			return ""
		}
		proto, p = p[9], p[header.IPv4(p).HeaderLength():]
	case etherIPv6:
		if len(p) < header.IPv6MinimumSize {
			return ""
		}
		proto, p = p[6], p[header.IPv6MinimumSize:]
	default:
		return ""
	}
	switch {
	case proto == protoTCP && header.TCP(p).Flags()&^header.TCPFlagAck == header.TCPFlagRst:
		return "reset"
	case proto == protoICMP && p[0] == 3, proto == protoICMPv6 && p[0] == 1:
		return "unreachable"
	case proto == protoICMP && p[0] == 0, proto == protoICMPv6 && p[0] == 129:
		return "pong"
	case proto == protoICMPv6 && p[0] == 136:
		return "advertisement"
	case proto == protoICMP && p[0] == 12, proto == protoICMPv6 && p[0] == 4:
		return "parameter problem"
	}
	return ""
}

func TestStackAnswers(t *testing.T) {
	t.Parallel()
	answer := newAnswers(t)
	solicit := packet{dst: GatewayIPv6, proto: protoICMPv6, body: solicitation(GatewayIPv6)}
	for _, c := range []struct {
		name  string
		frame []byte
		want  string
	}{
		{"arp", who(GatewayIPv4), "arp"},
		{"arp for another", who("10.87.0.3"), ""},
		{"solicitation", solicit.frame(), "advertisement"},
		{"ping", packet{dst: GatewayIPv4, proto: protoICMP, body: echo(8)}.frame(), "pong"},
		{"ping6", packet{dst: GatewayIPv6, proto: protoICMPv6, body: echo(128)}.frame(), "pong"},
		{"ping of another", packet{dst: "192.0.2.1", proto: protoICMP, body: echo(8)}.frame(), ""},
		{"tcp", packet{dst: "192.0.2.1", proto: protoTCP, body: syn()}.frame(), "reset"},
		{"tcp6", packet{dst: "2001:db8::1", proto: protoTCP, body: syn()}.frame(), "reset"},
		{"tcp to the gateway", packet{dst: GatewayIPv4, proto: protoTCP, body: syn()}.frame(), "reset"},
		{"udp", packet{dst: "192.0.2.1", proto: protoUDP, body: datagram()}.frame(), "unreachable"},
		{"udp6", packet{dst: "2001:db8::1", proto: protoUDP, body: datagram()}.frame(), "unreachable"},
		{"dns at the gateway", packet{dst: GatewayIPv4, proto: protoUDP, body: datagram()}.frame(), "unreachable"},
	} {
		got := answer(c.frame)
		switch {
		case c.want == "" && len(got) != 0:
			t.Errorf("%s: answered %x", c.name, got)
		case c.want != "" && (len(got) != 1 || kind(got[0]) != c.want):
			t.Errorf("%s: got %x, want one %s", c.name, got, c.want)
		}
	}
}

// No input from a sandbox crashes the stack or causes anything but refusals.
func FuzzStack(f *testing.F) {
	for _, seed := range [][]byte{
		who(GatewayIPv4),
		packet{dst: GatewayIPv6, proto: protoICMPv6, body: solicitation(GatewayIPv6)}.frame(),
		packet{dst: GatewayIPv4, proto: protoICMP, body: echo(8)}.frame(),
		packet{dst: GatewayIPv6, proto: protoICMPv6, body: echo(128)}.frame(),
		packet{dst: "192.0.2.1", proto: protoTCP, body: syn()}.frame(),
		packet{dst: "2001:db8::1", proto: protoTCP, body: syn()}.frame(),
		packet{dst: "192.0.2.1", proto: protoUDP, body: datagram()}.frame(),
		packet{dst: "2001:db8::1", proto: protoUDP, body: datagram()}.frame(),
		change(packet{dst: "192.0.2.1", proto: protoTCP, body: syn()}.frame(), 14+6, 0x20, 0),
		change(packet{dst: "2001:db8::1", proto: protoTCP, body: syn()}.frame(), 14+6, 44),
	} {
		f.Add(seed, true)
		f.Add(seed, false)
		f.Add(seed[:len(seed)/2], true)
	}
	answer := newAnswers(f)
	var mu sync.Mutex // the frames of one sandbox arrive one at a time
	f.Fuzz(func(t *testing.T, frame []byte, fix bool) {
		mu.Lock()
		defer mu.Unlock()
		if fix {
			frame = bytes.Clone(frame)
			repair(frame)
		}
		for _, a := range answer(frame) {
			if kind(a) == "" {
				t.Errorf("%x was answered %x", frame, a)
			}
		}
	})
}
