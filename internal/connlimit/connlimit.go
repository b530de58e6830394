// Package connlimit limits the connections of a listener, in total and of each client.
package connlimit

import (
	"net"
	"net/netip"
	"sync"
)

// A Listener closes connections above a limit. It does not queue them, because a client that occupies all connections must not
// delay those of others.
type Listener struct {
	net.Listener
	maxTotal, maxPerSource int

	mu      sync.Mutex
	total   int                  // number of open connections; guarded by mu
	sources map[netip.Prefix]int // number of open connections by source; guarded by mu
}

// New returns a listener that accepts the connections of l, at most total, and perSource of each source; see [SourceOf].
func New(l net.Listener, total, perSource int) *Listener {
	return &Listener{Listener: l, maxTotal: total, maxPerSource: perSource, sources: map[netip.Prefix]int{}}
}

// Accept implements [net.Listener].
func (b *Listener) Accept() (net.Conn, error) {
	for {
		c, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		source := SourceOf(c.RemoteAddr().String())
		if b.acquire(source) {
			return &conn{Conn: c, release: sync.OnceFunc(func() { b.release(source) })}, nil
		}
		c.Close()
	}
}

func (b *Listener) acquire(source netip.Prefix) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.total >= b.maxTotal || b.sources[source] >= b.maxPerSource {
		return false
	}
	b.total++
	b.sources[source]++
	return true
}

func (b *Listener) release(source netip.Prefix) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.total--
	if b.sources[source]--; b.sources[source] == 0 {
		delete(b.sources, source)
	}
}

// A conn is a connection that counts against the limits until it is closed.
type conn struct {
	net.Conn
	release func() // releases the connection from the limits; idempotent
}

// Close implements [net.Conn].
func (c *conn) Close() error {
	err := c.Conn.Close()
	c.release()
	return err
}

// SourceOf returns the network that is assumed to belong to one client. All addresses that cannot be parsed map to the same
// network, which is invalid.
func SourceOf(remoteAddr string) netip.Prefix {
	ap, err := netip.ParseAddrPort(remoteAddr)
	if err != nil {
		return netip.Prefix{}
	}
	a, bits := ap.Addr().Unmap().WithZone(""), 32
	if a.Is6() {
		bits = 64
	}
	p, err := a.Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return p
}
