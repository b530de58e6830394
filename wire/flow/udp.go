package flow

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	caisson "github.com/caisson-dev/caisson"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"
)

const (
	// datagramBuffer is the size of an endpoint's buffers in bytes, enough for a few of the largest datagrams.
	datagramBuffer = 256 << 10
	// maxDatagram is the largest payload of a datagram over IPv4, in bytes.
	maxDatagram = 65507
)

// handleUDP handles datagrams for which there is no flow yet. If handleUDP returns false, the stack answers with a port
// unreachable message unless the datagram is malformed.
func (f *Forwarder) handleUDP(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
	if !validUDP(pkt) || f.isClosed() {
		return false
	}
	what := caisson.Flow{Protocol: "udp", Dst: destination(id)}
	if f.isGateway(what.Dst.Addr()) && f.cfg.LocalUDP[id.LocalPort] != nil {
		f.serveQuery(id, pkt)
		return true
	}
	if !f.limiter.Allow() {
		f.dropped.Add(1)
		return true
	}
	if f.isGateway(what.Dst.Addr()) {
		f.denied.Add(1)
		f.deny(what, "the gateway has no service on this port")
		return false
	}
	c, limit := f.open("udp", what.Dst)
	if limit != "" {
		f.reportLimit(what, limit)
		return false
	}
	var up *net.UDPConn
	if !f.dial(c, func() (err error) {
		up, err = f.cfg.Dialer.DialUDP(c.ctx, c.attrs.Dst)
		return err
	}) {
		if up != nil {
			up.Close()
		}
		c.release()
		return false
	}
	wq := new(waiter.Queue)
	ep, err := udp.NewForwarderRequest(f.cfg.Stack, id, pkt.Clone()).CreateEndpoint(wq)
	if err != nil { // a concurrent datagram created the endpoint
		up.Close()
		c.release()
		return true
	}
	e := &datagramRelay{c: c, ep: ep, wq: wq, up: up}
	e.last.Store(time.Now().UnixNano())
	ep.SocketOptions().SetReceiveBufferSize(datagramBuffer, true)
	ep.SocketOptions().SetSendBufferSize(datagramBuffer, true)
	if !c.accept() {
		e.close()
		c.release()
		return true
	}
	go e.run()
	return true
}

// validUDP reports whether the length and the checksum of a datagram are correct.
func validUDP(pkt *stack.PacketBuffer) bool {
	h := header.UDP(pkt.TransportHeader().Slice())
	if len(h) < header.UDPMinimumSize || pkt.Data().Size() > 0xffff-header.UDPMinimumSize {
		return false
	}
	ip := pkt.Network()
	length, sum := header.UDPValid(h, func() uint16 { return pkt.Data().Checksum() }, uint16(pkt.Data().Size()),
		pkt.NetworkProtocolNumber, ip.SourceAddress(), ip.DestinationAddress(), pkt.RXChecksumValidated)
	return length && sum
}

// A datagramRelay relays datagrams between one port of the sandbox and one destination.
type datagramRelay struct {
	c  *flow
	ep tcpip.Endpoint // the stack's socket, for the sandbox
	wq *waiter.Queue  // notifies of events of ep
	up *net.UDPConn   // socket connected to the destination

	last    atomic.Int64 // time of the last datagram, in nanoseconds since 1970
	packets atomic.Int64 // datagrams in both directions
	once    sync.Once    // makes close act only once
}

func (e *datagramRelay) close() {
	e.once.Do(func() {
		e.up.Close()
		e.ep.Close()
	})
}

// run relays until the timeout udpIdle or udpOnce, until the destination reports the port as unreachable, or until the flow is
// reset.
func (e *datagramRelay) run() {
	defer e.c.release()
	e.c.onEnd(e.close)
	var ends sync.WaitGroup
	defer ends.Wait()
	defer e.close()
	ended := make(chan struct{}, 2)
	ends.Go(func() { e.relayOut(); ended <- struct{}{} })
	ends.Go(func() { e.relayIn(); ended <- struct{}{} })
	idle := time.NewTimer(e.c.f.times.udpOnce)
	defer idle.Stop()
	for {
		select {
		case <-ended:
			return
		case <-e.c.ctx.Done():
			return
		case <-idle.C:
		}
		most := e.c.f.times.udpIdle
		if e.packets.Load() <= 1 {
			most = e.c.f.times.udpOnce
		}
		rest := most - time.Since(time.Unix(0, e.last.Load()))
		if rest <= 0 {
			return
		}
		idle.Reset(rest)
	}
}

// count counts one datagram of n bytes.
func (e *datagramRelay) count(bytes *atomic.Int64, n int) {
	bytes.Add(int64(n))
	e.packets.Add(1)
	e.last.Store(time.Now().UnixNano())
}

// relayOut relays datagrams from the sandbox until the relay is closed or the destination reports the port as unreachable.
func (e *datagramRelay) relayOut() {
	entry, ready := waiter.NewChannelEntry(waiter.ReadableEvents | waiter.EventHUp)
	e.wq.EventRegister(&entry)
	defer e.wq.EventUnregister(&entry)
	for {
		chunk := datagramChunks.get()
		w := tcpip.SliceWriter(*chunk)
		r, terr := e.ep.Read(&w, tcpip.ReadOptions{})
		var err error
		if terr == nil {
			e.count(&e.c.out, r.Count)
			_, err = e.up.Write((*chunk)[:r.Count])
		}
		datagramChunks.put(chunk)
		if _, wait := terr.(*tcpip.ErrWouldBlock); wait {
			select {
			case <-ready:
			case <-e.c.ctx.Done():
				return
			}
			continue
		}
		// A datagram that is too large or exceeds the buffer is dropped, as on any network.
		if terr != nil || errors.Is(err, net.ErrClosed) || errors.Is(err, unix.ECONNREFUSED) {
			return
		}
	}
}

// relayIn relays datagrams to the sandbox until the relay is closed or the destination reports the port as unreachable.
func (e *datagramRelay) relayIn() {
	conn, err := e.up.SyscallConn()
	if err != nil {
		return
	}
	for {
		chunk, n, err := readChunk(conn, datagramChunks)
		if err == nil {
			e.count(&e.c.in, n)
			var r bytes.Reader
			r.Reset((*chunk)[:n])
			e.ep.Write(&r, tcpip.WriteOptions{}) // a datagram that exceeds the buffer is dropped
		}
		datagramChunks.put(chunk)
		if err != nil {
			return
		}
	}
}

// serveQuery passes a datagram to the handler of its port at the wire's gateway, such as the resolver, and sends the answer. It
// drops the datagram if too many queries are in progress.
func (f *Forwarder) serveQuery(id stack.TransportEndpointID, pkt *stack.PacketBuffer) {
	select {
	case f.queries <- struct{}{}:
	default:
		f.dropped.Add(1)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		<-f.queries
		return
	}
	f.work.Add(1)
	payload := pkt.Data().AsRange().ToSlice()
	payload = payload[:header.UDP(pkt.TransportHeader().Slice()).Length()-header.UDPMinimumSize]
	network := pkt.NetworkProtocolNumber
	go func() {
		defer f.work.Done()
		from, _ := netip.AddrFromSlice(id.RemoteAddress.AsSlice())
		answer := f.cfg.LocalUDP[id.LocalPort](f.ctx, payload, netip.AddrPortFrom(from, id.RemotePort))
		<-f.queries // ends the query before the answer is sent, because its recipient may send the next query at once
		if len(answer) > 0 && len(answer) <= maxDatagram {
			f.sendAnswer(id, network, answer)
		}
	}()
}

// sendAnswer sends a datagram back to the source of id. Errors are ignored, as for a lost datagram.
func (f *Forwarder) sendAnswer(id stack.TransportEndpointID, network tcpip.NetworkProtocolNumber, payload []byte) {
	route, err := f.cfg.Stack.FindRoute(f.cfg.NIC, id.LocalAddress, id.RemoteAddress, network, false)
	if err != nil {
		return
	}
	defer route.Release()
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{
		ReserveHeaderBytes: header.UDPMinimumSize + int(route.MaxHeaderLength()),
		Payload:            buffer.MakeWithData(payload),
	})
	defer pkt.DecRef()
	pkt.TransportProtocolNumber = udp.ProtocolNumber
	length := uint16(header.UDPMinimumSize + len(payload))
	h := header.UDP(pkt.TransportHeader().Push(header.UDPMinimumSize))
	h.Encode(&header.UDPFields{SrcPort: id.LocalPort, DstPort: id.RemotePort, Length: length})
	sum := checksum.Combine(route.PseudoHeaderChecksum(udp.ProtocolNumber, length), checksum.Checksum(payload, 0))
	if sum = ^h.CalculateChecksum(sum); sum == 0 {
		sum = 0xffff
	}
	h.SetChecksum(sum)
	route.WritePacket(stack.NetworkHeaderParams{Protocol: udp.ProtocolNumber, TTL: route.DefaultTTL()}, pkt)
}
