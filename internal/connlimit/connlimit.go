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
	maxTotal, maxPerSource int
	displace               bool

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

// NewDisplacing is like New, but a connection above total is accepted if another source has more connections than its own source
// then would. The oldest connection of the source with the most connections is closed for it. So a few sources cannot occupy all
// connections.
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
			displaced.Conn.Close() // The owner sees a closed connection, and calls Close, too.
		}
		if ok {
			return accepted, nil
		}
		c.Close()
	}
}

// add counts c unless a limit is reached, in which case ok is false. displaced is the connection that c replaces, if any; it is
// no longer counted.
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

// set replaces the connections of a source. The caller must hold mu.
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
	listener *Listener
	source   netip.Prefix
}

// Close implements [net.Conn].
func (c *conn) Close() error {
	err := c.Conn.Close()
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	c.listener.remove(c)
	return err
}
