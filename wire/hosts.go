package wire

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	caisson "github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/wire/flow"
)

// Limits of HTTP requests to the virtual hosts. The model gateway sets its own time limits for model calls.
const (
	headerTime = 10 * time.Second // for receiving the header of a request
	idleTime   = 2 * time.Minute  // between two requests on a connection
	maxHeader  = 32 << 10         // bytes of the header of a request
)

// Limits on the connections of one wire to the services at the address of its gateway.
const (
	maxHostConns = 256 // connections to virtual hosts
	maxNameConns = 16  // connections to the resolver, over TCP
)

// Limits on the flows of all wires together; maxWideFlows is the part of them that may have large buffers.
const (
	maxFlows     = 16384
	maxWideFlows = 256
)

// virtualHosts serves HTTP at the address of a wire's gateway, for all wires.
type virtualHosts struct {
	handlers  map[string]http.Handler // handlers by the part of the host name before "."+Domain
	server    *http.Server
	flows     *flow.ProcessLimits // limits of the flows of all wires
	conns     chan net.Conn       // connections that serve passes to Accept
	done      chan struct{}       // closed by Close
	closeOnce sync.Once           // makes done be closed only once

	renderings chan struct{} // limits concurrent renderings of the page /why, which lists refusals
}

// A hostConn is a connection to a virtual host, with the wire over which it came.
type hostConn struct {
	net.Conn
	wire *sandboxWire // the wire over which the connection came
}

// widen calls Widen of the underlying connection if it is one of [flow.Forwarder], which gives it larger buffers.
func (c *hostConn) widen(wide bool) {
	if g, ok := c.Conn.(interface{ Widen(bool) }); ok {
		g.Widen(wide)
	}
}

// connKey is the context key of the hostConn over which a request came.
type connKey struct{}

// requestConn returns the connection over which a request came; nil if it did not come over a wire.
func requestConn(ctx context.Context) *hostConn {
	c, _ := ctx.Value(connKey{}).(*hostConn)
	return c
}

// requestWire returns the wire over which a request came; nil if it did not come over a wire.
func requestWire(ctx context.Context) *sandboxWire {
	if c := requestConn(ctx); c != nil {
		return c.wire
	}
	return nil
}

func newVirtualHosts(handlers map[string]http.Handler) *virtualHosts {
	h := &virtualHosts{
		handlers: handlers, flows: flow.NewProcessLimits(maxFlows, maxWideFlows),
		conns: make(chan net.Conn), done: make(chan struct{}), renderings: make(chan struct{}, maxRenderings),
	}
	h.server = &http.Server{
		Handler: h, ReadHeaderTimeout: headerTime, IdleTimeout: idleTime, MaxHeaderBytes: maxHeader,
		ErrorLog: log.New(io.Discard, "", 0), // untrusted clients could cause any number of lines
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, c.(*hostConn))
		},
	}
	return h
}

// run serves the connections that serve passes to it, until close is called.
func (h *virtualHosts) run() error {
	if err := h.server.Serve(h); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (h *virtualHosts) close() { h.server.Close() }

// serve passes a connection to the HTTP server, or closes it if the server is closed.
func (h *virtualHosts) serve(w *sandboxWire, c net.Conn) {
	select {
	case h.conns <- &hostConn{c, w}:
	case <-h.done:
		c.Close()
	}
}

// Accept returns the next connection that serve passes on.
func (h *virtualHosts) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.done:
		return nil, net.ErrClosed
	}
}

// Close implements [net.Listener].
func (h *virtualHosts) Close() error {
	h.closeOnce.Do(func() { close(h.done) })
	return nil
}

// Addr implements [net.Listener].
func (h *virtualHosts) Addr() net.Addr { return &net.TCPAddr{} }

// ServeHTTP dispatches a request to the virtual host that its Host header names. The request acts for the sandbox of the wire
// over which it came, whatever it contains.
func (h *virtualHosts) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	w := requestWire(r.Context())
	if !w.beginRequest() {
		panic(http.ErrAbortHandler) // the wire is being detached
	}
	defer w.endRequest()
	host := r.Host
	if name, port, err := net.SplitHostPort(host); err == nil && port == "80" {
		host = name
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if host == Domain {
		h.serveWhy(rw, r, w)
		return
	}
	name, ok := strings.CutSuffix(host, "."+Domain)
	handler := h.handlers[name]
	if !ok || handler == nil || !w.granted(name) {
		w.report.Report(caisson.Decision{
			At: time.Now().UTC(), Kind: "request", Rule: -1, Name: host[:min(len(host), 253)], Protocol: "tcp", Count: 1,
			Reason: "nothing of that name is granted here",
		})
		http.Error(rw, "caisson: no virtual host "+quoteHost(host)+" is granted to this sandbox. See http://caisson.internal/", http.StatusForbidden)
		return
	}
	handler.ServeHTTP(rw, r.WithContext(caisson.WithGuest(r.Context(), w.spec.Load().Guest)))
}

// quoteHost removes from s the characters that cannot occur in a host name, and truncates it.
func quoteHost(s string) string {
	s = strings.Map(func(r rune) rune {
		if r > ' ' && r < 127 && r != '<' && r != '>' {
			return r
		}
		return -1
	}, s)
	return s[:min(len(s), 253)]
}
