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
)

// connLimits limits the connections over TCP, so that enough file descriptors remain for the unix socket and for sandboxes.
type connLimits struct {
	strangers int           // connections on which no valid token has arrived yet (unauthenticated connections)
	known     int           // the other connections (authenticated connections)
	time      time.Duration // how long a connection may remain unauthenticated
}

var usualConns = connLimits{strangers: 128, known: 384, time: 10 * time.Second}

// Limit returns a listener that limits the connections of l. A connection is unauthenticated until a valid token has arrived on
// it (which the handler of [API.Remote] reports, for servers from [Server]), and is closed if that takes longer than ten
// seconds, even while a request is in progress. Unauthenticated connections can be a quarter of all connections. When there are
// more, the oldest one of the source with the most of them is closed, so that a new connection never waits, and sources with
// many connections lose theirs before sources with few. A source is an IPv4 address or a /64 of IPv6.
func Limit(l net.Listener) net.Listener { return limitConns(l, usualConns) }

func limitConns(l net.Listener, limits connLimits) *listener {
	return &listener{Listener: l, limits: limits, strangers: list.New(), sources: map[netip.Prefix]int{}, idle: list.New()}
}

type listener struct {
	net.Listener
	limits connLimits

	mu        sync.Mutex
	strangers *list.List           // unauthenticated *conn, the oldest first; guarded by mu
	sources   map[netip.Prefix]int // number of unauthenticated connections of each source; guarded by mu
	known     int                  // number of authenticated connections; guarded by mu
	idle      *list.List           // authenticated *conn without a request, the longest idle first; guarded by mu
}

// Accept implements [net.Listener].
func (l *listener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: raw, of: l, source: sourceOf(raw.RemoteAddr().String())}
	l.mu.Lock()
	c.stranger = l.strangers.PushBack(c)
	l.sources[c.source]++
	c.timer = time.AfterFunc(l.limits.time, func() { l.expire(c) })
	surplus := l.surplus()
	l.mu.Unlock()
	if surplus != nil {
		surplus.Close()
	}
	return c, nil
}

// surplus returns the unauthenticated connection to close, nil if there are not too many. The caller must hold mu.
func (l *listener) surplus() *conn {
	if l.strangers.Len() <= l.limits.strangers {
		return nil
	}
	most := 0
	for _, n := range l.sources {
		most = max(most, n)
	}
	for e := l.strangers.Front(); e != nil; e = e.Next() {
		if c := e.Value.(*conn); l.sources[c.source] == most {
			return c
		}
	}
	return nil
}

func (l *listener) expire(c *conn) {
	l.mu.Lock()
	stranger := c.stranger != nil
	l.mu.Unlock()
	if stranger {
		c.Close()
	}
}

// admit marks c as authenticated. If there are too many authenticated connections, the one that has been idle for longest is
// closed; returns Exhausted if none is idle.
func (l *listener) admit(c *conn) error {
	l.mu.Lock()
	if c.stranger == nil {
		l.mu.Unlock()
		return nil // already authenticated, or closed
	}
	var idle *conn
	if l.known >= l.limits.known {
		e := l.idle.Front()
		if e == nil {
			l.mu.Unlock()
			return caisson.Errorf(caisson.Exhausted, "the daemon has as many connections with requests as it may have; try again later")
		}
		// The idle connection is removed from the count here, not when it is closed, so that concurrent calls of admit each
		// close a different one.
		idle = e.Value.(*conn)
		l.forget(idle)
	}
	l.leave(c)
	c.known = true
	l.known++
	l.mu.Unlock()
	if idle != nil {
		idle.Close()
	}
	return nil
}

// leave removes c from the unauthenticated connections. The caller must hold mu.
func (l *listener) leave(c *conn) {
	if c.stranger == nil {
		return
	}
	c.timer.Stop()
	l.strangers.Remove(c.stranger)
	c.stranger = nil
	if l.sources[c.source]--; l.sources[c.source] == 0 {
		delete(l.sources, c.source)
	}
}

// forget removes c from the authenticated connections. The caller must hold mu.
func (l *listener) forget(c *conn) {
	l.setIdle(c, false)
	if c.known {
		c.known = false
		l.known--
	}
}

// rest records whether an authenticated connection is idle, that is, has no request.
func (l *listener) rest(c *conn, idle bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.setIdle(c, idle)
}

// setIdle is like rest, but the caller must hold mu.
func (l *listener) setIdle(c *conn, idle bool) {
	switch {
	case idle && c.known && c.idle == nil:
		c.idle = l.idle.PushBack(c)
	case !idle && c.idle != nil:
		l.idle.Remove(c.idle)
		c.idle = nil
	}
}

// A conn is a connection of a listener.
type conn struct {
	net.Conn
	of     *listener
	source netip.Prefix

	timer    *time.Timer   // set once; closes c if it is still unauthenticated
	stranger *list.Element // c in of.strangers; nil once authenticated or closed; guarded by of.mu
	known    bool          // guarded by of.mu
	idle     *list.Element // c in of.idle; nil if c is not idle; guarded by of.mu
}

// Close implements [net.Conn].
func (c *conn) Close() error {
	err := c.Conn.Close()
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.of.leave(c)
	c.of.forget(c)
	return err
}

// CloseWrite allows the server to end a response before the client has sent its whole request; if the connection were closed at
// once, the response could be lost.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// limited returns the *conn that c is, or that c is TLS over; nil if c does not come from a listener of this package.
func limited(c net.Conn) *conn {
	if over, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = over.NetConn()
	}
	l, _ := c.(*conn)
	return l
}

type connKey struct{}

func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, limited(c))
}

// admitted marks the connection of the request with ctx as authenticated, as [listener.admit] does.
func admitted(ctx context.Context) error {
	if c, _ := ctx.Value(connKey{}).(*conn); c != nil {
		return c.of.admit(c)
	}
	return nil
}

// connState records which connections are idle. It is the ConnState callback of the server.
func connState(c net.Conn, s http.ConnState) {
	if l := limited(c); l != nil && (s == http.StateIdle || s == http.StateActive) {
		l.of.rest(l, s == http.StateIdle)
	}
}

// sourceOf returns the prefix by which an address is counted: an IPv4 address, or a /64 of IPv6, which is the least that one
// customer has.
func sourceOf(remote string) netip.Prefix {
	ap, err := netip.ParseAddrPort(remote)
	if err != nil {
		return netip.Prefix{} // all unparsable addresses count as one source
	}
	a := ap.Addr().Unmap().WithZone("")
	bits := a.BitLen()
	if a.Is6() {
		bits = 64
	}
	p, err := a.Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return p
}
