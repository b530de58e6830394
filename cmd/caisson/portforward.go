package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/duplex"
)

// forwardCmd forwards ports of this machine to servers in a sandbox.
type forwardCmd struct {
	sandboxArg
	Ports   []string `arg:"" help:"[LOCAL:]PORT: a port in the sandbox, and the one of this machine if it is another one; 0 chooses a free one."`
	Address string   `help:"Address of this machine to listen on. Every client that can reach it can use the server." default:"127.0.0.1" placeholder:"IP"`
}

func (c *forwardCmd) Help() string {
	return `Connections to a local port lead to the server on that port of the sandbox, which may listen on 127.0.0.1 there. Nothing else is
reached this way, and the sandbox reaches nothing. Ends with Ctrl-C, or when the sandbox is removed.

` + examples("caisson port-forward web 3000", "caisson port-forward web 8080:80 0:5432", "caisson port-forward --address 0.0.0.0 web 3000")
}

// A portForward is a listener on a local port, and the port in the sandbox that its connections are forwarded to.
type portForward struct {
	listener net.Listener
	port     int // port in the sandbox
}

// parseForward parses [LOCAL:]PORT. Without LOCAL, both ports are PORT.
func parseForward(s string) (local, port int, err error) {
	first, second, both := strings.Cut(s, ":")
	if !both {
		second = first
	}
	l, err := strconv.ParseUint(first, 10, 16)
	p, err2 := strconv.ParseUint(second, 10, 16)
	if err != nil || err2 != nil || p == 0 {
		return 0, 0, usagef("port-forward", "%q is not PORT or LOCAL:PORT, such as 3000 or 8080:80", s)
	}
	return int(l), int(p), nil
}

func (c *forwardCmd) Run(ctx context.Context, a *app, api api) error {
	forwards, err := c.listen(ctx)
	defer func() {
		for _, f := range forwards {
			f.listener.Close()
		}
	}()
	if err != nil {
		return err
	}
	if _, err := api.Sandboxes.Get(ctx, c.Sandbox); err != nil {
		return err
	}
	for _, f := range forwards {
		fmt.Fprintf(a.out, "%s -> %s:%d\n", f.listener.Addr(), c.Sandbox, f.port)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, f := range forwards {
		wg.Go(func() {
			cancel(f.accept(ctx, func(local *net.TCPConn) {
				err := c.join(ctx, api, local, f.port)
				switch {
				case err == nil || ctx.Err() != nil:
				case caisson.KindOf(err) == caisson.NotFound:
					cancel(err) // the sandbox was removed, so the command ends
				default:
					fmt.Fprintf(a.err, "caisson: %s: %s\n", f.listener.Addr(), caisson.MessageOf(err))
				}
			}))
		})
	}
	<-ctx.Done()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil // the user has interrupted the command
}

// accept calls serve in a goroutine for each connection until ctx is cancelled. It returns when all calls of serve have returned.
func (f portForward) accept(ctx context.Context, serve func(*net.TCPConn)) error {
	defer context.AfterFunc(ctx, func() { f.listener.Close() })()
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		local, err := f.listener.Accept()
		if err != nil {
			return fmt.Errorf("accept connections to %s: %w", f.listener.Addr(), err)
		}
		wg.Go(func() {
			defer local.Close()
			serve(local.(*net.TCPConn))
		})
	}
}

// join copies data between local and the server on a port in the sandbox. If it cannot connect to the server, the client of
// local gets a reset when local is closed.
func (c *forwardCmd) join(ctx context.Context, api api, local *net.TCPConn, port int) error {
	server, err := api.Connect(ctx, c.Sandbox, caisson.ConnectRequest{Port: port})
	if err != nil {
		local.SetLinger(0)
		return err
	}
	duplex.Copy(ctx, local, server)
	return nil
}

// listen listens on all local ports of the arguments. The caller must close the listeners, also after an error.
func (c *forwardCmd) listen(ctx context.Context) (list []portForward, err error) {
	if net.ParseIP(c.Address) == nil {
		return nil, usagef("port-forward", "--address %q is not an IP address", c.Address)
	}
	for _, s := range c.Ports {
		local, port, err := parseForward(s)
		if err != nil {
			return list, err
		}
		var lc net.ListenConfig
		l, err := lc.Listen(ctx, "tcp", net.JoinHostPort(c.Address, strconv.Itoa(local)))
		if err != nil {
			return list, caisson.Wrap(err, caisson.Conflict, "cannot listen on port %d of %s (is it in use?); 0:%d chooses a free one", local, c.Address, port)
		}
		list = append(list, portForward{l, port})
	}
	return list, nil
}
