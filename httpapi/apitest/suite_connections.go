package apitest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
)

// serve starts a server for tests in the sandbox sb, and waits until it listens. The other arguments are those of the program
// /.caisson/inside test serve.
func serve(t *testing.T, ctx context.Context, c Cores, sb, network, address, mode string) {
	t.Helper()
	p := must(c.Processes.Exec(ctx, sb, caisson.ExecRequest{Command: []string{"/.caisson/inside", "test", "serve", network, address, mode}}))(t)
	t.Cleanup(func() { p.Close() })
	ready := make([]byte, len("ready\n"))
	if _, err := io.ReadFull(p.Stdout(), ready); err != nil {
		complaint, _ := io.ReadAll(p.Stderr())
		t.Fatalf("serve: %v: %s", err, complaint)
	}
}

func testConnections(t *testing.T, ctx context.Context, c Cores) {
	sb := string(createSandbox(t, ctx, c, caisson.CreateRequest{Name: "server"}).ID)
	serve(t, ctx, c, sb, "tcp", "8080", "echo")
	serve(t, ctx, c, sb, "unix", "/echo.sock", "echo")
	serve(t, ctx, c, sb, "tcp", "8081", "greet")
	for _, req := range []caisson.ConnectRequest{{Port: 8080}, {Path: "/echo.sock"}} {
		conn := must(c.Connections.Connect(ctx, "server", req))(t)
		sent := bytes.Repeat([]byte("0123456789abcdef"), 100_000)
		var wg sync.WaitGroup
		wg.Go(func() {
			conn.Write(sent)
			if err := conn.CloseWrite(); err != nil {
				t.Error(err)
			}
		})
		if got, err := io.ReadAll(conn); err != nil || !bytes.Equal(got, sent) {
			t.Errorf("%+v: %d bytes came back, %v", req, len(got), err)
		}
		wg.Wait()
		conn.Close()
	}
	conn := must(c.Connections.Connect(ctx, sb, caisson.ConnectRequest{Port: 8081}))(t)
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(Timeout))
	if got, err := io.ReadAll(conn); err != nil || string(got) != "hello" {
		t.Errorf("until the server's end of file: %q, %v", got, err)
	}
	if _, err := conn.Write([]byte("after the server's end of file")); err != nil {
		t.Error(err)
	}
}

// testConnectionsRefused checks the errors for connections that cannot be made.
func testConnectionsRefused(t *testing.T, ctx context.Context, c Cores) {
	sb := string(createSandbox(t, ctx, c, caisson.CreateRequest{Name: "server"}).ID)
	for _, r := range []struct {
		req   caisson.ConnectRequest
		kind  caisson.Kind
		field string
	}{
		{caisson.ConnectRequest{Port: 8080}, caisson.Unavailable, ""},
		{caisson.ConnectRequest{Path: "/no/such.sock"}, caisson.Unavailable, ""},
		{caisson.ConnectRequest{}, caisson.Invalid, "port"},
		{caisson.ConnectRequest{Port: -1}, caisson.Invalid, "port"},
		{caisson.ConnectRequest{Port: 65536}, caisson.Invalid, "port"},
		{caisson.ConnectRequest{Path: "relative"}, caisson.Invalid, "path"},
		{caisson.ConnectRequest{Path: "/x", Port: 1}, caisson.Invalid, "path"},
	} {
		_, err := c.Connections.Connect(ctx, sb, r.req)
		Fails(t, err, r.kind, r.field)
	}
	_, err := c.Connections.Connect(ctx, "nobody", caisson.ConnectRequest{Port: 8080})
	Fails(t, err, caisson.NotFound, "")
	serve(t, ctx, c, sb, "tcp", "8080", "echo")
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := c.Connections.Connect(cancelled, sb, caisson.ConnectRequest{Port: 8080}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	must(c.Sandboxes.Suspend(ctx, sb))(t)
	_, err = c.Connections.Connect(ctx, sb, caisson.ConnectRequest{Port: 8080})
	Fails(t, err, caisson.Conflict, "")
}

// testConnectionLimit opens more connections than a sandbox can have at once, closes them, and opens another one.
func testConnectionLimit(t *testing.T, ctx context.Context, c Cores) {
	const limit = 512
	sb := string(createSandbox(t, ctx, c, caisson.CreateRequest{}).ID)
	serve(t, ctx, c, sb, "tcp", "8080", "echo")
	var open []caisson.Conn
	for range limit {
		open = append(open, must(c.Connections.Connect(ctx, sb, caisson.ConnectRequest{Port: 8080}))(t))
	}
	_, err := c.Connections.Connect(ctx, sb, caisson.ConnectRequest{Port: 8080})
	Fails(t, err, caisson.Exhausted, "")
	for _, conn := range open {
		conn.Close()
	}
	poll.Until(t, Timeout, func() bool {
		conn, err := c.Connections.Connect(ctx, sb, caisson.ConnectRequest{Port: 8080})
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
}
