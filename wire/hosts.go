package wire

import (
	"context"
	"errors"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	caisson "github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/wire/flow"
)

// Bounds of HTTP on the virtual hosts; those of a call of a model are the gateway's.
const (
	headerTime = 10 * time.Second
	idleTime   = 2 * time.Minute
	maxHeader  = 32 << 10
)

// Connections of one wire to the gateway's services.
const (
	maxHostConns = 256
	maxNameConns = 16
)

// What the flows of all wires may be together; those with large buffers are among them.
const (
	maxFlows     = 16384
	maxWideFlows = 256
)

// hosts serves HTTP at the gateway's address, for all wires.
type hosts struct {
	handlers map[string]http.Handler
	server   *http.Server
	flows    *flow.Budget // of all wires
	conns    chan net.Conn
	done     chan struct{}
	end      sync.Once

	renderings chan struct{} // pages of /why being made
}

// A hostConn is a connection to a virtual host, and knows over which wire it came.
type hostConn struct {
	net.Conn
	wire *served
}

// widen is [flow.Forwarder]'s, if the connection is one of it.
func (c *hostConn) widen(wide bool) {
	if g, ok := c.Conn.(interface{ Widen(bool) }); ok {
		g.Widen(wide)
	}
}

type connKey struct{}

// connOf returns the connection that a request came over; nil if it was not over a wire.
func connOf(ctx context.Context) *hostConn {
	c, _ := ctx.Value(connKey{}).(*hostConn)
	return c
}

// wireOf returns the wire that a request came over.
func wireOf(ctx context.Context) *served {
	if c := connOf(ctx); c != nil {
		return c.wire
	}
	return nil
}

func newHosts(handlers map[string]http.Handler) *hosts {
	h := &hosts{
		handlers: handlers, flows: flow.NewBudget(maxFlows, maxWideFlows),
		conns: make(chan net.Conn), done: make(chan struct{}), renderings: make(chan struct{}, maxRenderings),
	}
	h.server = &http.Server{
		Handler: h, ReadHeaderTimeout: headerTime, IdleTimeout: idleTime, MaxHeaderBytes: maxHeader,
		ErrorLog: log.New(nowhere{}, "", 0),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, c.(*hostConn))
		},
	}
	return h
}

// nowhere drops what net/http says about strangers' requests: there is nobody to read it, and no bound to it.
type nowhere struct{}

func (nowhere) Write(p []byte) (int, error) { return len(p), nil }

func (h *hosts) run() error {
	if err := h.server.Serve(h); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (h *hosts) close() { h.server.Close() }

// serve takes a connection over.
func (h *hosts) serve(w *served, c net.Conn) {
	select {
	case h.conns <- &hostConn{c, w}:
	case <-h.done:
		c.Close()
	}
}

// Accept, Close and Addr make a listener of hosts.
func (h *hosts) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.done:
		return nil, net.ErrClosed
	}
}

// Close implements [net.Listener].
func (h *hosts) Close() error {
	h.end.Do(func() { close(h.done) })
	return nil
}

// Addr implements [net.Listener].
func (h *hosts) Addr() net.Addr { return &net.TCPAddr{} }

// ServeHTTP finds the virtual host that a request means. The wire, and nothing in the request, says whose it is.
func (h *hosts) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	w := wireOf(r.Context())
	if !w.enter() {
		panic(http.ErrAbortHandler) // it is being detached
	}
	defer w.leave()
	host := r.Host
	if name, port, err := net.SplitHostPort(host); err == nil && port == "80" {
		host = name
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if host == Domain {
		h.why(rw, r, w)
		return
	}
	name, ok := strings.CutSuffix(host, "."+Domain)
	handler := h.handlers[name]
	if !ok || handler == nil || !w.granted(name) {
		w.report.Report(caisson.Decision{
			At: time.Now().UTC(), Kind: "request", Rule: -1, Name: host[:min(len(host), 253)], Protocol: "tcp", Count: 1,
			Reason: "nothing of that name is granted here",
		})
		http.Error(rw, "caisson: nothing called "+quoteHost(host)+" is granted to this sandbox. http://caisson.internal/ says what is here.", http.StatusForbidden)
		return
	}
	handler.ServeHTTP(rw, r.WithContext(caisson.WithGuest(r.Context(), w.spec.Load().Guest)))
}

// quoteHost keeps of a host what can be one.
func quoteHost(s string) string {
	s = strings.Map(func(r rune) rune {
		if r > ' ' && r < 127 && r != '<' && r != '>' {
			return r
		}
		return -1
	}, s)
	return s[:min(len(s), 253)]
}
