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

// HTTP limits of a Front. The gateway has its own limits for calls.
const (
	headerTime = 10 * time.Second
	frontIdle  = 2 * time.Minute
	maxConns   = 4096 // concurrent connections of all sources
	perSource  = 256  // concurrent connections of one source; see sourceOf
)

// A Front serves a handler to other machines: with TLS, or with plain HTTP on loopback only. It limits the resources that
// untrusted clients can use. It is safe for concurrent use.
type Front struct {
	server *http.Server
	cert   atomic.Pointer[tls.Certificate]
}

// NewFront returns a front for h. Call Serve to serve it.
func NewFront(h http.Handler) *Front {
	f := &Front{}
	f.server = &http.Server{
		Handler: h, ReadHeaderTimeout: headerTime, IdleTimeout: frontIdle, MaxHeaderBytes: maxHeader,
		ErrorLog:  log.New(nowhere{}, "", 0), // failed handshakes of untrusted clients
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: f.certificate},
	}
	return f
}

// nowhere discards log messages of net/http about untrusted requests, whose number is unbounded.
type nowhere struct{}

func (nowhere) Write(p []byte) (int, error) { return len(p), nil }

// SetCertificate replaces the certificate for new connections. If c is nil, connections fail, except on loopback with plain HTTP
// if there was no certificate when Serve was called.
func (f *Front) SetCertificate(c *tls.Certificate) { f.cert.Store(c) }

func (f *Front) certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if c := f.cert.Load(); c != nil {
		return c, nil
	}
	return nil, errors.New("there is no certificate")
}

// Serve serves l and closes it. It returns nil after Close.
func (f *Front) Serve(l net.Listener) (err error) {
	bounded := newBounded(l, maxConns, perSource)
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
func (f *Front) Close() error { return f.server.Close() }

func loopbackAddr(a net.Addr) bool {
	ap, err := netip.ParseAddrPort(a.String())
	return err == nil && ap.Addr().Unmap().IsLoopback()
}

// bounded is a listener that closes connections above a limit, in total or per source. It does not queue them, because a source
// that occupies all connections must not delay connections from other sources.
type bounded struct {
	net.Listener
	most, each int

	mu      sync.Mutex
	all     int                  // guarded by mu
	sources map[netip.Prefix]int // guarded by mu
}

func newBounded(l net.Listener, most, each int) *bounded {
	return &bounded{Listener: l, most: most, each: each, sources: map[netip.Prefix]int{}}
}

// Accept implements [net.Listener].
func (b *bounded) Accept() (net.Conn, error) {
	for {
		c, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		source := sourceOf(c.RemoteAddr().String())
		if b.enter(source) {
			return &boundedConn{Conn: c, leave: sync.OnceFunc(func() { b.leave(source) })}, nil
		}
		c.Close()
	}
}

func (b *bounded) enter(source netip.Prefix) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.all >= b.most || b.sources[source] >= b.each {
		return false
	}
	b.all++
	b.sources[source]++
	return true
}

func (b *bounded) leave(source netip.Prefix) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all--
	if b.sources[source]--; b.sources[source] == 0 {
		delete(b.sources, source)
	}
}

type boundedConn struct {
	net.Conn
	leave func()
}

// Close implements [net.Conn].
func (c *boundedConn) Close() error {
	err := c.Conn.Close()
	c.leave()
	return err
}
