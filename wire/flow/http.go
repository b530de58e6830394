package flow

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	caisson "github.com/caisson-dev/caisson"
)

// maxHeader bounds the header of a request or response, in bytes.
const maxHeader = 128 << 10

// errUpstreamGone makes the transport fail when it would dial again: a flow has only one connection to its destination.
var errUpstreamGone = errors.New("the connection to the destination has ended")

// A proxy serves the plain HTTP of one flow over its one connection to the destination, and checks the host of each request. It
// parses and writes whole requests with net/http and never copies bytes, so no request can be hidden in another.
type proxy struct {
	c    *flow
	g    *guestConn            // the sandbox's connection
	up   *net.TCPConn          // connection to the destination
	dst  string                // the destination's address and port
	http httputil.ReverseProxy // forwards requests whose host is allowed

	responseHeader http.Header // header of the current answer; requests are served one at a time

	busy sync.WaitGroup // counts requests in progress

	mu             sync.Mutex
	closed         bool   // no more requests are served; guarded by mu
	dialled        bool   // dialOnce has returned the connection; guarded by mu
	upstreamClosed bool   // the transport has closed the connection to the destination; guarded by mu
	partial        bool   // data was received that is not a complete request yet; guarded by mu
	idle           bool   // no request is being served; guarded by mu
	lastName       string // the last name that was allowed; guarded by mu
}

// serveHTTP serves the connection and returns when it has ended.
func (c *flow) serveHTTP(g *guestConn, up *net.TCPConn) {
	p := &proxy{c: c, g: g, up: up, dst: c.attrs.Dst.String()}
	transport := &http.Transport{
		DialContext:            p.dialOnce,
		DisableCompression:     true,
		MaxConnsPerHost:        1,
		ExpectContinueTimeout:  time.Second,
		MaxResponseHeaderBytes: maxHeader,
		Protocols:              http1(),
	}
	silent := log.New(io.Discard, "", 0)
	p.http = httputil.ReverseProxy{
		Rewrite:        p.rewrite,
		Transport:      transport,
		FlushInterval:  -1,
		ModifyResponse: p.respond,
		ErrorHandler:   p.abort,
		ErrorLog:       silent,
	}
	server := &http.Server{
		Handler:           p,
		ReadHeaderTimeout: c.f.times.header,
		IdleTimeout:       -1,
		MaxHeaderBytes:    maxHeader,
		Protocols:         http1(),
		// The destination answers "OPTIONS *", whose host is checked, too.
		DisableGeneralOptionsHandler: true,

		ConnState:   p.connState,
		ErrorLog:    silent,
		BaseContext: func(net.Listener) context.Context { return c.ctx },
	}
	l := &singleListener{conn: &halfCloseConn{guestConn: g, p: p, interrupted: make(chan struct{}, 1)}, until: g.closed, addr: g.LocalAddr()}
	server.Serve(l) // returns once g has been closed
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	transport.CloseIdleConnections()
	up.Close()
	p.busy.Wait()
}

// beginRequest counts a request. It returns false, and does not count, if the connection has ended while requests were still
// buffered.
func (p *proxy) beginRequest() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.partial = false
	if !p.closed {
		p.busy.Add(1)
	}
	return !p.closed
}

// http1 returns the protocols of a server that supports HTTP/1 only.
func http1() *http.Protocols {
	var p http.Protocols
	p.SetHTTP1(true)
	return &p
}

// ServeHTTP forwards a request if the sandbox may use its host.
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !p.beginRequest() {
		return
	}
	defer p.busy.Done()
	name, reason := p.check(r)
	if reason != "" {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprintf(w, "caisson: %s %.100q refused: %s; run `caisson policy explain` for a rule that would allow it\n", r.Method, name, reason)
		return
	}
	if u := r.Header.Get("Upgrade"); u != "" && !strings.EqualFold(u, "websocket") {
		// Upgrades other than WebSocket are removed: data after an upgrade is not inspected, and HTTP/2 could request any host.
		r.Header.Del("Upgrade")
		r.Header.Del("Http2-Settings")
	}
	p.responseHeader = w.Header()
	// Without full duplex, net/http would read the rest of the request's body, concurrently with the transport, once the answer
	// begins. On an HTTP/1 connection EnableFullDuplex returns no error.
	http.NewResponseController(w).EnableFullDuplex()
	p.http.ServeHTTP(noContinueWriter{w}, r)
}

// A noContinueWriter omits the destination's "100 Continue": the transport reads the request's body after it, which makes
// net/http send its own "100 Continue" to the sandbox.
type noContinueWriter struct{ http.ResponseWriter }

// WriteHeader implements [http.ResponseWriter].
func (a noContinueWriter) WriteHeader(status int) {
	if status != http.StatusContinue {
		a.ResponseWriter.WriteHeader(status)
	}
}

// Unwrap is used by [http.ResponseController].
func (a noContinueWriter) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// check returns the host that r names, and the reason why the sandbox may not use it, "" if it may. It reports the decision.
func (p *proxy) check(r *http.Request) (name, reason string) {
	name = hostName(r.Host)
	if !isPlainTarget(r) {
		reason = "the host of the request is not clear"
	}
	v := p.c.checkName(name)
	if name == "" {
		reason = "a rule allows the name, so the request must have it (no Host)"
	}
	if reason != "" {
		v.Rule, v.Reason = -1, reason
	}
	if !v.Allowed || reason != "" {
		said := name
		if !plausibleName(said) {
			said = ""
		}
		p.c.refuse(said, v)
		return name, v.Reason
	}
	p.mu.Lock()
	again := p.lastName == name
	p.lastName = name
	p.mu.Unlock()
	if !again {
		v.Name = name
		p.c.f.report("request", p.c.attrs, v, "")
	}
	return name, ""
}

// isPlainTarget reports whether a request's target is a path, "*", or a complete http URL of the host that is checked. Go accepts
// other targets and writes "x:http://other/" as http://other/, which a server prefers to the Host header.
func isPlainTarget(r *http.Request) bool {
	u := r.URL
	switch {
	case r.Method == http.MethodConnect || u.Opaque != "" || u.User != nil:
		return false
	case r.RequestURI == "*":
		return r.Method == http.MethodOptions
	case strings.HasPrefix(r.RequestURI, "/"):
		return u.Scheme == "" && u.Host == ""
	default:
		return u.Scheme == "http" && u.Host != "" && u.Host == r.Host && (u.Path == "" || u.Path[0] == '/')
	}
}

// hostName returns the name in "name", "name:port" and "name.:port", in lower case. It does not change other forms, which have a
// colon or bracket, so that they are not plausible names.
func hostName(host string) string {
	if h, port, ok := strings.Cut(host, ":"); ok && isPort(port) {
		host = h
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

func isPort(s string) bool {
	_, err := strconv.ParseUint(s, 10, 16) // ParseUint accepts no sign
	return err == nil
}

// rewrite directs the request to the flow's destination and otherwise keeps it unchanged.
func (p *proxy) rewrite(r *httputil.ProxyRequest) {
	r.Out.URL.Scheme = "http"
	r.Out.URL.Host = p.dst
	r.Out.URL.Opaque, r.Out.URL.User = "", nil
	r.Out.URL.RawQuery = r.In.URL.RawQuery
	r.Out.Host = r.In.Host
	for _, h := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if v, ok := r.In.Header[h]; ok {
			r.Out.Header[h] = v
		}
	}
}

// respond forwards the destination's "Connection: close", and keeps net/http from adding header fields.
func (p *proxy) respond(r *http.Response) error {
	for _, h := range []string{"Content-Type", "Date"} {
		if _, ok := r.Header[h]; !ok {
			p.responseHeader[h] = nil
		}
	}
	if r.Close {
		r.Header.Set("Connection", "close")
	}
	return nil
}

// abort closes the connection without an answer, because the destination has sent none.
func (p *proxy) abort(w http.ResponseWriter, _ *http.Request, _ error) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		p.c.end("")
		return
	}
	conn.Close()
}

// dialOnce is the transport's dial function. It returns the flow's connection once, and then errUpstreamGone.
func (p *proxy) dialOnce(context.Context, string, string) (net.Conn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dialled {
		return nil, errUpstreamGone
	}
	p.dialled = true
	return &upstreamConn{p.up, p}, nil
}

// An upstreamConn notifies its proxy when the transport closes it.
type upstreamConn struct {
	*net.TCPConn
	p *proxy
}

// Close closes the connection and, if no request is being served, the sandbox's connection.
func (u *upstreamConn) Close() error {
	err := u.TCPConn.Close()
	u.p.mu.Lock()
	u.p.upstreamClosed = true
	idle := u.p.idle
	u.p.mu.Unlock()
	if idle {
		u.p.g.Close()
	}
	return err
}

// connState closes the guest's connection after the last answer if the destination's is closed.
func (p *proxy) connState(_ net.Conn, s http.ConnState) {
	p.mu.Lock()
	p.idle = s == http.StateIdle
	p.partial = s == http.StateActive
	end := p.idle && p.upstreamClosed
	p.mu.Unlock()
	if end {
		p.g.Close()
	}
}

// A halfCloseConn lets a sandbox that has closed its side wait for the answer. Without it, net/http would cancel the request: it
// reads one byte during a request, and treats io.EOF as a client that has disconnected.
type halfCloseConn struct {
	*guestConn
	p           *proxy        // the proxy of the connection
	interrupted chan struct{} // holds a token if the read deadline was set to the past
}

func (c *halfCloseConn) Read(b []byte) (int, error) {
	n, err := c.guestConn.Read(b)
	if len(b) != 1 || !errors.Is(err, io.EOF) {
		return n, err
	}
	select {
	case <-c.interrupted: // the request has been answered
		return 0, os.ErrDeadlineExceeded
	case <-c.ended:
	case <-c.closed:
	case <-time.After(c.flow.f.times.halfClosed):
	}
	return 0, io.EOF
}

// Close reports an incomplete or malformed request, for which net/http does not call the handler, as refused.
func (c *halfCloseConn) Close() error {
	c.p.mu.Lock()
	begun := c.p.partial
	c.p.partial = false
	c.p.mu.Unlock()
	if begun && c.flow.ctx.Err() == nil {
		c.flow.refuse("", caisson.Verdict{Rule: -1, Reason: "malformed HTTP, or the end of it is missing"})
	}
	return c.guestConn.Close()
}

// SetReadDeadline implements [net.Conn]. net/http sets a deadline in the past to interrupt its read of one byte.
func (c *halfCloseConn) SetReadDeadline(t time.Time) error {
	select {
	case <-c.interrupted:
	default:
	}
	if !t.IsZero() && t.Before(time.Now()) {
		select {
		case c.interrupted <- struct{}{}:
		default:
		}
	}
	return c.guestConn.SetReadDeadline(t)
}

// A singleListener is a listener with one connection. Accept returns it once, and net.ErrClosed after until is closed.
type singleListener struct {
	conn  net.Conn
	until <-chan struct{} // when it is closed, Accept returns net.ErrClosed
	addr  net.Addr
}

func (l *singleListener) Accept() (net.Conn, error) {
	if c := l.conn; c != nil {
		l.conn = nil
		return c, nil
	}
	<-l.until
	return nil, net.ErrClosed
}

func (l *singleListener) Close() error   { return nil }
func (l *singleListener) Addr() net.Addr { return l.addr }
