package guestd

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// A Listener accepts connections for the test program "serve".
type Listener interface {
	// Accept waits for the next connection and returns it as a stream socket.
	Accept(ctx context.Context) (*os.File, error)
	Close() error
}

// forever is the duration for which test programs wait until they are killed. It is longer than any test. A timer is used because
// the Go runtime could report goroutines that wait without one as a deadlock.
const forever = 24 * time.Hour

// serveConnections is the test program "serve": it listens at an address, prints "ready", and serves any number of connections.
// The third argument is the mode: echo sends back the data that it receives; sum sends the number of received bytes and their
// SHA-256 after the end of the input; greet sends "hello" and the end of file at once, and prints the number of bytes that it
// receives; stuck never reads; full never accepts a connection, and its backlog has no room for waiting connections.
func serveConnections(ctx context.Context, p *ProcessEnv) int {
	backlog := 128
	if p.Args[2] == "full" {
		backlog = 0
	}
	if p.Listen == nil {
		return p.fail(exitUsage, "serve: there is no network")
	}
	l, err := p.Listen(p.Args[0], p.Args[1], backlog)
	if err != nil {
		return p.fail(exitFailure, err.Error())
	}
	defer l.Close()
	p.print("ready")
	if p.Args[2] == "full" {
		return p.wait(ctx, forever)
	}
	for {
		conn, err := l.Accept(ctx)
		if err != nil {
			return p.fail(exitFailure, err.Error())
		}
		go func() {
			defer conn.Close()
			p.serveConn(ctx, conn)
		}()
	}
}

// serveConn serves one connection of the test program "serve".
func (p *ProcessEnv) serveConn(ctx context.Context, conn *os.File) {
	switch p.Args[2] {
	case "echo":
		_, _ = io.CopyBuffer(struct{ io.Writer }{conn}, struct{ io.Reader }{conn}, make([]byte, 64<<10))
	case "sum":
		h := sha256.New()
		n, err := io.Copy(h, conn)
		if err == nil {
			fmt.Fprintf(conn, "%d %x", n, h.Sum(nil))
		}
	case "greet":
		_, _ = io.WriteString(conn, "hello")
		raw, err := conn.SyscallConn()
		if err == nil {
			_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_WR) })
		}
		n, _ := io.Copy(io.Discard, conn)
		p.print(strconv.FormatInt(n, 10))
	case "stuck":
		p.wait(ctx, forever)
	}
}

// listen implements ProcessEnv.Listen for a process. It does not use package net, which does not let callers choose the backlog.
func listen(network, address string, backlog int) (Listener, error) {
	domain, to := unix.AF_UNIX, unix.Sockaddr(&unix.SockaddrUnix{Name: address})
	if network != "unix" {
		port, err := strconv.ParseUint(address, 10, 16)
		if err != nil {
			return nil, err
		}
		domain, to = unix.AF_INET, &unix.SockaddrInet4{Port: int(port), Addr: [4]byte{127, 0, 0, 1}}
		if network == "tcp6" {
			loopback := &unix.SockaddrInet6{Port: int(port)}
			loopback.Addr[15] = 1
			domain, to = unix.AF_INET6, loopback
		}
	}
	fd, err := unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err = unix.Bind(fd, to); err == nil {
		err = unix.Listen(fd, backlog)
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return socketListener(fd), nil
}

// A socketListener is a listening socket in blocking mode.
type socketListener int

// Accept implements [Listener]. It ignores ctx, which never ends if guestd runs as a process.
func (l socketListener) Accept(context.Context) (*os.File, error) {
	fd, _, err := unix.Accept4(int(l), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "connection"), nil
}

// Close implements [Listener].
func (l socketListener) Close() error { return unix.Close(int(l)) }
