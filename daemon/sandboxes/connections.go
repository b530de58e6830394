package sandboxes

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync"

	"github.com/caisson-dev/caisson"
)

// Maximum numbers of connections that are open or being made through [Connections]. The runtime has separate limits, which also
// count connections of other components.
const (
	maxSandboxConnections = 512  // maximum number of connections to one sandbox
	maxAccountConnections = 2048 // connections to all sandboxes of one account
)

// Connections implements [caisson.Connections]. A connection can only lead into a sandbox, because its address contains no host.
type Connections struct {
	finder finder // finds sandboxes of the caller's account
	// dial connects to a server at a port (network "tcp") or at a unix socket ("unix") in a sandbox.
	dial     func(ctx context.Context, id caisson.ID, network, address string) (*os.File, error)
	activity *activity // records uses of sandboxes

	mu        sync.Mutex
	sandboxes map[caisson.ID]int // number of connections by sandbox; guarded by mu
	accounts  map[string]int     // number of connections by account; guarded by mu
}

var _ caisson.Connections = (*Connections)(nil)

// NewConnections returns the service that connects, with d, to servers in the sandboxes of c.
func NewConnections(c *Core, d caisson.Dialer) *Connections {
	return &Connections{
		finder: c.api.lifecycle.finder, dial: d.Dial, activity: c.deadlines.activity,
		sandboxes: map[caisson.ID]int{}, accounts: map[string]int{},
	}
}

// Connect implements [caisson.Connections].
func (s *Connections) Connect(ctx context.Context, ref string, req caisson.ConnectRequest) (caisson.Conn, error) {
	f, release, err := s.Open(ctx, ref, req)
	if err != nil {
		return nil, err
	}
	defer f.Close() // net.FileConn duplicates the descriptor
	c, err := net.FileConn(f)
	if err != nil {
		release()
		return nil, fmt.Errorf("connection to sandbox %s: %w", ref, err)
	}
	return &countedConn{Conn: c.(*net.UnixConn), release: release}, nil
}

// Open connects to a server in a sandbox, for components that pass the descriptor of the connection on to another process. The
// connection counts towards the limits, and as a use of the sandbox, until release is called.
func (s *Connections) Open(ctx context.Context, ref string, req caisson.ConnectRequest) (f *os.File, release func(), err error) {
	network, address, err := req.Address()
	if err != nil {
		return nil, nil, err
	}
	sb, end, err := s.activity.use(ctx, s.finder, ref, caisson.VerbConnect)
	if err != nil {
		return nil, nil, err
	}
	if err := s.count(sb); err != nil {
		end()
		return nil, nil, err
	}
	release = sync.OnceFunc(func() { s.uncount(sb); end() })
	f, err = s.dial(ctx, sb.ID, network, address)
	if err != nil {
		release()
		return nil, nil, err
	}
	return f, release, nil
}

// count counts a new connection to sb. Returns an Exhausted error if the sandbox or its account has too many connections.
func (s *Connections) count(sb *caisson.Sandbox) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sandboxes[sb.ID] >= maxSandboxConnections {
		return caisson.Errorf(caisson.Exhausted, "sandbox %s has %d connections; close some of them", sb.ID, maxSandboxConnections)
	}
	if s.accounts[sb.Account] >= maxAccountConnections {
		return caisson.Errorf(caisson.Exhausted, "the account has %d connections to sandboxes; close some of them", maxAccountConnections)
	}
	s.sandboxes[sb.ID]++
	s.accounts[sb.Account]++
	return nil
}

// uncount ends the counting of a connection to sb.
func (s *Connections) uncount(sb *caisson.Sandbox) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sandboxes[sb.ID]--; s.sandboxes[sb.ID] == 0 {
		delete(s.sandboxes, sb.ID)
	}
	if s.accounts[sb.Account]--; s.accounts[sb.Account] == 0 {
		delete(s.accounts, sb.Account)
	}
}

// A countedConn is a connection that counts towards the limits of [Connections] until it is closed.
type countedConn struct {
	caisson.Conn
	release func() // ends the counting of the connection
}

// Close implements [net.Conn].
func (c *countedConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}
