package httpapi

import (
	"container/list"
	"context"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/reach"
)

// connLimits limits the connections over TCP, so that enough file descriptors remain for the unix socket and for sandboxes.
type connLimits struct {
	unauthenticated int           // maximum number of connections on which no valid token has arrived yet
	authenticated   int           // maximum number of connections on which a valid token has arrived
	authTimeout     time.Duration // time after which a connection that is still unauthenticated is closed
}

// defaultConnLimits are the limits of listeners that [Limit] returns.
var defaultConnLimits = connLimits{unauthenticated: 128, authenticated: 384, authTimeout: 10 * time.Second}

// Limit returns a listener that limits the connections of l. A connection is unauthenticated until a valid token has arrived on
// it (which the handler of [API.Remote] reports, for servers from [Server]), and is closed if that takes longer than ten seconds,
// even while a request is in progress. At most a quarter of all connections can be unauthenticated. When there are more,
// Limit closes the oldest unauthenticated connection of the source that has the most of them, so that a new connection never
// waits, and sources with many connections lose connections before sources with few. A source is an IPv4 address or a /64 of
// IPv6.
func Limit(l net.Listener) net.Listener { return newListener(l, defaultConnLimits) }

func newListener(l net.Listener, limits connLimits) *listener {
	return &listener{Listener: l, limits: limits, unauthenticated: list.New(), sources: map[netip.Prefix]int{}, idle: list.New()}
}

// A listener accepts connections of the net.Listener in it, and closes some of them when there are more than its limits allow.
type listener struct {
	net.Listener
	limits connLimits

	mu              sync.Mutex
	unauthenticated *list.List           // unauthenticated *conn, the oldest first; guarded by mu
	sources         map[netip.Prefix]int // number of unauthenticated connections of each source; guarded by mu
	authenticated   int                  // number of authenticated connections; guarded by mu
	idle            *list.List           // authenticated *conn without a request, the longest idle first; guarded by mu
}

// Accept returns a new, unauthenticated connection. If there are too many of these now, it closes one of them.
func (l *listener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: raw, listener: l, source: reach.Source(raw.RemoteAddr().String())}
	l.mu.Lock()
	c.unauthElem = l.unauthenticated.PushBack(c)
	l.sources[c.source]++
	c.timer = time.AfterFunc(l.limits.authTimeout, func() { l.expire(c) })
	surplus := l.excessConn()
	l.mu.Unlock()
	if surplus != nil {
		surplus.Close()
	}
	return c, nil
}

// excessConn returns the unauthenticated connection to close, nil if their number is within the limit. The caller must hold mu.
func (l *listener) excessConn() *conn {
	if l.unauthenticated.Len() <= l.limits.unauthenticated {
		return nil
	}
	most := 0
	for _, n := range l.sources {
		most = max(most, n)
	}
	for e := l.unauthenticated.Front(); e != nil; e = e.Next() {
		if c := e.Value.(*conn); l.sources[c.source] == most {
			return c
		}
	}
	return nil
}

// expire closes c if it is still unauthenticated.
func (l *listener) expire(c *conn) {
	l.mu.Lock()
	stranger := c.unauthElem != nil
	l.mu.Unlock()
	if stranger {
		c.Close()
	}
}

// admit marks c as authenticated. If there are too many authenticated connections, it closes the one that has been idle for the
// longest time, or returns Exhausted if none is idle.
func (l *listener) admit(c *conn) error {
	l.mu.Lock()
	if c.unauthElem == nil {
		l.mu.Unlock()
		return nil // c is already authenticated, or closed
	}
	var idle *conn
	if l.authenticated >= l.limits.authenticated {
		e := l.idle.Front()
		if e == nil {
			l.mu.Unlock()
			return caisson.Errorf(caisson.Exhausted, "the daemon has reached its limit of connections with active requests; try again later")
		}
		// The idle connection is removed from the count here, not when it is closed, so that concurrent calls of admit each
		// close a different one.
		idle = e.Value.(*conn)
		l.removeAuthenticated(idle)
	}
	l.removeUnauthenticated(c)
	c.authenticated = true
	l.authenticated++
	l.mu.Unlock()
	if idle != nil {
		idle.Close()
	}
	return nil
}

// removeUnauthenticated removes c from the unauthenticated connections. The caller must hold mu.
func (l *listener) removeUnauthenticated(c *conn) {
	if c.unauthElem == nil {
		return
	}
	c.timer.Stop()
	l.unauthenticated.Remove(c.unauthElem)
	c.unauthElem = nil
	if l.sources[c.source]--; l.sources[c.source] == 0 {
		delete(l.sources, c.source)
	}
}

// removeAuthenticated removes c from the authenticated connections. The caller must hold mu.
func (l *listener) removeAuthenticated(c *conn) {
	l.markIdleLocked(c, false)
	if c.authenticated {
		c.authenticated = false
		l.authenticated--
	}
}

// markIdle records whether an authenticated connection is idle, which means that it has no request.
func (l *listener) markIdle(c *conn, idle bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.markIdleLocked(c, idle)
}

// markIdleLocked records whether an authenticated connection is idle, like markIdle. The caller must hold mu.
func (l *listener) markIdleLocked(c *conn, idle bool) {
	switch {
	case idle && c.authenticated && c.idleElem == nil:
		c.idleElem = l.idle.PushBack(c)
	case !idle && c.idleElem != nil:
		l.idle.Remove(c.idleElem)
		c.idleElem = nil
	}
}

// A conn is a connection that a listener has accepted.
type conn struct {
	net.Conn
	listener *listener
	source   netip.Prefix // the client's IPv4 address, or /64 of IPv6

	timer         *time.Timer   // closes c if c is still unauthenticated; set once
	unauthElem    *list.Element // c in listener.unauthenticated; nil once authenticated or closed; guarded by listener.mu
	authenticated bool          // a valid token has arrived on c; guarded by listener.mu
	idleElem      *list.Element // c in listener.idle; nil if c is not idle; guarded by listener.mu
}

// Close closes the connection, which then no longer counts toward the limits of its listener.
func (c *conn) Close() error {
	err := c.Conn.Close()
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	c.listener.removeUnauthenticated(c)
	c.listener.removeAuthenticated(c)
	return err
}

// CloseWrite closes c for writing only. The server calls it when a response ends before the client has sent its whole request:
// if both directions were closed at once, the response could be lost.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// limitedConn returns c as a *conn or, if c is a TLS connection, the *conn below it; nil if c is not from a [listener].
func limitedConn(c net.Conn) *conn {
	if over, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = over.NetConn()
	}
	l, _ := c.(*conn)
	return l
}

// connContextKey is the key of the value that [withConn] adds to a context.
type connContextKey struct{}

// withConn returns a context in which [admitConn] finds the connection c. It is the ConnContext callback of the server.
func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connContextKey{}, limitedConn(c))
}

// admitConn marks the connection of the request with ctx as authenticated, as [listener.admit] does.
func admitConn(ctx context.Context) error {
	if c, _ := ctx.Value(connContextKey{}).(*conn); c != nil {
		return c.listener.admit(c)
	}
	return nil
}

// connState records which connections are idle. It is the ConnState callback of the server.
func connState(c net.Conn, s http.ConnState) {
	if l := limitedConn(c); l != nil && (s == http.StateIdle || s == http.StateActive) {
		l.listener.markIdle(l, s == http.StateIdle)
	}
}
