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

// connLimits bound the connections over TCP: the daemon's descriptors are to last for the unix socket and for sandboxes.
type connLimits struct {
	strangers int           // connections over which no valid token has come yet
	known     int           // the others
	time      time.Duration // for which a connection may be a stranger's
}

var usualConns = connLimits{strangers: 128, known: 384, time: 10 * time.Second}

// Limit returns a listener that bounds the connections of l. A connection belongs to a stranger until a valid token has come over it
// ([API.Remote] says so to servers of [Server]), and is closed if that takes longer than ten seconds, whatever it is doing. Strangers have a
// quarter of all connections. When they have more, the oldest one of the source with the most is closed, so that a new connection never
// waits, and who holds many connections open gives way to who holds few. A source is an IPv4 address or a /64 of IPv6.
func Limit(l net.Listener) net.Listener { return limitConns(l, usualConns) }

func limitConns(l net.Listener, limits connLimits) *listener {
	return &listener{Listener: l, limits: limits, strangers: list.New(), sources: map[netip.Prefix]int{}, idle: list.New()}
}

type listener struct {
	net.Listener
	limits connLimits

	mu        sync.Mutex
	strangers *list.List           // of *conn, the oldest first; guarded by mu
	sources   map[netip.Prefix]int // how many strangers each source has; guarded by mu
	known     int                  // guarded by mu
	idle      *list.List           // of known *conn without a request, the longest idle first; guarded by mu
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

// surplus returns the stranger that has to go, nil if there are not too many. Whoever calls it holds mu.
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

// admit makes a stranger's connection a known one. If there are too many, the one that has been idle for longest is closed; Exhausted if
// none is idle.
func (l *listener) admit(c *conn) error {
	l.mu.Lock()
	if c.stranger == nil {
		l.mu.Unlock()
		return nil // known already, or closed
	}
	var idle *conn
	if l.known >= l.limits.known {
		e := l.idle.Front()
		if e == nil {
			l.mu.Unlock()
			return caisson.Errorf(caisson.Exhausted, "the daemon has as many connections with requests as it may have; try again later")
		}
		// It stops counting here, not when it is closed, so that calls of admit at the same time close one each.
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

// leave takes c from the strangers. Whoever calls it holds mu.
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

// forget takes c from the known connections. The caller holds mu.
func (l *listener) forget(c *conn) {
	l.setIdle(c, false)
	if c.known {
		c.known = false
		l.known--
	}
}

// rest notes whether a known connection waits for its next request.
func (l *listener) rest(c *conn, idle bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.setIdle(c, idle)
}

// setIdle is rest for holders of mu.
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

	timer    *time.Timer   // set once; ends a stranger's connection
	stranger *list.Element // in of.strangers; nil once known or closed; guarded by of.mu
	known    bool          // guarded by of.mu
	idle     *list.Element // in of.idle, if it is there; guarded by of.mu
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

// CloseWrite lets the server end an answer before the client has sent its whole request: closed at once, the answer could be lost.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// limited returns the connection of a listener of this package that c is, or is TLS over; else nil.
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

// admitted makes the connection of the request with ctx a known one.
func admitted(ctx context.Context) error {
	if c, _ := ctx.Value(connKey{}).(*conn); c != nil {
		return c.of.admit(c)
	}
	return nil
}

// connState keeps track of idle connections.
func connState(c net.Conn, s http.ConnState) {
	if l := limited(c); l != nil && (s == http.StateIdle || s == http.StateActive) {
		l.of.rest(l, s == http.StateIdle)
	}
}

// sourceOf returns where an address is counted: an IPv4 address, or a /64 of IPv6, which is what one customer has at least.
func sourceOf(remote string) netip.Prefix {
	ap, err := netip.ParseAddrPort(remote)
	if err != nil {
		return netip.Prefix{} // all of these together
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
