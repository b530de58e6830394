package main

import (
	"net"
	"sync"
)

// maxRemoteConns bounds the connections over TCP, most of which need no token to be opened: the daemon's descriptors are to
// last for the unix socket and for sandboxes.
const maxRemoteConns = 512

// limitConns returns a listener that accepts no further connection while n of them are open.
func limitConns(l net.Listener, n int) net.Listener {
	return &limitListener{Listener: l, slots: make(chan struct{}, n), closed: make(chan struct{})}
}

type limitListener struct {
	net.Listener
	slots  chan struct{} // holds a value for each open connection
	closed chan struct{}
	once   sync.Once
}

// Accept implements [net.Listener].
func (l *limitListener) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.slots
		return nil, err
	}
	return &limitConn{Conn: c, free: sync.OnceFunc(func() { <-l.slots })}, nil
}

// Close implements [net.Listener].
func (l *limitListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

type limitConn struct {
	net.Conn
	free func()
}

// Close implements [net.Conn].
func (c *limitConn) Close() error {
	defer c.free()
	return c.Conn.Close()
}
