package ingress

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caisson-dev/caisson"
)

// Limits of connections to sandboxes.
const (
	maxConnsPerSandbox = 1024        // connections to one sandbox
	maxIdlePerPort     = 64          // idle connections to one port of a sandbox
	maxIdle            = 4096        // idle connections to all sandboxes
	idleConnTime       = time.Minute // time after which an idle connection is closed
	maxAnswerHeader    = 256 << 10   // bytes of the header of a sandbox's response
	maxTries           = 4           // tries to connect for a request, and to send it, if connections are dropped
)

// errDropped reports that a connection was closed because its sandbox was suspended, paused or stopped.
var errDropped = caisson.Errorf(caisson.Unavailable, "the sandbox was suspended meanwhile; try again")

// upstreams connects to sandboxes and keeps idle connections. It implements [http.RoundTripper] for requests of clients whose
// context holds the *call with the route of the request.
type upstreams struct {
	dial      Dial            // asks the daemon for a connection to a sandbox
	transport *http.Transport // sends requests over the connections, and keeps those that are idle
	drops     atomic.Uint64   // number of calls of drop, by which RoundTrip notices one

	mu    sync.Mutex
	conns map[caisson.ID]map[*upstreamConn]struct{} // connections, and those that are being made; guarded by mu
}

// An upstreamConn is a connection to a sandbox. Conn is nil while the connection is being made.
type upstreamConn struct {
	net.Conn
	owner   *upstreams // has the connection in conns
	sandbox caisson.ID
	dropped bool // drop was called for the sandbox; guarded by owner.mu
}

func newUpstreams(dial Dial) *upstreams {
	u := &upstreams{dial: dial, conns: map[caisson.ID]map[*upstreamConn]struct{}{}}
	u.transport = &http.Transport{
		DialContext:            u.connect,
		DisableCompression:     true,
		MaxIdleConns:           maxIdle,
		MaxIdleConnsPerHost:    maxIdlePerPort,
		IdleConnTimeout:        idleConnTime,
		MaxResponseHeaderBytes: maxAnswerHeader,
		ExpectContinueTimeout:  time.Second,
		WriteBufferSize:        16 << 10,
		ReadBufferSize:         16 << 10,
	}
	return u
}

// address returns the address of a port for the transport, which keeps connections by address.
func address(sandbox caisson.ID, port int) string { return string(sandbox) + ":" + strconv.Itoa(port) }

// connect makes a connection for the request in ctx, and another one if that is dropped while it is being made.
func (u *upstreams) connect(ctx context.Context, _, _ string) (net.Conn, error) {
	c := contextCall(ctx)
	for range maxTries {
		conn := &upstreamConn{owner: u, sandbox: c.route.sandbox}
		if !u.add(conn) {
			return nil, caisson.Errorf(caisson.Exhausted, "too many connections to this sandbox; try again")
		}
		raw, err := u.dial(ctx, c.dial)
		if err != nil {
			u.remove(conn)
			return nil, err
		}
		if u.setConn(conn, raw) {
			return conn, nil
		}
		raw.Close()
	}
	return nil, errDropped
}

// add counts a connection to a sandbox before it is made. It returns false if the sandbox has too many connections.
func (u *upstreams) add(c *upstreamConn) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	list := u.conns[c.sandbox]
	if len(list) >= maxConnsPerSandbox {
		return false
	}
	if list == nil {
		list = map[*upstreamConn]struct{}{}
		u.conns[c.sandbox] = list
	}
	list[c] = struct{}{}
	return true
}

// setConn records that the connection raw was made for c. It returns false if c was dropped before.
func (u *upstreams) setConn(c *upstreamConn, raw net.Conn) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if c.dropped {
		return false
	}
	c.Conn = raw
	return true
}

// remove removes a connection that was added with add, when it is closed or could not be made.
func (u *upstreams) remove(c *upstreamConn) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.conns[c.sandbox], c)
	if len(u.conns[c.sandbox]) == 0 {
		delete(u.conns, c.sandbox)
	}
}

// drop closes all connections to a sandbox, also those that are being made.
func (u *upstreams) drop(sandbox caisson.ID) {
	u.mu.Lock()
	list := u.conns[sandbox]
	delete(u.conns, sandbox)
	for c := range list {
		c.dropped = true
	}
	u.drops.Add(1)
	u.mu.Unlock()
	for c := range list {
		if c.Conn != nil {
			c.Conn.Close()
		}
	}
}

// Close closes the connection, which then no longer counts.
func (c *upstreamConn) Close() error {
	c.owner.remove(c)
	return c.Conn.Close()
}

// errTimeout and errIdle are the causes with which a request is cancelled: the sandbox did not answer in time, or the request had
// no traffic for too long.
var (
	errTimeout = errors.New("the sandbox did not answer in time")
	errIdle    = errors.New("no data for too long")
)

// RoundTrip implements [http.RoundTripper]. A GET or HEAD request without a body is sent again if its connection was dropped
// before it was answered, which resumes the sandbox if its route says so.
func (u *upstreams) RoundTrip(r *http.Request) (*http.Response, error) {
	c := contextCall(r.Context())
	timer := time.AfterFunc(time.Duration(c.route.spec.Timeout), func() { c.cancel(errTimeout) })
	defer timer.Stop()
	again := (r.Method == http.MethodGet || r.Method == http.MethodHead) && (r.Body == nil || r.Body == http.NoBody)
	for try := 1; ; try++ {
		drops := u.drops.Load()
		res, err := u.transport.RoundTrip(r)
		if err == nil {
			res.Body = c.watch(res.Body)
			return res, nil
		}
		dropped := u.drops.Load() != drops
		if !dropped || r.Context().Err() != nil {
			return nil, err
		}
		if !again || try == maxTries {
			return nil, errDropped
		}
	}
}

// watch returns body, wrapped so that its reads and writes restart the idle timer of the request.
func (c *call) watch(body io.ReadCloser) io.ReadCloser {
	w := &watchedBody{body, c}
	if rw, ok := body.(io.ReadWriteCloser); ok {
		return &watchedStream{w, rw}
	}
	return w
}

// A watchedBody is the body of a sandbox's response. Its reads restart the idle timer of the request.
type watchedBody struct {
	io.ReadCloser
	call *call
}

func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.call.touch()
	return n, err
}

// A watchedStream is the connection of an upgraded request. Its reads and writes restart the idle timer of the request.
type watchedStream struct {
	*watchedBody
	stream io.ReadWriteCloser
}

func (s *watchedStream) Write(p []byte) (int, error) {
	n, err := s.stream.Write(p)
	s.call.touch()
	return n, err
}
