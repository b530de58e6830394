package flow

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"

	caisson "github.com/caisson-dev/caisson"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// handleTCP handles segments for which the stack has no endpoint. The stack sends a reset if handleTCP returns false.
func (f *Forwarder) handleTCP(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
	const opening = header.TCPFlagSyn | header.TCPFlagAck | header.TCPFlagRst | header.TCPFlagFin
	h := header.TCP(pkt.TransportHeader().Slice())
	if len(h) < header.TCPMinimumSize || h.Flags()&opening != header.TCPFlagSyn || f.isClosed() {
		return false
	}
	if !f.limiter.Allow() {
		f.dropped.Add(1)
		return true
	}
	if most := f.cfg.Limits.InFlight; int(f.inFlight.Load()) >= most {
		f.reportLimit(caisson.Flow{Protocol: "tcp", Dst: destination(id)}, limitReason("connections that are being made", most))
		return false
	}
	return f.syns.HandlePacket(id, pkt)
}

// reportLimit reports that a flow is refused because of a limit.
func (f *Forwarder) reportLimit(what caisson.Flow, reason string) {
	f.limited.Add(1)
	f.deny(what, reason)
}

// destination returns the address to which the sandbox connects. IPv4-mapped addresses stay as they are; no dialer accepts them.
func destination(id stack.TransportEndpointID) netip.AddrPort {
	addr, _ := netip.AddrFromSlice(id.LocalAddress.AsSlice())
	return netip.AddrPortFrom(addr, id.LocalPort)
}

// addWork counts an operation that Close waits for. It returns false if the Forwarder is closing.
func (f *Forwarder) addWork() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.closed {
		f.work.Add(1)
	}
	return !f.closed
}

// connect handles one SYN, in a separate goroutine.
func (f *Forwarder) connect(r *tcp.ForwarderRequest) {
	if !f.addWork() {
		r.Complete(true)
		return
	}
	defer f.work.Done() // Close waits for refused connections, too: their handling continues after the reset was sent
	f.inFlight.Add(1)
	c, g, up := f.accept(r)
	f.inFlight.Add(-1)
	if c == nil {
		return
	}
	defer c.release()
	if g == nil {
		return
	}
	if c.toGateway {
		f.cfg.Local[c.attrs.Dst.Port()](g)
		g.linger(c)
		return
	}
	defer up.Close()
	c.relay(g, up)
	g.linger(c)
}

// accept decides about a connection, dials, and then completes the handshake. The guestConn is nil if no connection was
// established; the flow is also nil if a limit was reached.
func (f *Forwarder) accept(r *tcp.ForwarderRequest) (_ *flow, _ *guestConn, up *net.TCPConn) {
	dst := destination(r.ID())
	c, limit := f.open("tcp", dst)
	if limit != "" {
		r.Complete(true)
		f.reportLimit(caisson.Flow{Protocol: "tcp", Dst: dst}, limit)
		return nil, nil, nil
	}
	var g *guestConn
	var ok bool
	if c.toGateway {
		ok = f.hasService(c)
	} else {
		ok = f.dial(c, func() (err error) {
			up, err = f.dialTCP(c)
			return err
		})
	}
	if ok {
		g = c.handshake(r)
	}
	r.Complete(!ok)
	switch {
	case g != nil && (c.toGateway || c.accept()):
		return c, g, up
	case g != nil:
		g.abort()
	case ok && !c.toGateway && f.ctx.Err() == nil: // the destination accepted, but the sandbox did not complete the handshake
		f.failed.Add(1)
	}
	if up != nil {
		reset(up)
	}
	return c, nil, nil
}

// hasService reports whether Config.Local has a service on the port of c. If not, it reports a denial.
func (f *Forwarder) hasService(c *flow) bool {
	if f.cfg.Local[c.attrs.Dst.Port()] == nil {
		f.denied.Add(1)
		f.deny(c.attrs, "the gateway has no service on this port")
		return false
	}
	return true
}

// dial decides about c and, if it is allowed, calls connect to connect it. It reports a denial or failure and then returns false.
func (f *Forwarder) dial(c *flow, connect func() error) bool {
	v, err := c.decide()
	if v.Allowed {
		if err == nil {
			err = connect()
		}
		if err != nil {
			f.reportDialError(c, v, err)
			return false
		}
		v = c.redecide() // the policy may have changed since decide
	}
	if !v.Allowed {
		f.denied.Add(1)
		f.report("flow", c.attrs, v, "")
	}
	return v.Allowed
}

// dialTCP connects to the destination of c.
func (f *Forwarder) dialTCP(c *flow) (*net.TCPConn, error) {
	ctx, cancel := context.WithTimeout(c.ctx, f.times.dial)
	defer cancel()
	up, err := f.cfg.Dialer.DialTCP(ctx, c.attrs.Dst)
	if err != nil {
		return nil, err
	}
	c.onEnd(func() { reset(up) })
	if !c.wide { // keeps the kernel's buffers from growing to megabytes each; setting their size cannot fail
		up.SetReadBuffer(narrowSocket)
		up.SetWriteBuffer(narrowSocket)
	}
	return up, nil
}

// reportDialError reports that an allowed flow could not be connected, unless the flow has ended already.
func (f *Forwarder) reportDialError(c *flow, v caisson.Verdict, err error) {
	c.mu.Lock()
	ended := c.ended
	c.mu.Unlock()
	switch {
	case ended:
	case caisson.KindOf(err) == caisson.Denied:
		f.denied.Add(1)
		f.deny(c.attrs, caisson.MessageOf(err))
	default:
		f.failed.Add(1)
		f.report("flow", c.attrs, v, v.Reason+"; connecting failed: "+dialErrorText(err))
	}
}

// dialErrorText returns a short reason, without addresses, why a dial failed.
func dialErrorText(err error) string {
	var errno syscall.Errno
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return "no answer in time"
	case errors.As(err, &errno):
		return errno.Error()
	default:
		return "not possible"
	}
}

// handshake accepts the connection. It returns nil if the sandbox does not complete the handshake.
func (c *flow) handshake(r *tcp.ForwarderRequest) *guestConn {
	if c.ctx.Err() != nil {
		return nil
	}
	wq := new(waiter.Queue)
	ep, err := r.CreateEndpoint(wq)
	if err != nil {
		return nil
	}
	return newGuestConn(c, ep, wq)
}

// reset closes conn with a TCP reset.
func reset(conn *net.TCPConn) {
	conn.SetLinger(0) // fails only if conn is closed
	conn.Close()
}

// configureEndpoint sets keepalive and the buffers of the stack's end of a TCP connection: if wide, buffers of wideBuffer bytes,
// for more throughput. Setting them cannot fail on a connection; if it did, the defaults would apply.
func configureEndpoint(ep tcpip.Endpoint, wide bool) {
	o := ep.SocketOptions()
	o.SetDelayOption(false)
	setBuffers(o, wide, wideBuffer)
	o.SetKeepAlive(true)
	idle, interval := tcpip.KeepaliveIdleOption(keepaliveIdle), tcpip.KeepaliveIntervalOption(keepaliveInterval)
	ep.SetSockOpt(&idle)
	ep.SetSockOpt(&interval)
	ep.SetSockOptInt(tcpip.KeepaliveCountOption, keepaliveCount)
}

// setBuffers sets the sizes of an endpoint's buffers: if wide, both to size, otherwise to narrowReceive and narrowSend.
func setBuffers(o *tcpip.SocketOptions, wide bool, size int64) {
	receive, send := int64(narrowReceive), int64(narrowSend)
	if wide {
		receive, send = size, size
	}
	o.SetReceiveBufferSize(receive, true)
	o.SetSendBufferSize(send, true)
}
