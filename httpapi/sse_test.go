package httpapi

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
)

// hasty is a connection without any buffer, on which a minute is as long as 60 milliseconds.
type hasty struct {
	net.Conn
	mu       sync.Mutex
	deadline time.Time // of writing, the last one that was set; guarded by mu
}

func (c *hasty) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	c.deadline = t
	c.mu.Unlock()
	if !t.IsZero() {
		t = time.Now().Add(time.Until(t) / 1000)
	}
	return c.Conn.SetWriteDeadline(t)
}

func (c *hasty) RemoteAddr() net.Addr { return &net.TCPAddr{} }

// single is a listener with one connection.
type single chan net.Conn

func (l single) Accept() (net.Conn, error) {
	c, ok := <-l
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (l single) Close() error   { return nil }
func (l single) Addr() net.Addr { return &net.TCPAddr{} }

// progressing serves slow work on a connection that has no buffers, and has asked for it.
func progressing(t *testing.T, work func(context.Context, func(caisson.Progress)) (int, error)) (client net.Conn, server *hasty) {
	client, conn := net.Pipe()
	server = &hasty{Conn: conn}
	l := make(single, 1)
	l <- server
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if v := recover(); v != nil {
				panic(http.ErrAbortHandler)
			}
		}()
		if err := serveProgress(nil, w, r, work); err != nil {
			panic(http.ErrAbortHandler)
		}
	})}
	served := make(chan struct{})
	go func() {
		defer close(served)
		srv.Serve(l)
	}()
	t.Cleanup(func() {
		client.Close()
		close(l)
		srv.Close()
		<-served
	})
	if _, err := io.WriteString(client, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	return client, server
}

// TestProgressNobodyReads: a client that reads nothing does not hold what slow work holds.
func TestProgressNobodyReads(t *testing.T) {
	ended := make(chan error, 1)
	progressing(t, func(ctx context.Context, progress func(caisson.Progress)) (int, error) {
		for ctx.Err() == nil {
			progress(caisson.Progress{Stage: "pull"})
		}
		ended <- context.Cause(ctx)
		return 0, ctx.Err()
	})
	select {
	case <-ended:
	case <-time.After(2 * time.Minute):
		t.Error("the work waits for its client")
	}
}

// TestProgressReads: a client that reads gets all of it, and its connection is as it was.
func TestProgressReads(t *testing.T) {
	client, server := progressing(t, func(_ context.Context, progress func(caisson.Progress)) (int, error) {
		for range 10 {
			progress(caisson.Progress{Stage: "pull"})
		}
		return 7, nil
	})
	resp, err := http.ReadResponse(bufio.NewReader(client), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); err != nil || len(b) == 0 {
		t.Errorf("%q: %v", b, err)
	}
	server.mu.Lock()
	defer server.mu.Unlock()
	if !server.deadline.IsZero() {
		t.Errorf("what follows has to be written by %v", server.deadline)
	}
}

// TestProgressPanics: work that panics leaves nobody behind who would write to an answer that is over. TestMain looks for them.
func TestProgressPanics(t *testing.T) {
	client, _ := progressing(t, func(context.Context, func(caisson.Progress)) (int, error) { panic("a fault") })
	if b, err := io.ReadAll(client); len(b) > 0 {
		t.Errorf("%q: %v", b, err)
	}
}
