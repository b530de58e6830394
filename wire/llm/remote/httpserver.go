package remote

import (
	"crypto/tls"
	"errors"
	"log"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/caisson-dev/caisson/internal/connlimit"
)

// Limits of an HTTPServer. The gateway has its own limits for calls.
const (
	headerTimeout     = 10 * time.Second
	serverIdleTimeout = 2 * time.Minute
	maxConns          = 2048 // concurrent connections of all sources; each takes at most about 350 KiB
	maxSourceConns    = 256  // concurrent connections of one source; see [reach.Source]
	writeTimeout      = time.Minute
	maxStreams        = 128 // concurrent requests of one connection of HTTP/2
	maxFrame          = 16 << 10
	maxStreamReceive  = 64 << 10
	maxConnReceive    = 256 << 10
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
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: maxStreams, MaxReadFrameSize: maxFrame, MaxReceiveBufferPerStream: maxStreamReceive,
			MaxReceiveBufferPerConnection: maxConnReceive, WriteByteTimeout: writeTimeout,
		},
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
	bounded := connlimit.New(l, maxConns, maxSourceConns)
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
