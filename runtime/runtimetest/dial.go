package runtimetest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
)

var dialTests = []test{
	{"DialEcho", testDialEcho},
	{"DialHalfClose", testDialHalfClose},
	{"DialRefused", testDialRefused},
	{"DialLarge", testDialLarge},
	{"DialMany", testDialMany},
	{"DialBacklogFull", testDialBacklogFull},
	{"DialLimit", testDialLimit},
	{"DialNeverReads", testDialNeverReads},
	{"DialFrozen", testDialFrozen},
	{"DialDestroy", testDialDestroy},
	{"DialThenCheckpoint", testDialCheckpoint},
}

// dialer returns the runtime as a [caisson.Dialer]. It skips the test if the runtime does not implement that interface.
func (s *suite) dialer(t *testing.T) caisson.Dialer {
	t.Helper()
	return implemented[caisson.Dialer](t, s, "connect to servers")
}

// port is the TCP port of the servers in the tests of Dial.
const port = "8080"

// serve starts the test program "serve" in the sandbox and waits until it listens.
func serve(b *box, network, address, mode string) caisson.Process {
	b.t.Helper()
	p := b.exec(caisson.RuntimeExec{Command: []string{"serve", network, address, mode}})
	ready := make([]byte, len("ready\n"))
	if _, err := io.ReadFull(p.Stdout(), ready); err != nil {
		complaint, _ := io.ReadAll(p.Stderr())
		b.t.Fatalf("serve: %v: %s", err, complaint)
	}
	return p
}

// dial connects to a server in the sandbox. The connection is closed at the end of the test.
func (b *box) dial(network, address string) *net.UnixConn {
	b.t.Helper()
	c, err := tryDial(b.ctx(), b, network, address)
	must(b.t, fmt.Sprintf("Dial(%s, %s)", network, address), err)
	b.t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(opTimeout))
	return c
}

// dialWhenReady retries to connect to a server in the sandbox until the server listens.
func dialWhenReady(b *box, network, address string) (c *net.UnixConn) {
	b.t.Helper()
	poll.Until(b.t, opTimeout, func() bool {
		var err error
		c, err = tryDial(b.ctx(), b, network, address)
		return err == nil
	})
	b.t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(opTimeout))
	return c
}

// tryDial connects to a server in the sandbox.
func tryDial(ctx context.Context, b *box, network, address string) (*net.UnixConn, error) {
	f, err := b.dialer(b.t).Dial(ctx, b.id, network, address)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	return c.(*net.UnixConn), nil
}

// exchange sends a message and the end of file on c, and returns all data that it receives until the end of file.
func exchange(c *net.UnixConn, message []byte) ([]byte, error) {
	var g errgroup.Group
	g.Go(func() error {
		_, err := c.Write(message)
		return errors.Join(err, c.CloseWrite())
	})
	answer, err := io.ReadAll(c)
	return answer, errors.Join(err, g.Wait())
}

// testDialEcho sends messages over TCP, IPv6 and a unix socket to a server that sends them back.
func testDialEcho(t *testing.T, s *suite) {
	s.dialer(t)
	b := s.create(t)
	for _, at := range [][2]string{{"tcp", port}, {"tcp6", "8081"}, {"unix", "/tmp.sock"}} {
		serve(b, at[0], at[1], "echo")
		c := b.dial(strings.TrimSuffix(at[0], "6"), at[1])
		// Each message must come back before the next one is sent: no buffer between test and server may wait for more data.
		for i := range 5 {
			message := []byte("message " + strconv.Itoa(i))
			got := make([]byte, len(message))
			if _, err := c.Write(message); err != nil {
				t.Fatalf("%s: write: %v", at, err)
			}
			if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, message) {
				t.Fatalf("%s: %q came back as %q, %v", at, message, got, err)
			}
		}
		if rest, err := exchange(c, []byte("last")); err != nil || string(rest) != "last" {
			t.Errorf("%s: %q, %v before the end of file", at, rest, err)
		}
	}
}

// testDialHalfClose checks that the end of file arrives in each direction of a connection while the other direction is still
// open.
func testDialHalfClose(t *testing.T, s *suite) {
	s.dialer(t)
	b := s.create(t)
	for _, at := range []struct{ network, sum, greet string }{{"tcp", "8001", "8002"}, {"unix", "/sum", "/greet"}} {
		network, greet := at.network, at.greet
		serve(b, network, at.sum, "sum")
		message := []byte("until the end of file")
		if got, err := exchange(b.dial(network, at.sum), message); err != nil || string(got) != sumOf(message) {
			t.Errorf("%s: the answer after the end of file is %q, %v", network, got, err)
		}

		p := serve(b, network, greet, "greet")
		c := b.dial(network, greet)
		if got, err := io.ReadAll(c); err != nil || string(got) != "hello" {
			t.Fatalf("%s: until the server's end of file: %q, %v", network, got, err)
		}
		if _, err := c.Write(make([]byte, 1000)); err != nil {
			t.Fatalf("%s: write after the server's end of file: %v", network, err)
		}
		c.Close()
		got := make([]byte, len("1000\n"))
		if _, err := io.ReadFull(p.Stdout(), got); err != nil || string(got) != "1000\n" {
			t.Errorf("%s: after its end of file the server received %q bytes, %v", network, got, err)
		}
	}
}

// sumOf returns the answer of the test program "serve" in mode sum: the length of the message and its SHA-256.
func sumOf(message []byte) string { return fmt.Sprintf("%d %x", len(message), sha256.Sum256(message)) }

// testDialRefused connects to addresses that are malformed or at which no server listens.
func testDialRefused(t *testing.T, s *suite) {
	d := s.dialer(t)
	b := s.create(t)
	b.write("/file", "no socket", 0o644)
	for _, c := range []struct {
		network, address string
		want             caisson.Kind
	}{
		{"tcp", port, caisson.Unavailable},
		{"tcp", "0", caisson.Invalid},
		{"tcp", "65536", caisson.Invalid},
		{"tcp", "-1", caisson.Invalid},
		{"tcp", "127.0.0.1:80", caisson.Invalid},
		{"tcp", "", caisson.Invalid},
		{"udp", port, caisson.Invalid},
		{"unix", "/no/such/socket", caisson.Unavailable},
		{"unix", "/file", caisson.Unavailable},
		{"unix", "relative", caisson.Invalid},
		{"unix", "", caisson.Invalid},
		{"unix", "\x00abstract", caisson.Invalid},
		{"unix", "/" + strings.Repeat("x", 200), caisson.Invalid},
	} {
		_, err := d.Dial(b.ctx(), b.id, c.network, c.address)
		wantKind(t, fmt.Sprintf("Dial(%s, %q)", c.network, c.address), err, c.want)
	}
	_, err := d.Dial(b.ctx(), caisson.NewID(caisson.SandboxPrefix), "tcp", port)
	wantKind(t, "Dial of an unknown sandbox", err, caisson.NotFound)
}

// testDialLarge sends 64 MiB to a server that answers with the checksum, and to a server that sends the data back.
func testDialLarge(t *testing.T, s *suite) {
	const size = 64 << 20
	s.dialer(t)
	b := s.create(t)
	message := make([]byte, size)
	rand.NewChaCha8([32]byte{}).Read(message)
	for _, at := range []struct{ network, sum, back string }{{"tcp", "8001", "9001"}, {"unix", "/sum", "/back"}} {
		network, back := at.network, at.back
		serve(b, network, at.sum, "sum")
		if got, err := exchange(b.dial(network, at.sum), message); err != nil || string(got) != sumOf(message) {
			t.Errorf("%s: the server received %q, %v", network, got, err)
		}
		serve(b, network, back, "echo")
		if got, err := exchange(b.dial(network, back), message); err != nil || sumOf(got) != sumOf(message) {
			t.Errorf("%s: of %d bytes %d came back, or others; %v", network, size, len(got), err)
		}
	}
}

// testDialMany uses 100 connections concurrently.
func testDialMany(t *testing.T, s *suite) {
	s.dialer(t)
	b := s.create(t)
	serve(b, "tcp", port, "echo")
	ctx := b.ctx()
	var g errgroup.Group
	for i := range 100 {
		g.Go(func() error {
			c, err := tryDial(ctx, b, "tcp", port)
			if err != nil {
				return err
			}
			defer c.Close()
			want := bytes.Repeat([]byte{byte(i)}, 100_000+i)
			got, err := exchange(c, want)
			if err == nil && !bytes.Equal(got, want) {
				err = fmt.Errorf("connection %d gave other bytes back", i)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}

// testDialBacklogFull cancels calls of Dial that wait because the server never accepts. While a call waits, it must not block
// other operations.
func testDialBacklogFull(t *testing.T, s *suite) {
	s.dialer(t)
	b := s.create(t)
	for _, at := range [][2]string{{"tcp", port}, {"unix", "/full"}} {
		serve(b, at[0], at[1], "full")
		b.waitUntil("a connection waits until it is cancelled", func() bool {
			cancelled := errors.New("the caller has lost interest")
			ctx, cancel := context.WithCancelCause(b.ctx())
			defer cancel(nil)
			dialled := make(chan error, 1)
			go func() {
				c, err := tryDial(ctx, b, at[0], at[1])
				if err == nil {
					t.Cleanup(func() { c.Close() }) // the backlog had room for the connection; keep it open
				}
				dialled <- err
			}()
			select {
			case err := <-dialled:
				if err != nil {
					t.Fatalf("%s: Dial: %v", at, err)
				}
				return false
			case <-time.After(500 * time.Millisecond):
			}
			if got := b.output("echo", "not stalled"); got != "not stalled" {
				t.Errorf("%s: exec gave %q meanwhile", at, got)
			}
			cancel(cancelled)
			select {
			case err := <-dialled:
				if err != nil && !errors.Is(err, cancelled) {
					t.Errorf("%s: a cancelled Dial returned %v", at, err)
				}
				return err != nil
			case <-b.ctx().Done():
				t.Fatalf("%s: a cancelled Dial does not return", at)
				return false
			}
		})
	}
}

// testDialLimit opens connections up to the limit on connections of a sandbox, closes one of them, and then opens another one.
func testDialLimit(t *testing.T, s *suite) {
	const most = 1024
	d := s.dialer(t)
	b := s.create(t)
	serve(b, "tcp", port, "echo")
	var open []*os.File
	defer func() {
		for _, f := range open {
			f.Close()
		}
	}()
	for i := range most + 1 {
		f, err := d.Dial(b.ctx(), b.id, "tcp", port)
		if i == most {
			wantKind(t, "Dial with 1024 connections", err, caisson.Exhausted)
			break
		}
		if err != nil {
			t.Fatalf("Dial number %d: %v", i, err)
		}
		open = append(open, f)
	}
	open[0].Close()
	b.waitUntil("there is room again", func() bool {
		f, err := d.Dial(b.ctx(), b.id, "tcp", port)
		if err == nil {
			f.Close()
		}
		return err == nil
	})
}

// testDialNeverReads fills the buffers of a connection to a server that never reads. Other connections must still work.
func testDialNeverReads(t *testing.T, s *suite) {
	s.dialer(t)
	b := s.create(t)
	serve(b, "tcp", port, "stuck")
	serve(b, "tcp", "8081", "echo")
	c := b.dial("tcp", port)
	// The buffers of the connection have much less room than most, and the runtime must not collect data in memory.
	const most = 64 << 20
	c.SetWriteDeadline(time.Now().Add(time.Second))
	n, err := c.Write(make([]byte, most))
	var timeout net.Error
	if n == most || !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("a server that never reads took %d bytes, %v", n, err)
	}
	if got, err := exchange(b.dial("tcp", "8081"), []byte("another")); err != nil || string(got) != "another" {
		t.Errorf("another connection gave %q, %v", got, err)
	}
	c.Close()
}

// testDialFrozen checks that a connection to a sandbox survives that the sandbox is frozen, and that Dial is refused meanwhile.
func testDialFrozen(t *testing.T, s *suite) {
	d, f := s.dialer(t), s.freezer(t)
	b := s.create(t)
	serve(b, "tcp", port, "echo")
	c := b.dial("tcp", port)
	must(t, "Freeze", f.Freeze(b.ctx(), b.id))
	_, err := d.Dial(b.ctx(), b.id, "tcp", port)
	wantKind(t, "Dial in a frozen sandbox", err, caisson.Conflict)
	if _, err := c.Write([]byte("later")); err != nil {
		t.Errorf("write while frozen: %v", err)
	}
	must(t, "Thaw", f.Thaw(b.ctx(), b.id))
	if got, err := exchange(c, []byte(" and now")); err != nil || string(got) != "later and now" {
		t.Errorf("after Thaw: %q, %v", got, err)
	}
}

// testDialDestroy checks that connections to a sandbox end when it is destroyed.
func testDialDestroy(t *testing.T, s *suite) {
	d := s.dialer(t)
	b := s.create(t)
	serve(b, "tcp", port, "stuck")
	c := b.dial("tcp", port)
	must(t, "Destroy", s.Runtime.Destroy(b.ctx(), b.id))
	if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("after Destroy: read %d bytes, %v", n, err)
	}
	_, err := d.Dial(b.ctx(), b.id, "tcp", port)
	wantKind(t, "Dial after Destroy", err, caisson.NotFound)
}

// testDialCheckpoint captures a sandbox with open connections. The connections must end, and the servers must accept new
// connections afterwards, in the captured sandbox and in a fork.
func testDialCheckpoint(t *testing.T, s *suite) {
	s.dialer(t)
	s.checkpointer(t)
	b := s.create(t, "sleep", "1h")
	b.startDetached("serve", "tcp", port, "stuck")
	b.startDetached("serve", "tcp", "8081", "echo")
	b.startDetached("serve", "unix", "/echo", "echo")
	var open []*net.UnixConn
	for range 10 {
		for _, at := range [][2]string{{"tcp", port}, {"tcp", "8081"}, {"unix", "/echo"}} {
			open = append(open, dialWhenReady(b, at[0], at[1]))
		}
	}
	for i, c := range open {
		if i%3 == 0 {
			c.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
			_, _ = c.Write(make([]byte, 16<<20)) // times out, because the server does not read the data
		} else if _, err := c.Write([]byte("unanswered")); err != nil {
			t.Errorf("write: %v", err)
		}
	}
	dir := b.checkpoint(true)
	for i, c := range open {
		if _, err := io.Copy(io.Discard, c); err != nil && !strings.Contains(err.Error(), "reset") {
			t.Errorf("connection %d has not ended: %v", i, err)
		}
	}
	for what, box := range map[string]*box{"the original": b, "the fork": b.restore(dir)} {
		for _, at := range [][2]string{{"tcp", "8081"}, {"unix", "/echo"}} {
			if got, err := exchange(dialWhenReady(box, at[0], at[1]), []byte("again")); err != nil || string(got) != "again" {
				t.Errorf("%s: %s: %q, %v", what, at, got, err)
			}
		}
	}
}
