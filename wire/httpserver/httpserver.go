// Package httpserver serves HTTP to untrusted clients on other machines, and limits the memory and time of each connection.
package httpserver

import (
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"
	"time"
)

// Limits of a connection. A connection takes at most about 350 KiB: HTTP/2 data that the handler has not read yet, a frame, a
// header, and a TLS record.
const (
	maxHeader        = 64 << 10  // maximum size of the header of a request, in bytes
	maxStreams       = 128       // with HTTP/2: maximum number of concurrent requests
	maxFrame         = 16 << 10  // with HTTP/2: maximum size of a frame, in bytes
	maxStreamReceive = 64 << 10  // with HTTP/2: maximum number of bytes of one request that the handler has not read yet
	maxConnReceive   = 256 << 10 // with HTTP/2: the same for all requests of the connection together
)

// Timeouts bound how long clients may take.
type Timeouts struct {
	Header time.Duration // for sending the header of a request
	Idle   time.Duration // between two requests on a connection
	Write  time.Duration // for writing each part of an answer over HTTP/2
}

// A Server serves a handler: with TLS, or with plain HTTP on loopback only. It is safe for concurrent use.
type Server struct {
	server *http.Server                    // parses the requests and calls the handler
	cert   atomic.Pointer[tls.Certificate] // certificate for new TLS connections; nil if there is none
}

// New returns a server of h. Call Serve to start it.
func New(h http.Handler, t Timeouts) *Server {
	s := &Server{}
	s.server = &http.Server{
		Handler: h, ReadHeaderTimeout: t.Header, IdleTimeout: t.Idle, MaxHeaderBytes: maxHeader,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: maxStreams, MaxReadFrameSize: maxFrame, MaxReceiveBufferPerStream: maxStreamReceive,
			MaxReceiveBufferPerConnection: maxConnReceive, WriteByteTimeout: t.Write,
		},
		ErrorLog:  log.New(io.Discard, "", 0), // untrusted clients could cause any number of lines
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: s.certificate},
	}
	return s
}

// SetCertificate replaces the certificate for new connections. If c is nil, connections fail, except those with plain HTTP; see
// Serve.
func (s *Server) SetCertificate(c *tls.Certificate) { s.cert.Store(c) }

// certificate returns the certificate for a new TLS connection, as [tls.Config.GetCertificate].
func (s *Server) certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if c := s.cert.Load(); c != nil {
		return c, nil
	}
	return nil, errors.New("there is no certificate")
}

// Serve serves l, whose connections the caller limits, and closes it. It serves plain HTTP if l is on loopback, there is no
// certificate yet, and secure is not set. It returns nil after Close.
func (s *Server) Serve(l net.Listener, secure bool) (err error) {
	if !secure && s.cert.Load() == nil && loopback(l.Addr()) {
		err = s.server.Serve(l)
	} else {
		err = s.server.ServeTLS(l, "", "")
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// Close closes the listeners of all calls of Serve, and all connections except those that a handler has hijacked.
func (s *Server) Close() error { return s.server.Close() }

// loopback reports whether a is an address of the loopback device.
func loopback(a net.Addr) bool {
	ap, err := netip.ParseAddrPort(a.String())
	return err == nil && ap.Addr().Unmap().IsLoopback()
}
