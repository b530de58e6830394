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

var errGuest = errors.New("the sandbox's side of the connection failed")

// A guest is the sandbox's end of a TCP connection. It counts the bytes in both directions.
type guest struct {
	*gonet.TCPConn
	flow *flow
	ep   tcpip.Endpoint
	wq   *waiter.Queue

	hup   waiter.Entry
	gone  chan struct{} // closed when the endpoint has ended, normally or with an error
	once  sync.Once
	shut  chan struct{} // closed by Close
	close sync.Once

	readMu sync.Mutex
	head   []byte // data that is read again before the connection's; guarded by readMu
}

func newGuest(c *flow, ep tcpip.Endpoint, wq *waiter.Queue) *guest {
	prepare(ep, c.wide)
	g := &guest{
		TCPConn: gonet.NewTCPConn(wq, ep), flow: c, ep: ep, wq: wq,
		gone: make(chan struct{}), shut: make(chan struct{}),
	}
	// The queue may be notified while the endpoint is locked, so the callback must not use the endpoint.
	g.hup = waiter.NewFunctionEntry(waiter.EventHUp, func(waiter.EventMask) { g.once.Do(func() { close(g.gone) }) })
	wq.EventRegister(&g.hup)
	switch g.state() {
	case tcp.StateError, tcp.StateClose, tcp.StateTimeWait:
		g.once.Do(func() { close(g.gone) })
	}
	c.onEnd(g.abort)
	return g
}

func (g *guest) state() tcp.EndpointState { return tcp.EndpointState(g.ep.State()) }

// failed reports whether the connection ended with a reset or timeout.
func (g *guest) failed() bool { return g.state() == tcp.StateError }

// Read implements [net.Conn].
func (g *guest) Read(p []byte) (int, error) {
	g.readMu.Lock()
	if len(g.head) > 0 {
		n := copy(p, g.head)
		g.head = g.head[n:]
		g.readMu.Unlock()
		return n, nil
	}
	g.head = nil
	g.readMu.Unlock()
	n, err := g.TCPConn.Read(p)
	g.flow.out.Add(int64(n))
	return n, err
}

// unread makes Read return p again before other data. It must be called before any other Read.
func (g *guest) unread(p []byte) {
	g.readMu.Lock()
	g.head = p
	g.readMu.Unlock()
}

// Write implements [net.Conn].
func (g *guest) Write(p []byte) (int, error) {
	n, err := g.TCPConn.Write(p)
	g.flow.in.Add(int64(n))
	return n, err
}

// Close implements [net.Conn]. Data that was written is still sent.
func (g *guest) Close() error {
	g.close.Do(func() {
		close(g.shut)
		g.ep.Close()
	})
	return nil
}

// Widen enlarges the buffers of a connection to a service of the gateway, because a window of less than two segments makes a
// sender wait for timers. With false it restores them. The caller must limit the number of wide connections.
func (g *guest) Widen(wide bool) {
	o := g.ep.SocketOptions()
	if wide {
		o.SetReceiveBufferSize(streamBuffer, true)
		o.SetSendBufferSize(streamBuffer, true)
	} else {
		o.SetReceiveBufferSize(narrowReceive, true)
		o.SetSendBufferSize(narrowSend, true)
	}
}

// abort resets the connection.
func (g *guest) abort() {
	g.ep.Abort()
	g.Close()
}

// linger waits until the connection has been closed, and then for at most halfClosed until the endpoint is gone.
func (g *guest) linger(c *flow) {
	defer g.abort()
	select {
	case <-g.shut:
	case <-c.ctx.Done():
		return
	}
	last := time.NewTimer(c.f.times.halfClosed)
	defer last.Stop()
	select {
	case <-g.gone:
	case <-c.ctx.Done():
	case <-last.C:
	}
}

// receive reads into a chunk once data is available and passes it to use, which must not keep it. It returns io.EOF at the end.
func (g *guest) receive(ready <-chan struct{}, use func([]byte) error) error {
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
			<-ready // also notified when the flow is reset, which aborts the endpoint
		case *tcpip.ErrClosedForReceive:
			return io.EOF
		default:
			return errGuest
		}
	}
}

// send writes all of p.
func (g *guest) send(ready <-chan struct{}, p []byte) error {
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
			return errGuest
		}
	}
	return nil
}
