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

const maxHeader = 128 << 10

var errUpstreamGone = errors.New("the connection to the destination has ended")

// A proxy serves the plain HTTP of one connection over the one connection that was dialled for it, and asks about the host
// of each request. It reads and writes whole requests with net/http, never bytes, so that no request hides in another.
type proxy struct {
	c    *flow
	g    *guest
	up   *net.TCPConn
	dst  string
	http httputil.ReverseProxy

	answer http.Header // of the request being served; there is one at a time

	busy sync.WaitGroup // requests being served

	mu     sync.Mutex
	over   bool   // guarded by mu; no more requests
	taken  bool   // guarded by mu; the transport has up
	gone   bool   // guarded by mu; the transport has closed up
	begun  bool   // guarded by mu; something was said that is no request yet
	idle   bool   // guarded by mu; no request is being served
	before string // guarded by mu; the last name that was allowed
}

// serveHTTP returns when the connection has ended.
func (c *flow) serveHTTP(g *guest, up *net.TCPConn) {
	p := &proxy{c: c, g: g, up: up, dst: c.what.Dst.String()}
	transport := &http.Transport{
		DialContext:            p.take,
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
		ErrorHandler:   p.fail,
		ErrorLog:       silent,
	}
	server := &http.Server{
		Handler:           p,
		ReadHeaderTimeout: c.f.times.header,
		IdleTimeout:       -1,
		MaxHeaderBytes:    maxHeader,
		Protocols:         http1(),
		// The destination answers "OPTIONS *", and its host is judged, too.
		DisableGeneralOptionsHandler: true,

		ConnState:   p.state,
		ErrorLog:    silent,
		BaseContext: func(net.Listener) context.Context { return c.ctx },
	}
	l := &single{conn: &patient{guest: g, p: p, past: make(chan struct{}, 1)}, until: g.shut, addr: g.LocalAddr()}
	server.Serve(l) // returns once g has been closed
	p.mu.Lock()
	p.over = true
	p.mu.Unlock()
	transport.CloseIdleConnections()
	up.Close()
	p.busy.Wait()
}

// start counts a request in, unless the connection has ended with requests still waiting in a buffer.
func (p *proxy) start() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.begun = false
	if !p.over {
		p.busy.Add(1)
	}
	return !p.over
}

func http1() *http.Protocols {
	var p http.Protocols
	p.SetHTTP1(true)
	return &p
}

// ServeHTTP serves a request if the sandbox may speak to its host.
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !p.start() {
		return
	}
	defer p.busy.Done()
	name, reason := p.check(r)
	if reason != "" {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprintf(w, "caisson: %s %.100q refused: %s; `caisson policy explain` says what would allow it\n", r.Method, name, reason)
		return
	}
	if u := r.Header.Get("Upgrade"); u != "" && !strings.EqualFold(u, "websocket") {
		// What goes on as another protocol is not seen any more, and HTTP/2 could speak to any host then.
		r.Header.Del("Upgrade")
		r.Header.Del("Http2-Settings")
	}
	p.answer = w.Header()
	// Else net/http reads the rest of a request's body, at the same time as the transport, once the answer begins. On a
	// connection of HTTP/1 this cannot fail.
	http.NewResponseController(w).EnableFullDuplex()
	p.http.ServeHTTP(answer{w}, r)
}

// An answer is one from which the destination's "100 Continue" is missing: it makes the transport read the request's body,
// and that makes net/http say the same to the sandbox.
type answer struct{ http.ResponseWriter }

func (a answer) WriteHeader(status int) {
	if status != http.StatusContinue {
		a.ResponseWriter.WriteHeader(status)
	}
}

// Unwrap is for [http.ResponseController].
func (a answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// check returns the host that r names, and why the sandbox may not speak to it, "" if it may. It has reported that.
func (p *proxy) check(r *http.Request) (name, reason string) {
	name = hostName(r.Host)
	if !clearTarget(r) {
		reason = "the host of the request is not clear"
	}
	v := p.c.say(name)
	if name == "" {
		reason = "a rule allows the name, so the request must say it (no Host)"
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
	again := p.before == name
	p.before = name
	p.mu.Unlock()
	if !again {
		v.Name = name
		p.c.f.report("request", p.c.what, v, "")
	}
	return name, ""
}

// clearTarget says whether a request's target is a path, "*", or a whole http URL of the host that is judged. Go reads
// others too, and writes "x:http://other/" as http://other/, which a server takes before the Host.
func clearTarget(r *http.Request) bool {
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

// hostName returns the name in "name", "name:port" and "name.:port", in lower case. What has another form it leaves as it is,
// with a colon or bracket in it, so that it is not a plausible name.
func hostName(host string) string {
	if h, port, ok := strings.Cut(host, ":"); ok && isPort(port) {
		host = h
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

func isPort(s string) bool {
	_, err := strconv.ParseUint(s, 10, 16) // takes no sign
	return err == nil
}

// rewrite sends the request where the connection leads, and otherwise as it came.
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

// respond passes on that the destination will say no more, and keeps net/http from adding to what it says.
func (p *proxy) respond(r *http.Response) error {
	for _, h := range []string{"Content-Type", "Date"} {
		if _, ok := r.Header[h]; !ok {
			p.answer[h] = nil
		}
	}
	if r.Close {
		r.Header.Set("Connection", "close")
	}
	return nil
}

// fail ends the connection without an answer: the destination has given none.
func (p *proxy) fail(w http.ResponseWriter, _ *http.Request, _ error) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		p.c.end("")
		return
	}
	conn.Close()
}

// take is the transport's way to the one connection there is.
func (p *proxy) take(context.Context, string, string) (net.Conn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken {
		return nil, errUpstreamGone
	}
	p.taken = true
	return &upstream{p.up, p}, nil
}

// An upstream tells its proxy when the transport is done with it.
type upstream struct {
	*net.TCPConn
	p *proxy
}

func (u *upstream) Close() error {
	err := u.TCPConn.Close()
	u.p.mu.Lock()
	u.p.gone = true
	idle := u.p.idle
	u.p.mu.Unlock()
	if idle {
		u.p.g.Close()
	}
	return err
}

// state closes a connection that has nothing behind it any more, when its last answer has been written.
func (p *proxy) state(_ net.Conn, s http.ConnState) {
	p.mu.Lock()
	p.idle = s == http.StateIdle
	p.begun = s == http.StateActive
	end := p.idle && p.gone
	p.mu.Unlock()
	if end {
		p.g.Close()
	}
}

// A patient connection lets a sandbox that has ended its side wait for the answer. To net/http the end means that nobody
// waits, and during a request it looks for that by reading one byte.
type patient struct {
	*guest
	p    *proxy
	past chan struct{} // holds a token if the deadline for reading has been set to the past
}

func (c *patient) Read(b []byte) (int, error) {
	n, err := c.guest.Read(b)
	if len(b) != 1 || !errors.Is(err, io.EOF) {
		return n, err
	}
	most := time.NewTimer(c.flow.f.times.halfClosed)
	defer most.Stop()
	select {
	case <-c.past: // the request has been answered
		return 0, os.ErrDeadlineExceeded
	case <-c.gone:
	case <-c.shut:
	case <-most.C:
	}
	return 0, io.EOF
}

// Close reports what net/http refuses by itself, just before.
func (c *patient) Close() error {
	c.p.mu.Lock()
	begun := c.p.begun
	c.p.begun = false
	c.p.mu.Unlock()
	if begun && c.flow.ctx.Err() == nil {
		c.flow.refuse("", caisson.Verdict{Rule: -1, Reason: "malformed HTTP, or the end of it is missing"})
	}
	return c.guest.Close()
}

func (c *patient) SetReadDeadline(t time.Time) error {
	select {
	case <-c.past:
	default:
	}
	if !t.IsZero() && t.Before(time.Now()) {
		select {
		case c.past <- struct{}{}:
		default:
		}
	}
	return c.guest.SetReadDeadline(t)
}

// A single is a listener with one connection, that ends when until is closed.
type single struct {
	conn  net.Conn
	until <-chan struct{}
	addr  net.Addr
}

func (l *single) Accept() (net.Conn, error) {
	if c := l.conn; c != nil {
		l.conn = nil
		return c, nil
	}
	<-l.until
	return nil, net.ErrClosed
}

func (l *single) Close() error   { return nil }
func (l *single) Addr() net.Addr { return l.addr }
