package flow

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	caisson "github.com/caisson-dev/caisson"
	"golang.org/x/time/rate"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
)

// Receive and send buffers of the stack's endpoints, in bytes. The wire's round trip takes tens of microseconds, so they need not
// grow with the bandwidth; gVisor's window is half a receive buffer. With its read buffers, a narrow flow (one without large
// buffers) takes about 100 KiB.
const (
	firstReceive  = 128 << 10 // during the handshake, which determines the window scale of the connection
	narrowReceive = 48 << 10
	narrowSend    = 32 << 10
	wideBuffer    = 2 << 20   // for flows with large buffers
	streamBuffer  = 512 << 10 // for connections to services at the wire's gateway that called Widen
)

// narrowSocket is the size of each buffer of the socket to the destination, in bytes, for a flow without large buffers; Linux
// takes twice that size.
const narrowSocket = 64 << 10

// A Forwarder relays one sandbox's flows. Safe for concurrent use.
type Forwarder struct {
	cfg     Config
	times   timeouts
	limiter *rate.Limiter  // limits new flows
	queries chan struct{}  // has an element for each query of a LocalUDP service in progress
	syns    *tcp.Forwarder // calls connect for each SYN

	ctx    context.Context    // ends when Close is called
	cancel context.CancelFunc // cancels ctx
	work   sync.WaitGroup     // flows, handshakes and queries, for which Close waits

	inFlight atomic.Int64 // connections being decided, dialled or accepted
	// Numbers of flows: allowed, denied, allowed but not connected (failed), refused by a limit (limited), or ignored because
	// of the rate of new ones (dropped; also queries beyond their limit). requests counts refused HTTP requests and TLS handshakes.
	allowed, denied, failed, limited, dropped, requests atomic.Int64
	bytesOut, bytesIn                                   atomic.Int64 // bytes of flows that have ended

	mu     sync.Mutex
	closed bool               // Close was called; guarded by mu
	flows  map[*flow]struct{} // all flows; guarded by mu
	tcp    int                // number of TCP flows; guarded by mu
	udp    int                // number of UDP flows; guarded by mu
	wide   int                // number of flows with large buffers; guarded by mu
	local  map[uint16]int     // connections to services at the wire's gateway, by port; guarded by mu
}

// New makes cfg.Stack forward packets for which it has no endpoint. It must be called before the stack's NIC is created. The
// Forwarder handles the stack's TCP and UDP until [Forwarder.Close].
func New(cfg Config) (*Forwarder, error) { return newForwarder(cfg, defaultTimeouts()) }

func newForwarder(cfg Config, t timeouts) (*Forwarder, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	cfg.Limits = cfg.Limits.withDefaults()
	f := &Forwarder{
		cfg:     cfg,
		times:   t,
		limiter: rate.NewLimiter(rate.Limit(cfg.Limits.PerSecond), cfg.Limits.Burst),
		queries: make(chan struct{}, cfg.Limits.Queries),
		flows:   map[*flow]struct{}{},
		local:   map[uint16]int{},
	}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	if err := configure(cfg.Stack); err != nil {
		f.cancel()
		return nil, err
	}
	f.syns = tcp.NewForwarder(cfg.Stack, firstReceive, cfg.Limits.InFlight, f.connect)
	cfg.Stack.SetTransportProtocolHandler(tcp.ProtocolNumber, f.handleTCP)
	cfg.Stack.SetTransportProtocolHandler(udp.ProtocolNumber, f.handleUDP)
	cfg.ProcessLimits.addForwarder()
	return f, nil
}

// configure sets TCP options of the stack. The wire loses packets only on overload, so timeouts can be short; buffer sizes are
// bounded because a sandbox can have a thousand connections.
func configure(s *stack.Stack) error {
	sack := tcpip.TCPSACKEnabled(true)
	moderate := tcpip.TCPModerateReceiveBufferOption(false)
	receive := tcpip.TCPReceiveBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: firstReceive, Max: wideBuffer}
	send := tcpip.TCPSendBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: narrowSend, Max: wideBuffer}
	timeWait := tcpip.TCPTimeWaitTimeoutOption(time.Second)
	retries := tcpip.TCPSynRetriesOption(3)
	for _, o := range []tcpip.SettableTransportProtocolOption{&sack, &moderate, &receive, &send, &timeWait, &retries} {
		if err := s.SetTransportProtocolOption(tcp.ProtocolNumber, o); err != nil {
			return caisson.Errorf(caisson.Internal, "configure the stack's tcp: %T: %s", o, err)
		}
	}
	return nil
}

// Close resets all flows and waits until all their state is removed. The stack then refuses new ones.
func (f *Forwarder) Close() {
	f.mu.Lock()
	if !f.closed {
		f.cfg.ProcessLimits.removeForwarder()
	}
	f.closed = true
	flows := f.list()
	f.mu.Unlock()
	f.cancel()
	for _, c := range flows {
		c.end("")
	}
	done := make(chan struct{})
	go func() {
		f.work.Wait()
		close(done)
	}()
	// An incomplete handshake would block its goroutine, and another one may be about to start, so Close aborts them repeatedly.
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		for _, e := range f.cfg.Stack.RegisteredEndpoints() {
			e.Abort()
		}
		select {
		case <-done:
			return
		case <-again.C:
		}
	}
}

// Recheck evaluates the policy for all flows again. When it returns, those that are no longer allowed have been reset. A flow
// that was allowed by address, whose content was not checked, is reset if the policy now allows it only by name.
func (f *Forwarder) Recheck() {
	f.mu.Lock()
	flows := f.list()
	f.mu.Unlock()
	for _, c := range flows {
		if !c.toGateway {
			c.recheck()
		}
	}
}

// Stats returns the counters and current numbers.
func (f *Forwarder) Stats() Stats {
	s := Stats{
		InFlight: int(f.inFlight.Load()),
		Allowed:  f.allowed.Load(),
		Denied:   f.denied.Load(),
		Failed:   f.failed.Load(),
		Limited:  f.limited.Load(),
		Dropped:  f.dropped.Load(),
		Requests: f.requests.Load(),
		BytesOut: f.bytesOut.Load(),
		BytesIn:  f.bytesIn.Load(),
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	s.TCP, s.UDP = f.tcp, f.udp
	for c := range f.flows {
		s.BytesOut += c.out.Load()
		s.BytesIn += c.in.Load()
	}
	return s
}

// list returns all flows. The caller must hold f.mu.
func (f *Forwarder) list() []*flow {
	flows := make([]*flow, 0, len(f.flows))
	for c := range f.flows {
		flows = append(flows, c)
	}
	return flows
}

// open adds a flow, or returns the limit that prevents it. Every flow must be removed with [flow.release].
func (f *Forwarder) open(protocol string, dst netip.AddrPort) (c *flow, limit string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	count, most := &f.tcp, f.cfg.Limits.TCP
	if protocol == "udp" {
		count, most = &f.udp, f.cfg.Limits.UDP
	}
	local := protocol == "tcp" && f.isGateway(dst.Addr())
	port := dst.Port()
	mostLocal, bounded := f.cfg.LocalMost[port]
	switch {
	case f.closed:
		return nil, "the wire is closing"
	case local && bounded && f.local[port] >= mostLocal:
		return nil, limitReason(fmt.Sprintf("connections to port %d of the gateway", port), mostLocal)
	case *count >= most:
		return nil, limitReason(protocol+" flows", most)
	case !f.cfg.ProcessLimits.acquireFlow(f.tcp + f.udp):
		return nil, "all sandboxes together have too many flows, and this one has reached its share"
	}
	*count++
	f.work.Add(1)
	c = &flow{f: f, start: time.Now(), toGateway: local}
	if local {
		f.local[port]++
	}
	c.attrs = caisson.Flow{Protocol: protocol, Dst: dst}
	if protocol == "tcp" && !c.toGateway && f.wide < f.cfg.Limits.Wide && f.cfg.ProcessLimits.acquireWide(f.wide) {
		f.wide++
		c.wide = true
	}
	c.ctx, c.cancel = context.WithCancel(f.ctx)
	f.flows[c] = struct{}{}
	return c, ""
}

func (f *Forwarder) isGateway(addr netip.Addr) bool { return slices.Contains(f.cfg.Gateway, addr) }

func (f *Forwarder) isClosed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.closed
}

// report reports the verdict v on what, as a decision of the given kind; reason replaces v.Reason unless it is "".
func (f *Forwarder) report(kind string, what caisson.Flow, v caisson.Verdict, reason string) {
	if reason == "" {
		reason = v.Reason
	}
	f.cfg.Report(caisson.Decision{
		At: time.Now(), Kind: kind, Allowed: v.Allowed, Rule: v.Rule, Reason: reason, Name: v.Name,
		Address: what.Dst.String(), Protocol: what.Protocol, Count: 1,
	})
}

// deny reports that a flow is refused for a reason other than a rule.
func (f *Forwarder) deny(what caisson.Flow, reason string) {
	f.report("flow", what, caisson.Verdict{Rule: -1, Reason: reason}, "")
}
