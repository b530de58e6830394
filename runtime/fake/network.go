package fake

import (
	"context"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// maxConnections is the maximum number of connections into a sandbox.
const maxConnections = 1024

// A network has the servers of a sandbox and the connections to them. Its zero value is empty.
type network struct {
	mu        sync.Mutex
	listeners map[endpoint]*Listener // servers by the address at which they listen; guarded by mu
	conns     map[*os.File]*Listener // the server's end of each connection, and its server; guarded by mu
}

// An endpoint is the address of a server.
type endpoint struct{ network, address string } // network is "tcp" or "unix", address a port or a path

// A Listener is a server of a process. Its connections end with the process.
type Listener struct {
	p       *Proc         // the process that serves the connections
	at      endpoint      // the address at which p listens
	waiting chan *os.File // connections that Accept has not returned yet
	closed  chan struct{} // closed by Close
	once    sync.Once     // makes only the first call of Close take effect
}

// Listen makes p listen at a port ("tcp", and "tcp6" as another name for it) or at a path ("unix"). Up to backlog connections, at
// least one, can wait. Returns EADDRINUSE if there is a server at the address.
func Listen(p *Proc, network, address string, backlog int) (*Listener, error) {
	if network == "tcp6" {
		network = "tcp"
	}
	l := &Listener{p: p, at: endpoint{network, address}, waiting: make(chan *os.File, max(backlog, 1)), closed: make(chan struct{})}
	n := &p.sandbox.network
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners == nil {
		n.listeners, n.conns = map[endpoint]*Listener{}, map[*os.File]*Listener{}
	}
	if n.listeners[l.at] != nil {
		return nil, syscall.EADDRINUSE
	}
	n.listeners[l.at] = l
	return l, nil
}

// Accept returns the next connection: a stream socket. The caller must close it.
func (l *Listener) Accept(ctx context.Context) (*os.File, error) {
	select {
	case conn := <-l.waiting:
		return conn, nil
	case <-l.closed:
		return nil, os.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Close stops listening. Connections that were accepted continue.
func (l *Listener) Close() error {
	l.once.Do(func() {
		n := &l.p.sandbox.network
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.listeners, l.at)
		close(l.closed)
		for {
			select {
			case conn := <-l.waiting:
				delete(n.conns, conn)
				conn.Close()
			default:
				return
			}
		}
	})
	return nil
}

// closeServersOf closes the servers of a process and ends their connections.
func (n *network) closeServersOf(p *Proc) {
	n.mu.Lock()
	var all []*Listener
	for _, l := range n.listeners {
		if l.p == p {
			all = append(all, l)
		}
	}
	n.mu.Unlock()
	for _, l := range all {
		l.Close()
	}
	n.endMatching(func(l *Listener) bool { return l.p == p })
}

// endConnections ends all connections.
func (n *network) endConnections() { n.endMatching(func(*Listener) bool { return true }) }

// endMatching ends the connections to the servers for which match returns true.
func (n *network) endMatching(match func(*Listener) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for conn, l := range n.conns {
		if !match(l) {
			continue
		}
		delete(n.conns, conn)
		if raw, err := conn.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) }) // the caller of Accept closes conn
		}
	}
}

// HandTo makes p, another process of the same sandbox, the owner of the listener.
func (l *Listener) HandTo(p *Proc) {
	n := &p.sandbox.network
	n.mu.Lock()
	defer n.mu.Unlock()
	l.p = p
}

// Connect connects p to a server of its sandbox.
func Connect(ctx context.Context, p *Proc, network, address string) (*os.File, error) {
	return p.sandbox.network.dial(ctx, p.sandbox, endpoint{network, address})
}

// Dial implements [caisson.Dialer].
func (r *Runtime) Dial(ctx context.Context, id caisson.ID, network, address string) (*os.File, error) {
	s, err := r.findFor(OpDial, id)
	if err != nil {
		return nil, err
	}
	if err := caisson.CheckDialAddress(network, address); err != nil {
		return nil, err
	}
	if err := s.requireRunning(); err != nil {
		return nil, err
	}
	return s.network.dial(ctx, s, endpoint{network, address})
}

// dial connects to the server of sandbox s at the address to. n must be the network of s.
func (n *network) dial(ctx context.Context, s *sandbox, to endpoint) (*os.File, error) {
	refused := caisson.Errorf(caisson.Unavailable, "no server listens at %.200s in the sandbox", to.address)
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "connection"), os.NewFile(uintptr(fds[1]), "connection")
	l, err := n.add(to, theirs)
	if err == nil && l == nil {
		err = refused
	}
	if err == nil {
		select {
		case l.waiting <- theirs:
			return ours, nil
		case <-l.closed:
			err = refused
		case <-s.done:
			err = s.notRunning()
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		n.remove(theirs)
	}
	ours.Close()
	theirs.Close()
	return nil, err
}

// add records that conn is a connection to the server at the address to, and returns that server; nil if there is none.
func (n *network) add(to endpoint, conn *os.File) (*Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.listeners[to]
	if l == nil {
		return nil, nil
	}
	for c := range n.conns { // connections that the server has closed no longer count
		if raw, err := c.SyscallConn(); err != nil || raw.Control(func(uintptr) {}) != nil {
			delete(n.conns, c)
		}
	}
	if len(n.conns) >= maxConnections {
		return nil, caisson.Errorf(caisson.Exhausted, "the sandbox has %d connections; close some of them", maxConnections)
	}
	n.conns[conn] = l
	return l, nil
}

// remove forgets the connection conn, so that it no longer counts.
func (n *network) remove(conn *os.File) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.conns, conn)
}
