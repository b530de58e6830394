package flow

import (
	"bytes"
	"errors"
	"io"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// errSandboxSide reports that the sandbox's endpoint cannot be read or written.
var errSandboxSide = errors.New("the sandbox's side of the connection failed")

// A guestConn is the sandbox's end of a TCP connection. It counts the bytes in both directions.
type guestConn struct {
	*gonet.TCPConn
	flow *flow
	ep   tcpip.Endpoint // the stack's end of the connection
	wq   *waiter.Queue  // notifies of events of ep

	hup       waiter.Entry  // closes ended on waiter.EventHUp
	ended     chan struct{} // closed when the endpoint has ended, normally or with an error
	endOnce   sync.Once     // makes ended be closed only once
	closed    chan struct{} // closed by Close
	closeOnce sync.Once     // makes Close act only once

	readMu   sync.Mutex
	pushback []byte // data that Read returns before data of the connection; guarded by readMu
}

func newGuestConn(c *flow, ep tcpip.Endpoint, wq *waiter.Queue) *guestConn {
	configureEndpoint(ep, c.wide)
	g := &guestConn{
		TCPConn: gonet.NewTCPConn(wq, ep), flow: c, ep: ep, wq: wq,
		ended: make(chan struct{}), closed: make(chan struct{}),
	}
	// The queue may be notified while the endpoint is locked, so the callback must not use the endpoint.
	g.hup = waiter.NewFunctionEntry(waiter.EventHUp, func(waiter.EventMask) { g.endOnce.Do(func() { close(g.ended) }) })
	wq.EventRegister(&g.hup)
	switch g.state() {
	case tcp.StateError, tcp.StateClose, tcp.StateTimeWait:
		g.endOnce.Do(func() { close(g.ended) })
	}
	c.onEnd(g.abort)
	return g
}

func (g *guestConn) state() tcp.EndpointState { return tcp.EndpointState(g.ep.State()) }

// failed reports whether the connection ended with a reset or timeout.
func (g *guestConn) failed() bool { return g.state() == tcp.StateError }

// Read implements [net.Conn], and counts the bytes from the sandbox.
func (g *guestConn) Read(p []byte) (int, error) {
	g.readMu.Lock()
	if len(g.pushback) > 0 {
		n := copy(p, g.pushback)
		g.pushback = g.pushback[n:]
		g.readMu.Unlock()
		return n, nil
	}
	g.pushback = nil
	g.readMu.Unlock()
	n, err := g.TCPConn.Read(p)
	g.flow.out.Add(int64(n))
	return n, err
}

// unread makes Read return p again before other data. It must be called before any other Read.
func (g *guestConn) unread(p []byte) {
	g.readMu.Lock()
	g.pushback = p
	g.readMu.Unlock()
}

// Write implements [net.Conn], and counts the bytes to the sandbox.
func (g *guestConn) Write(p []byte) (int, error) {
	n, err := g.TCPConn.Write(p)
	g.flow.in.Add(int64(n))
	return n, err
}

// Close implements [net.Conn]. Data that was written is still sent.
func (g *guestConn) Close() error {
	g.closeOnce.Do(func() {
		close(g.closed)
		g.ep.Close()
	})
	return nil
}

// Widen enlarges the buffers of a connection to a service at the wire's gateway, because a window of less than two segments makes
// a sender wait for timers. Widen(false) restores the buffers. The caller must limit the number of wide connections.
func (g *guestConn) Widen(wide bool) {
	setBuffers(g.ep.SocketOptions(), wide, streamBuffer)
}

// abort resets the connection.
func (g *guestConn) abort() {
	g.ep.Abort()
	g.Close()
}

// linger waits for Close, then for at most the timeout halfClosed until the endpoint has ended, and resets the connection.
func (g *guestConn) linger(c *flow) {
	defer g.abort()
	select {
	case <-g.closed:
	case <-c.ctx.Done():
		return
	}
	select {
	case <-g.ended:
	case <-c.ctx.Done():
	case <-time.After(c.f.times.halfClosed):
	}
}

// receive passes data to use, which must not keep it, and returns io.EOF at its end. It waits on ready while there is no data.
func (g *guestConn) receive(ready <-chan struct{}, use func([]byte) error) error {
	chunks := g.flow.chunks()
	for {
		chunk := chunks.get()
		w := tcpip.SliceWriter(*chunk)
		r, terr := g.ep.Read(&w, tcpip.ReadOptions{})
		var err error
		if r.Count > 0 {
			g.flow.out.Add(int64(r.Count))
			err = use((*chunk)[:r.Count])
		}
		chunks.put(chunk)
		switch terr.(type) {
		case nil:
			if err != nil {
				return err
			}
		case *tcpip.ErrWouldBlock:
			<-ready // ready is also notified when the flow is reset, which aborts the endpoint
		case *tcpip.ErrClosedForReceive:
			return io.EOF
		default:
			return errSandboxSide
		}
	}
}

// send writes all of p. It waits on ready while the buffers are full.
func (g *guestConn) send(ready <-chan struct{}, p []byte) error {
	var r bytes.Reader
	r.Reset(p)
	for r.Len() > 0 {
		n, err := g.ep.Write(&r, tcpip.WriteOptions{})
		g.flow.in.Add(n)
		switch err.(type) {
		case nil:
		case *tcpip.ErrWouldBlock:
			<-ready
		default:
			return errSandboxSide
		}
	}
	return nil
}
