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

// Bounds of HTTP on a Front; those of a call are the gateway's.
const (
	headerTime = 10 * time.Second
	frontIdle  = 2 * time.Minute
	maxConns   = 4096 // of all sources
	perSource  = 256  // of one, as in sourceOf
)

// A Front is the door to a handler for other machines: TLS, or plain HTTP on loopback only, with bounds on what a stranger
// can hold up. It is safe for concurrent use.
type Front struct {
	server *http.Server
	cert   atomic.Pointer[tls.Certificate]
}

// NewFront returns a front before h. Serve serves.
func NewFront(h http.Handler) *Front {
	f := &Front{}
	f.server = &http.Server{
		Handler: h, ReadHeaderTimeout: headerTime, IdleTimeout: frontIdle, MaxHeaderBytes: maxHeader,
		ErrorLog:  log.New(nowhere{}, "", 0), // handshakes of strangers
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: f.certificate},
	}
	return f
}

// nowhere drops what net/http says about strangers' requests: there is nobody to read it, and no bound to it.
type nowhere struct{}

func (nowhere) Write(p []byte) (int, error) { return len(p), nil }

// SetCertificate replaces what is shown to those who connect from now on. nil serves nobody, except on loopback in plain
// HTTP if there was no certificate when Serve was called.
func (f *Front) SetCertificate(c *tls.Certificate) { f.cert.Store(c) }

func (f *Front) certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if c := f.cert.Load(); c != nil {
		return c, nil
	}
	return nil, errors.New("there is no certificate")
}

// Serve serves l, which it owns, until it is closed or Close is called, which is no error.
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

// Close ends all connections.
func (f *Front) Close() error { return f.server.Close() }

func loopbackAddr(a net.Addr) bool {
	ap, err := netip.ParseAddrPort(a.String())
	return err == nil && ap.Addr().Unmap().IsLoopback()
}

// bounded is a listener that closes connections of which there are too many, of all or of one source. It does not let them
// wait: who holds all connections open must not hold up those who come later from elsewhere.
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
