package connlimit

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/internal/poll"
)

// TestBounded checks the limit of connections of one source, which does not affect others; closed connections no longer count.
func TestBounded(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := New(l, 3, 2)
	var mu sync.Mutex
	var open []net.Conn
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := b.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			io.WriteString(c, "hello\n")
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
		}
	})
	defer wg.Wait()
	defer l.Close()
	// connect reports whether a connection from an address was accepted.
	connect := func(from string) bool {
		t.Helper()
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		c, err := d.DialContext(context.Background(), "tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		line, err := bufio.NewReader(c).ReadString('\n')
		return err == nil && line == "hello\n"
	}
	for i, c := range []struct {
		from string
		want bool
	}{{"127.0.0.1", true}, {"127.0.0.1", true}, {"127.0.0.1", false}, {"127.0.0.2", true}, {"127.0.0.3", false}} {
		if got := connect(c.from); got != c.want {
			t.Errorf("connection %d, from %s: accepted %t", i, c.from, got)
		}
	}
	mu.Lock()
	for _, c := range open {
		c.Close()
		c.Close() // closing twice has no effect
	}
	mu.Unlock()
	poll.Until(t, time.Minute, func() bool { return connect("127.0.0.3") })
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.sources) != 1 || b.total != 1 {
		t.Errorf("%d connections of %d sources are counted", b.total, len(b.sources))
	}
}

// TestDisplacing checks that a connection above the limit displaces the oldest one of the source that has most, but not if that would
// only change which source has most.
func TestDisplacing(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := NewDisplacing(l, 3, 3)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := b.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			io.WriteString(c, "hello\n")
		}
	})
	defer wg.Wait()
	defer l.Close()
	connect := func(from string) (c net.Conn, accepted bool) {
		t.Helper()
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		c, err := d.DialContext(t.Context(), "tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		_, err = io.ReadFull(c, make([]byte, len("hello\n")))
		return c, err == nil
	}
	var oldest net.Conn
	for i := range 3 {
		c, ok := connect("127.0.0.1")
		if !ok {
			t.Fatalf("connection %d was not accepted", i)
		}
		if i == 0 {
			oldest = c
		}
	}
	if _, ok := connect("127.0.0.2"); !ok {
		t.Error("another source was not accepted")
	}
	oldest.SetDeadline(time.Now().Add(time.Minute))
	if _, err := oldest.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the oldest connection was not closed: %v", err)
	}
	if _, ok := connect("127.0.0.2"); ok {
		t.Error("a source with one connection displaced one of a source with two")
	}
	if _, ok := connect("127.0.0.1"); ok {
		t.Error("a source displaced a connection of its own")
	}
	if _, ok := connect("127.0.0.3"); !ok {
		t.Error("a source without connections did not displace one of a source with two")
	}
	if _, ok := connect("127.0.0.4"); ok {
		t.Error("the only connection of a source was displaced")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.total != 3 || len(b.sources) != 3 {
		t.Errorf("%d connections of %d sources are counted", b.total, len(b.sources))
	}
}
