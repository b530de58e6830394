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

// A Listener accepts connections for the program "serve".
type Listener interface {
	// Accept returns the next connection: a stream socket.
	Accept(ctx context.Context) (*os.File, error)
	Close() error
}

// forever is longer than any test. Without a timer, the Go runtime could report waiting goroutines as a deadlock.
const forever = 24 * time.Hour

// serveConnections listens at an address, prints "ready", and serves any number of connections: echo sends back what it receives; sum sends the
// number of bytes and their SHA-256 after the end of its input; greet sends "hello" and the end of file at once, and prints the
// number of bytes that it then receives; stuck never reads; full never accepts, and has no room for connections that wait.
func serveConnections(ctx context.Context, p *Proc) int {
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

// serveConn serves one connection.
func (p *Proc) serveConn(ctx context.Context, conn *os.File) {
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

// listen is Proc.Listen for a process. Unlike package net it lets the caller choose the backlog.
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

// Accept implements [Listener]. ctx is not used: it never ends in a process.
func (l socketListener) Accept(context.Context) (*os.File, error) {
	fd, _, err := unix.Accept4(int(l), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "connection"), nil
}

// Close implements [Listener].
func (l socketListener) Close() error { return unix.Close(int(l)) }
