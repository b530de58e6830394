package flow

import (
	"context"
	"net"
	"net/netip"
	"time"

	caisson "github.com/caisson-dev/caisson"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// Config says what a [Forwarder] works with. All functions are called concurrently, and on the path of packets: they must
// not block, except those in Local and LocalUDP.
type Config struct {
	Stack *stack.Stack
	NIC   tcpip.NICID
	// Gateway are the wire's own addresses. They are never dialled; what is there is in Local and LocalUDP.
	Gateway []netip.Addr
	// Local are TCP services at the gateway's addresses, by port; other ports refuse. A service owns its connection, may
	// return before it closes it, and sees it fail when the Forwarder closes.
	Local map[uint16]func(net.Conn)
	// LocalMost bounds the connections that a port of Local has at once; a port without one has the limits of all.
	LocalMost map[uint16]int
	// LocalUDP are datagram services at the gateway's addresses, by port. The context ends when the Forwarder closes; an
	// empty answer is none.
	LocalUDP map[uint16]func(ctx context.Context, query []byte, from netip.AddrPort) []byte
	// Decide is the policy in force. When it has changed, call [Forwarder.Recheck].
	Decide func(caisson.Flow) caisson.Verdict
	// Names are those that the sandbox was lately told to have the address; lower case, without the final dot.
	Names  func(netip.Addr) []string
	Dialer Dialer
	// Report gets every decision once, with Count 1, and the bytes of an allowed flow at its end, with Count 0.
	Report func(caisson.Decision)
	Limits Limits
	// Budget is shared with other Forwarders. Nil means that only Limits bound this one.
	Budget *Budget
}

// A Dialer connects to the world. Safe for concurrent use. An error of kind [caisson.Denied] says that no policy can allow
// the destination.
type Dialer interface {
	// Own says whether what is sent to addr arrives at this host, or at more than one. It sends nothing.
	Own(addr netip.Addr) (bool, error)
	DialTCP(ctx context.Context, dst netip.AddrPort) (*net.TCPConn, error)
	// DialUDP must not block.
	DialUDP(ctx context.Context, dst netip.AddrPort) (*net.UDPConn, error)
}

// Limits bound what one sandbox can have at once. Zero values mean the defaults.
type Limits struct {
	InFlight  int // connections being decided, dialled or accepted; 128
	TCP       int // connections, those in flight and those not quite gone included; 1024
	UDP       int // datagram flows; 256
	Wide      int // connections to the world with large buffers, about 5 MB each at worst; 32. Others have about 0.1 MB, and 0.25 MB in the kernel
	PerSecond int // new flows in a second; 500. What is beyond is dropped in silence
	Burst     int // how many may begin at once after a rest; 1000
	Queries   int // datagrams at LocalUDP services being answered; 64
}

func (l Limits) withDefaults() Limits {
	for _, d := range []struct {
		value *int
		usual int
	}{
		{&l.InFlight, 128}, {&l.TCP, 1024}, {&l.UDP, 256}, {&l.Wide, 32}, {&l.PerSecond, 500}, {&l.Burst, 1000}, {&l.Queries, 64},
	} {
		if *d.value <= 0 {
			*d.value = d.usual
		}
	}
	return l
}

// times are the durations of a Forwarder; tests shorten them.
type times struct {
	dial       time.Duration // for connecting
	speech     time.Duration // from the first byte said until it is clear what is spoken
	header     time.Duration // for the header of an HTTP request, from its first bytes
	halfClosed time.Duration // without a byte, once either direction has ended
	udpIdle    time.Duration // without a datagram
	udpOnce    time.Duration // the same if there has been only one
}

func usualTimes() times {
	return times{
		dial:       10 * time.Second,
		speech:     10 * time.Second,
		header:     10 * time.Second,
		halfClosed: 15 * time.Minute,
		udpIdle:    60 * time.Second,
		udpOnce:    30 * time.Second,
	}
}

func (c *Config) check() error {
	switch {
	case c.Stack == nil:
		return caisson.Invalidf("stack", "a forwarder needs a stack")
	case c.Decide == nil:
		return caisson.Invalidf("decide", "a forwarder needs a policy")
	case c.Names == nil:
		return caisson.Invalidf("names", "a forwarder needs to know names")
	case c.Dialer == nil:
		return caisson.Invalidf("dialer", "a forwarder needs a dialer")
	case c.Report == nil:
		return caisson.Invalidf("report", "a forwarder needs somebody to report to")
	}
	return nil
}

// Stats counts what a [Forwarder] has done, and has.
type Stats struct {
	InFlight int   // connections being decided, dialled or accepted, now
	TCP      int   // connections, now; those in flight included
	UDP      int   // datagram flows, now
	Allowed  int64 // flows that the policy allowed
	Denied   int64 // flows that it did not allow, or not any more
	Failed   int64 // allowed flows that could not be connected
	Limited  int64 // flows refused for a limit
	Dropped  int64 // beginnings of flows, and queries, dropped for their rate
	Requests int64 // HTTP requests and TLS handshakes refused
	BytesOut int64
	BytesIn  int64
}
