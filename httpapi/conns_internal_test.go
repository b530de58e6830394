package httpapi

import (
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
)

// A slowConn is a connection whose first Close takes until released is closed.
type slowConn struct {
	net.Conn
	called            atomic.Bool
	closing, released chan struct{}
}

func (c *slowConn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1} }

func (c *slowConn) Close() error {
	if c.called.CompareAndSwap(false, true) {
		close(c.closing)
		<-c.released
	}
	return c.Conn.Close()
}

// A queue is a listener of the connections that it is made with.
type queue chan net.Conn

func (q queue) Accept() (net.Conn, error) { return <-q, nil }
func (q queue) Close() error              { return nil }
func (q queue) Addr() net.Addr            { return &net.TCPAddr{} }

// TestAdmitTogether: while an idle connection is being closed for a new one, another new one is not admitted in its place.
func TestAdmitTogether(t *testing.T) {
	q := make(queue, 3)
	l := newListener(q, connLimits{unauthenticated: 8, authenticated: 1, authTimeout: time.Hour})
	raw := [3]*slowConn{}
	conns := [3]*conn{}
	for i := range raw {
		ours, theirs := net.Pipe()
		defer ours.Close()
		defer theirs.Close()
		raw[i] = &slowConn{Conn: ours, closing: make(chan struct{}), released: make(chan struct{})}
		q <- raw[i]
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		conns[i] = c.(*conn)
	}
	if err := l.admit(conns[0]); err != nil {
		t.Fatal(err)
	}
	l.markIdle(conns[0], true)
	admitted := make(chan error)
	go func() { admitted <- l.admit(conns[1]) }()
	<-raw[0].closing
	if err := l.admit(conns[2]); caisson.KindOf(err) != caisson.Exhausted {
		t.Errorf("a second connection in place of one: %v", err)
	}
	close(raw[0].released)
	if err := <-admitted; err != nil {
		t.Error(err)
	}
	if l.authenticated != 1 {
		t.Errorf("%d connections are known, 1 may be", l.authenticated)
	}
}
