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

// Config configures a [Forwarder]. All functions are called concurrently, and on the path of packets: they must not block, except
// those in Local and LocalUDP.
type Config struct {
	Stack *stack.Stack
	NIC   tcpip.NICID
	// Gateway are the addresses of the wire's gateway. They are never dialled; their services are in Local and LocalUDP.
	Gateway []netip.Addr
	// Local are TCP services at the Gateway addresses, by port; other ports refuse connections. A service owns its connection
	// and may return before it closes it; its operations on the connection fail when the Forwarder closes.
	Local map[uint16]func(net.Conn)
	// LocalMost limits the concurrent connections to a port of Local; a port that is not listed has only the general limits.
	LocalMost map[uint16]int
	// LocalUDP are datagram services at the Gateway addresses, by port. The context ends when the Forwarder closes; no datagram
	// is sent for an empty answer.
	LocalUDP map[uint16]func(ctx context.Context, query []byte, from netip.AddrPort) []byte
	// Decide evaluates the current policy. The caller must call [Forwarder.Recheck] after a change.
	Decide func(caisson.Flow) caisson.Verdict
	// Names returns the names for which the resolver recently returned the address; lower case, without the final dot.
	Names  func(netip.Addr) []string
	Dialer Dialer
	// Report receives every decision once, with Count 1. When an allowed flow ends, it receives its byte counts, with Count 0.
	Report func(caisson.Decision)
	Limits Limits
	// ProcessLimits are shared with other Forwarders; nil: only Limits apply.
	ProcessLimits *ProcessLimits
}

// A Dialer connects to destinations on the network. Safe for concurrent use. An error of kind [caisson.Denied] means that no
// policy can allow the destination.
type Dialer interface {
	// Own reports whether packets to addr arrive at this host, or at several hosts (broadcast, multicast). It sends no packets.
	Own(addr netip.Addr) (bool, error)
	DialTCP(ctx context.Context, dst netip.AddrPort) (*net.TCPConn, error)
	// DialUDP must not block.
	DialUDP(ctx context.Context, dst netip.AddrPort) (*net.UDPConn, error)
}

// Limits are the limits of one sandbox. Zero values select the defaults.
type Limits struct {
	InFlight int // connections being decided, dialled or accepted; default 128
	TCP      int // connections, including those in flight and those that are closing; default 1024
	UDP      int // datagram flows; default 256
	// Wide is the number of connections to destinations with large buffers, at most about 5 MB each; default 32. Other
	// connections have about 0.1 MB, and 0.25 MB in the kernel.
	Wide      int
	PerSecond int // new flows per second; default 500. Packets of further flows are dropped without a report
	Burst     int // new flows at once after an idle period; default 1000
	Queries   int // concurrent queries of LocalUDP services; default 64
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

// timeouts are the timeouts of a Forwarder; tests shorten them.
type timeouts struct {
	dial       time.Duration // for connecting to the destination
	sniff      time.Duration // from the first byte until the protocol must be known
	header     time.Duration // for the header of an HTTP request, from its first bytes
	halfClosed time.Duration // time without data, after one direction has ended
	udpIdle    time.Duration // time without another datagram, after several ones
	udpOnce    time.Duration // time without another datagram, after the first one
}

func defaultTimeouts() timeouts {
	return timeouts{
		dial:       10 * time.Second,
		sniff:      10 * time.Second,
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
		return caisson.Invalidf("names", "a forwarder needs names")
	case c.Dialer == nil:
		return caisson.Invalidf("dialer", "a forwarder needs a dialer")
	case c.Report == nil:
		return caisson.Invalidf("report", "a forwarder needs a report function")
	}
	return nil
}

// Stats are the counters of a [Forwarder].
type Stats struct {
	InFlight int   // connections that are being decided, dialled or accepted
	TCP      int   // current connections, including those in flight
	UDP      int   // current datagram flows
	Allowed  int64 // flows that the policy allowed
	Denied   int64 // flows that the policy denied, at their start or later
	Failed   int64 // allowed flows that could not be connected
	Limited  int64 // flows refused because of a limit
	Dropped  int64 // new flows and queries dropped because of their rate
	Requests int64 // HTTP requests and TLS handshakes refused
	BytesOut int64 // bytes from the sandbox
	BytesIn  int64 // bytes to the sandbox
}
