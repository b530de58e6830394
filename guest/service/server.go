package service

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
)

const (
	maxConns       = 64                     // maximum number of connections at the same time; further ones are closed at once
	requestTimeout = 10 * time.Second       // timeout for the arrival of a request, and for each write
	aliveInterval  = 30 * time.Second       // time between two empty answers, with which the server detects that a client is gone
	acceptPause    = 100 * time.Millisecond // pause after an error of Accept
)

// Serve accepts connections from ln and answers requests to s, until ln is closed. Then it closes all connections and returns.
func Serve(ln net.Listener, s *Supervisor) {
	ctx, cancel := context.WithCancel(context.Background())
	var conns sync.WaitGroup
	defer conns.Wait()
	defer cancel()
	free := make(chan struct{}, maxConns)
	for {
		conn, err := ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // a temporary error, such as too many open files
			time.Sleep(acceptPause)
			continue
		}
		select {
		case free <- struct{}{}:
		default:
			conn.Close()
			continue
		}
		conns.Go(func() {
			defer func() { <-free }()
			defer conn.Close()
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			defer context.AfterFunc(ctx, func() { conn.Close() })()
			(&server{s, conn, cancel}).serve(ctx)
		})
	}
}

// A server answers the request on one connection.
type server struct {
	supervisor *Supervisor        // executes the request
	conn       net.Conn           // the connection with the client
	cancel     context.CancelFunc // ends the request when the client is gone
}

// serve receives the request of the connection and executes it. It ends when the client is gone.
func (c *server) serve(ctx context.Context) {
	if c.conn.SetReadDeadline(time.Now().Add(requestTimeout)) != nil {
		return
	}
	var req request
	if readMessage(c.conn, maxRequest, &req) != nil {
		return
	}
	if c.conn.SetReadDeadline(time.Time{}) != nil {
		return
	}
	go func() { // this goroutine ends when conn is closed
		_, _ = c.conn.Read(make([]byte, 1)) // returns when the client closes the connection, or sends a byte after its request
		c.cancel()
	}()
	err := c.execute(ctx, &req)
	if err != nil && ctx.Err() == nil {
		kind := caisson.KindOf(err)
		if kind == caisson.Internal {
			kind = caisson.Unavailable
		}
		_ = c.send(answer{Kind: kind, Message: shortText(err)})
	}
}

// execute executes a request and sends the answers. If it returns an error, the caller sends the error as an answer.
func (c *server) execute(ctx context.Context, req *request) error {
	switch req.Op {
	case opApply:
		if err := c.supervisor.Apply(req.Revision, req.Env, req.Services); err != nil {
			return err
		}
		return c.send(answer{})
	case opRestart:
		if err := c.supervisor.Restart(req.ID); err != nil {
			return err
		}
		return c.send(answer{})
	case opList:
		list, _ := c.supervisor.Conditions()
		return c.send(answer{Conditions: list})
	case opWatch:
		return c.watch(ctx)
	case opLogs:
		u, err := c.supervisor.unit(req.ID)
		if err != nil {
			return err
		}
		return c.logs(ctx, u, req.Follow)
	}
	return caisson.Errorf(caisson.Invalid, "no operation %.40q", req.Op)
}

// send sends an answer to the client.
func (c *server) send(a answer) error {
	if err := c.conn.SetWriteDeadline(time.Now().Add(requestTimeout)); err != nil {
		return err
	}
	return writeMessage(c.conn, a)
}

// watch sends the conditions of all services at once and after each change, until the client is gone.
func (c *server) watch(ctx context.Context) error {
	for {
		list, changed := c.supervisor.Conditions()
		if err := c.send(answer{Conditions: list}); err != nil {
			return err
		}
		if err := c.wait(ctx, changed, nil); err != nil {
			return err
		}
	}
}

// logs sends the kept output of a service; with follow also new output, until the client is gone or the service is removed.
func (c *server) logs(ctx context.Context, u *unit, follow bool) error {
	for at := int64(0); ; {
		b, next, changed := u.log.read(at, chunkSize)
		if at = next; len(b) > 0 {
			if err := c.send(answer{Output: b}); err != nil {
				return err
			}
			continue
		}
		if !follow {
			return nil
		}
		if err := c.wait(ctx, changed, u.done); err != nil {
			if err == io.EOF {
				return nil
			}
			return err
		}
	}
}

// wait waits until changed is closed, and sends empty answers meanwhile. Returns io.EOF when ended is closed.
func (c *server) wait(ctx context.Context, changed, ended <-chan struct{}) error {
	alive := time.NewTicker(aliveInterval)
	defer alive.Stop()
	for {
		select {
		case <-changed:
			return nil
		case <-ended:
			return io.EOF
		case <-ctx.Done():
			return ctx.Err()
		case <-alive.C:
			if err := c.send(answer{}); err != nil {
				return err
			}
		}
	}
}
