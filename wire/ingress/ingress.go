// Package ingress serves routes: requests from outside that lead to ports of sandboxes. It runs in the wire process, because it
// parses input from untrusted clients and sandboxes.
//
// A request passes these steps in order: its host and path select a route, limits are checked, the client is authenticated, and
// the daemon is asked for a connection, which resumes the sandbox if the route says so. Only then is anything sent to the
// sandbox. Requests are written anew, so that the sandbox reads the request that was checked. Caisson's own credentials are
// removed from them.
package ingress

import (
	"context"
	"crypto/tls"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/connlimit"
	"github.com/caisson-dev/caisson/wire/httpserver"
)

// A Dial asks the daemon for a connection to the sandbox of a route or token.
type Dial = func(ctx context.Context, d caisson.IngressDial) (net.Conn, error)

// Config configures an Ingress. Dial and Log are required.
type Config struct {
	Dial Dial
	// Logged receives entries for the log of a route. If nil, they are discarded. It must not block.
	Logged func(route caisson.ID, e caisson.RouteRequest)
	// Used receives the sandboxes to which requests were passed, each at most twice in a few seconds. If nil, the use of
	// sandboxes is not reported.
	Used func(list []caisson.IngressUse)
	Log  *slog.Logger
	// Times bound how long clients may take; zero values are the defaults.
	Times Times
	// MaxConns and MaxClientConns limit the connections of clients; 0 are the defaults.
	MaxConns, MaxClientConns int
	// Now is the clock; nil: time.Now.
	Now func() time.Time
}

// Times bound how long clients may take.
type Times struct {
	Header time.Duration // for sending the header of a request
	Idle   time.Duration // between two requests on a connection
	Body   time.Duration // for sending the data for which a read of the request's body waits
	Write  time.Duration // for receiving the data of one write of the response
}

// Defaults of [Times]: how long clients may take.
const (
	headerTime = 10 * time.Second // for sending the header of a request
	idleTime   = 2 * time.Minute  // between two requests on a connection
	bodyTime   = 30 * time.Second // for sending the data for which one read of a request's body waits, not for the whole body
	writeTime  = time.Minute      // for receiving the data of one write of a response, not for the whole response
)

// Limits on connections and requests, which bound the memory that clients can make the process use. A connection takes at most
// about 350 KiB (see package httpserver), and a request 150 KiB (its header, buffers and goroutines). Together that is 2.6 GiB;
// the process's memory limit is 4 GiB.
const (
	maxConns          = 4096 // connections of all clients
	maxClientConns    = 512  // connections of one client
	maxAllRequests    = 8192 // requests of all clients, including those that are refused
	maxClientRequests = 2048 // requests of one client
)

// An Ingress serves routes. It is safe for concurrent use.
type Ingress struct {
	cfg       Config
	table     atomic.Pointer[table] // nil until Configure is called
	secure    atomic.Bool           // TLS is configured
	server    *httpserver.Server
	proxy     *httputil.ReverseProxy
	upstreams *upstreams // connects to sandboxes
	limits    *limits    // bounds the requests in progress and their rate
	calls     *calls     // requests in progress
	usage     *usage     // reports which sandboxes are used
}

// New returns an Ingress, which serves nothing until Configure.
func New(cfg Config) *Ingress {
	orDefault(&cfg.Times.Header, headerTime)
	orDefault(&cfg.Times.Idle, idleTime)
	orDefault(&cfg.Times.Body, bodyTime)
	orDefault(&cfg.Times.Write, writeTime)
	orDefault(&cfg.MaxConns, maxConns)
	orDefault(&cfg.MaxClientConns, maxClientConns)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	g := &Ingress{cfg: cfg, upstreams: newUpstreams(cfg.Dial), limits: newLimits(), calls: &calls{list: map[*call]struct{}{}}, usage: newUsage(cfg.Used)}
	g.proxy = &httputil.ReverseProxy{
		Rewrite: rewrite, Transport: g.upstreams, ModifyResponse: modifyResponse, ErrorHandler: handleProxyError,
		ErrorLog:   log.New(io.Discard, "", 0), // untrusted clients could cause any number of lines
		BufferPool: &buffers{sync.Pool{New: func() any { return new([32 << 10]byte) }}},
	}
	g.server = httpserver.New(g, httpserver.Timeouts{Header: cfg.Times.Header, Idle: cfg.Times.Idle, Write: cfg.Times.Write})
	return g
}

// buffers implements [httputil.BufferPool].
type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte  { return b.pool.Get().(*[32 << 10]byte)[:] }
func (b *buffers) Put(p []byte) { b.pool.Put((*[32 << 10]byte)(p)) }

// Configure replaces the routes and the certificate. It ends requests to routes that are gone, that lead elsewhere, or that have
// other authentication. If c is nil, no routes are served.
func (g *Ingress) Configure(c *caisson.IngressConfig) error {
	if c == nil {
		c = &caisson.IngressConfig{Key: make([]byte, 32)}
	}
	t, err := newTable(*c)
	if err != nil {
		return err
	}
	if c.Certificate != "" {
		g.secure.Store(true)
		cert, err := tls.X509KeyPair([]byte(c.Certificate), []byte(c.CertificateKey))
		if err != nil {
			g.cfg.Log.Error("the certificate of the ingress cannot be used; the previous one stays in use", "err", err)
		} else {
			g.server.SetCertificate(&cert)
		}
	}
	g.table.Store(t)
	g.calls.revoke(t)
	return nil
}

// Drop closes all connections to a sandbox. Requests in progress end, or are sent again over new connections.
func (g *Ingress) Drop(sandbox caisson.ID) { g.upstreams.drop(sandbox) }

// Serve serves l until it fails: with TLS if that is configured or l is reachable from other machines.
func (g *Ingress) Serve(l net.Listener) error {
	return g.server.Serve(connlimit.NewDisplacing(l, g.cfg.MaxConns, g.cfg.MaxClientConns), g.secure.Load())
}

// Close ends all connections of clients and to sandboxes.
func (g *Ingress) Close() error {
	err := g.server.Close()
	g.usage.close()
	g.upstreams.transport.CloseIdleConnections()
	return err
}

// A call is the HTTP request of a client, from its arrival until it has been answered. It is not a call of a model.
type call struct {
	route  *route                  // nil until the route is found
	dial   caisson.IngressDial     // request for a connection to the sandbox
	client netip.Addr              // address of the client
	secure bool                    // the request came over TLS
	query  string                  // query of the request, without tokens of signed URLs
	until  time.Time               // when the token of the signed URL expires; zero: never
	cancel context.CancelCauseFunc // ends the request
	idle   *time.Timer             // ends the request when there is no traffic
	ended  atomic.Bool             // the request has been answered
}

// callKey is the key of a request's *call in the context of the request.
type callKey struct{}

// contextCall returns the *call of a request, which the context of the request holds.
func contextCall(ctx context.Context) *call { return ctx.Value(callKey{}).(*call) }

// touch restarts the timer that ends a request without traffic.
func (c *call) touch() {
	c.idle.Reset(time.Duration(c.route.spec.IdleTimeout))
	if c.ended.Load() {
		c.idle.Stop() // the transport may read and write after the request has ended
	}
}

// ServeHTTP implements [http.Handler].
func (g *Ingress) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := g.cfg.Now()
	client, _ := netip.ParseAddrPort(r.RemoteAddr)
	leave, ok := g.limits.arrive(client)
	if !ok {
		panic(http.ErrAbortHandler) // no answer, which would take memory until the client has read it
	}
	defer leave()
	out := &responder{ResponseWriter: w, deadlines: newDeadlines(w, r, g.cfg.Times)}
	defer out.finish()
	c := &call{client: client.Addr().Unmap().WithZone(""), secure: r.TLS != nil, query: r.URL.RawQuery}
	defer func() {
		if g.cfg.Logged != nil && c.route != nil && c.route.id != "" {
			g.cfg.Logged(c.route.id, logEntry(c, r, out, start, g.cfg.Now()))
		}
	}()
	release, err := g.admit(c, out, r)
	if err != nil {
		refuse(out, r, err)
		return
	}
	defer release()
	if out.status != 0 {
		return // admit has answered the request
	}
	g.forward(c, out, r)
}

// admit decides whether a request is passed on, or answers it. If err is nil, release must be called when the request ends.
func (g *Ingress) admit(c *call, out *responder, r *http.Request) (release func(), err error) {
	release = func() {}
	t := g.table.Load()
	switch {
	case t == nil:
		return nil, &refusal{status: http.StatusServiceUnavailable, msg: "routes are not there yet; try again"}
	case r.Method == http.MethodConnect || !checkPath(r.URL):
		return nil, errPath
	}
	var ok bool
	if c.route, ok = t.find(r); !ok {
		return nil, errPath
	}
	if c.route == nil {
		return nil, &refusal{status: http.StatusNotFound, msg: "no route leads from here"}
	}
	spec := &c.route.spec
	leave, err := g.limits.enter(c, g.cfg.Now())
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			leave()
		}
	}()
	if preflight(out, r, spec.CORS) {
		return leave, nil
	}
	if !allowsMethod(spec.Methods, r.Method) {
		return nil, &refusal{status: http.StatusMethodNotAllowed, msg: "the route does not allow this method", allow: spec.Methods}
	}
	if err := g.authenticate(t, c, out, r); err != nil || out.status != 0 {
		return leave, err
	}
	if err := g.limits.proceed(c, g.cfg.Now()); err != nil {
		return nil, err
	}
	if r.ContentLength > int64(spec.MaxBody) {
		return nil, errTooLarge
	}
	if spec.StripPrefix && spec.Path != "" {
		u := *r.URL
		if !stripPrefix(&u, spec.Path) {
			return nil, errPath
		}
		r.URL = &u
	}
	return leave, nil
}

// forward passes a request on to its sandbox, and the answer back.
func (g *Ingress) forward(c *call, out *responder, r *http.Request) {
	ctx, cancel := context.WithCancelCause(context.WithValue(r.Context(), callKey{}, c))
	defer cancel(nil)
	c.cancel = cancel
	c.idle = time.AfterFunc(time.Duration(c.route.spec.IdleTimeout), func() { cancel(errIdle) })
	defer func() {
		c.ended.Store(true)
		c.idle.Stop()
	}()
	if !c.until.IsZero() {
		defer time.AfterFunc(c.until.Sub(g.cfg.Now()), func() { cancel(errExpired) }).Stop()
	}
	g.calls.add(c)
	defer g.calls.remove(c)
	if t := g.table.Load(); !t.permits(c) { // the table may have changed since the request was admitted
		refuse(out, r, errRevoked)
		return
	}
	defer g.usage.begin(c.route.sandbox)()
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = &clientBody{ReadCloser: http.MaxBytesReader(out, r.Body, int64(c.route.spec.MaxBody)), call: c, deadlines: out.deadlines}
	}
	out.atEnd = func(f func()) { context.AfterFunc(ctx, f) }
	g.proxy.ServeHTTP(out, r.WithContext(ctx))
}

// calls is the set of the HTTP requests of clients that are being passed on to sandboxes. Safe for concurrent use.
type calls struct {
	mu   sync.Mutex
	list map[*call]struct{} // the requests; guarded by mu
}

func (l *calls) add(c *call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list[c] = struct{}{}
}

func (l *calls) remove(c *call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.list, c)
}

// revoke ends the requests in l that t, the new table of routes, does not permit any more.
func (l *calls) revoke(t *table) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.list {
		if !t.permits(c) {
			c.cancel(errRevoked)
		}
	}
}
