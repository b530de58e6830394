package duplex_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/internal/duplex"
	"github.com/caisson-dev/caisson/internal/socketpair"
)

// pair returns the two ends of a connection.
func pair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	near, far, err := socketpair.New()
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	defer far.Close()
	var ends [2]*net.UnixConn
	for i, f := range []*os.File{near, far} {
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(time.Minute))
		ends[i] = c.(*net.UnixConn)
	}
	return ends[0], ends[1]
}

// join returns the outer ends of two connections between whose inner ends Copy runs, and a channel that is closed when it returns.
func join(t *testing.T, ctx context.Context) (client, server *net.UnixConn, done chan struct{}) {
	client, a := pair(t)
	b, server := pair(t)
	done = make(chan struct{})
	go func() { duplex.Copy(ctx, a, b); close(done) }()
	return client, server, done
}

func TestHalfClose(t *testing.T) {
	client, server, done := join(t, t.Context())
	sent := bytes.Repeat([]byte("request "), 100_000)
	go func() {
		client.Write(sent)
		client.CloseWrite()
	}()
	if got, err := io.ReadAll(server); err != nil || !bytes.Equal(got, sent) {
		t.Fatalf("the server received %d bytes, %v", len(got), err)
	}
	server.Write([]byte("answer"))
	server.CloseWrite()
	if got, err := io.ReadAll(client); err != nil || string(got) != "answer" {
		t.Errorf("the client received %q, %v", got, err)
	}
	<-done
}

func TestOneEndCloses(t *testing.T) {
	client, server, done := join(t, t.Context())
	client.Close()
	io.Copy(io.Discard, server)
	for { // until the copier notices that nobody reads
		if _, err := server.Write([]byte("unread")); err != nil {
			break
		}
	}
	<-done
}

func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	client, server, done := join(t, ctx)
	cancel()
	<-done
	for _, c := range []net.Conn{client, server} {
		if _, err := c.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("after the cancellation: %v", err)
		}
	}
}
