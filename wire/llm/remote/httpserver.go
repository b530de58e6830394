package remote

import (
	"crypto/tls"
	"errors"
	"log"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// Limits of an HTTPServer. The gateway has its own limits for calls.
const (
	headerTimeout     = 10 * time.Second
	serverIdleTimeout = 2 * time.Minute
	maxConns          = 4096 // concurrent connections of all sources
	maxSourceConns    = 256  // concurrent connections of one source; see sourceOf
)

// A HTTPServer serves a handler to other machines: with TLS, or with plain HTTP on loopback only. It limits the resources that
// untrusted clients can use. It is safe for concurrent use.
type HTTPServer struct {
	server *http.Server
	cert   atomic.Pointer[tls.Certificate]
}

// NewHTTPServer returns a server of h. Call Serve to start it.
func NewHTTPServer(h http.Handler) *HTTPServer {
	f := &HTTPServer{}
	f.server = &http.Server{
		Handler: h, ReadHeaderTimeout: headerTimeout, IdleTimeout: serverIdleTimeout, MaxHeaderBytes: maxHeader,
		ErrorLog:  log.New(discardLog{}, "", 0), // failed handshakes of untrusted clients
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: f.certificate},
	}
	return f
}

// discardLog discards log messages of net/http about untrusted requests, whose number is unbounded.
type discardLog struct{}

func (discardLog) Write(p []byte) (int, error) { return len(p), nil }

// SetCertificate replaces the certificate for new connections. If c is nil, connections fail, except on loopback with plain HTTP
// if there was no certificate when Serve was called.
func (f *HTTPServer) SetCertificate(c *tls.Certificate) { f.cert.Store(c) }

func (f *HTTPServer) certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if c := f.cert.Load(); c != nil {
		return c, nil
	}
	return nil, errors.New("there is no certificate")
}

// Serve serves l and closes it. It returns nil after Close.
func (f *HTTPServer) Serve(l net.Listener) (err error) {
	bounded := newLimitedListener(l, maxConns, maxSourceConns)
	if f.cert.Load() == nil && loopbackAddr(l.Addr()) {
		err = f.server.Serve(bounded)
	} else {
		err = f.server.ServeTLS(bounded, "", "")
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// Close closes all connections.
func (f *HTTPServer) Close() error { return f.server.Close() }

func loopbackAddr(a net.Addr) bool {
	ap, err := netip.ParseAddrPort(a.String())
	return err == nil && ap.Addr().Unmap().IsLoopback()
}

// limitedListener is a listener that closes connections above a limit, in total or per source. It does not queue them, because a source
// that occupies all connections must not delay connections from other sources.
type limitedListener struct {
	net.Listener
	maxTotal, maxPerSource int

	mu      sync.Mutex
	total   int                  // number of open connections; guarded by mu
	sources map[netip.Prefix]int // number of open connections by source; guarded by mu
}

func newLimitedListener(l net.Listener, most, each int) *limitedListener {
	return &limitedListener{Listener: l, maxTotal: most, maxPerSource: each, sources: map[netip.Prefix]int{}}
}

// Accept implements [net.Listener].
func (b *limitedListener) Accept() (net.Conn, error) {
	for {
		c, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		source := sourceOf(c.RemoteAddr().String())
		if b.acquire(source) {
			return &limitedConn{Conn: c, release: sync.OnceFunc(func() { b.release(source) })}, nil
		}
		c.Close()
	}
}

func (b *limitedListener) acquire(source netip.Prefix) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.total >= b.maxTotal || b.sources[source] >= b.maxPerSource {
		return false
	}
	b.total++
	b.sources[source]++
	return true
}

func (b *limitedListener) release(source netip.Prefix) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.total--
	if b.sources[source]--; b.sources[source] == 0 {
		delete(b.sources, source)
	}
}

// A limitedConn is a connection that counts against the limits until it is closed.
type limitedConn struct {
	net.Conn
	release func() // releases the connection from the limits; idempotent
}

// Close implements [net.Conn].
func (c *limitedConn) Close() error {
	err := c.Conn.Close()
	c.release()
	return err
}
