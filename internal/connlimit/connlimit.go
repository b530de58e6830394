// Package connlimit limits the connections of a listener, in total and of each client.
package connlimit

import (
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/caisson-dev/caisson/internal/reach"
)

// A Listener closes connections above a limit instead of queueing them: in a queue, a client that occupies all connections would
// delay other clients.
type Listener struct {
	net.Listener
	maxTotal, maxPerSource int  // maximum numbers of open connections: of all sources together, and of one source
	displace               bool // a connection above maxTotal may displace another one, see NewDisplacing

	mu      sync.Mutex
	total   int                      // number of open connections; guarded by mu
	sources map[netip.Prefix][]*conn // the open connections of each source, the oldest first; guarded by mu
	// byCount[n] is the set of the sources with n open connections; guarded by mu.
	byCount []map[netip.Prefix]struct{}
}

// New returns a listener that accepts connections of l: at most total at the same time, and at most perSource from each source as
// [reach.Source] defines it.
func New(l net.Listener, total, perSource int) *Listener {
	return &Listener{
		Listener: l, maxTotal: total, maxPerSource: perSource, sources: map[netip.Prefix][]*conn{},
		byCount: make([]map[netip.Prefix]struct{}, perSource+1),
	}
}

// NewDisplacing is like New, but a new connection above total is accepted if some source has more connections than the source
// of the new connection would then have. The oldest connection of the source with the most connections is closed in exchange.
// So a few sources cannot occupy all connections.
func NewDisplacing(l net.Listener, total, perSource int) *Listener {
	b := New(l, total, perSource)
	b.displace = true
	return b
}

// Accept implements [net.Listener].
func (b *Listener) Accept() (net.Conn, error) {
	for {
		c, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		accepted := &conn{Conn: c, listener: b, source: reach.Source(c.RemoteAddr().String())}
		displaced, ok := b.add(accepted)
		if displaced != nil {
			displaced.Conn.Close() // The owner of the displaced connection gets an error from it, and then calls its Close.
		}
		if ok {
			return accepted, nil
		}
		c.Close()
	}
}

// add counts the new connection c. ok is false if a limit is reached, so that c is not counted. displaced is the connection
// that is no longer counted because c replaces it, or nil.
func (b *Listener) add(c *conn) (displaced *conn, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	own := len(b.sources[c.source])
	if own >= b.maxPerSource {
		return nil, false
	}
	if b.total >= b.maxTotal {
		if displaced = b.oldestOfMost(own + 1); displaced == nil {
			return nil, false
		}
		b.remove(displaced)
	}
	b.total++
	b.set(c.source, append(b.sources[c.source], c))
	return displaced, true
}

// oldestOfMost returns the oldest connection of a source with the most connections, or nil if no source has more than least. The
// caller must hold mu.
func (b *Listener) oldestOfMost(least int) *conn {
	for n := b.maxPerSource; b.displace && n > least; n-- {
		for source := range b.byCount[n] {
			return b.sources[source][0]
		}
	}
	return nil
}

// remove stops counting c. It does nothing if c is not counted. The caller must hold mu.
func (b *Listener) remove(c *conn) {
	list := b.sources[c.source]
	if i := slices.Index(list, c); i >= 0 {
		b.total--
		b.set(c.source, slices.Delete(list, i, i+1))
	}
}

// set replaces the list of the open connections of a source. The caller must hold mu.
func (b *Listener) set(source netip.Prefix, list []*conn) {
	delete(b.byCount[len(b.sources[source])], source)
	if len(list) == 0 {
		delete(b.sources, source)
		return
	}
	b.sources[source] = list
	if b.byCount[len(list)] == nil {
		b.byCount[len(list)] = map[netip.Prefix]struct{}{}
	}
	b.byCount[len(list)][source] = struct{}{}
}

// A conn is a connection that counts against the limits until it is closed or displaced.
type conn struct {
	net.Conn
	listener *Listener    // the listener that has accepted the connection
	source   netip.Prefix // the source that the connection counts for
}

// Close implements [net.Conn].
func (c *conn) Close() error {
	err := c.Conn.Close()
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	c.listener.remove(c)
	return err
}
