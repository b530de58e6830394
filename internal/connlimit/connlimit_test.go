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
