package wire

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	caisson "github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/relay/front"
)

// streamHandler serves the virtual host git in test processes as the relay's front end does; paths with one element return the
// answer of the engine's stream to the request's body.
func streamHandler(env Env) http.Handler {
	git := front.Handler(env.Stream)
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if strings.Count(r.URL.Path, "/") > 1 {
			git.ServeHTTP(rw, r)
			return
		}
		in, err := json.Marshal(strings.TrimPrefix(r.URL.Path, "/"))
		if err != nil {
			panic(err)
		}
		c, err := env.Stream(r.Context(), in)
		if err != nil {
			http.Error(rw, string(caisson.KindOf(err))+" "+caisson.MessageOf(err), http.StatusForbidden)
			return
		}
		defer c.Close()
		if _, err := io.Copy(c, r.Body); err != nil {
			panic(http.ErrAbortHandler)
		}
		if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
			panic(http.ErrAbortHandler)
		}
		if r.URL.Path == "/held" {
			rw.WriteHeader(http.StatusOK)
			http.NewResponseController(rw).Flush()
		}
		io.Copy(rw, c)
	})
}

// newStreamWorld returns a world whose sandboxes have the virtual host git.
func newStreamWorld(t testing.TB, e *echoes) *world {
	t.Helper()
	return newWorld(t, func(c *setup) { c.Stream = e.open })
}

// gitRequest sends a request to the virtual host git from within a namespace, and returns the connection after the header of the
// answer.
func gitRequest(t testing.TB, ns *os.File, path, body string) (*http.Response, net.Conn, error) {
	t.Helper()
	var c net.Conn
	err := inside(t, ns, func() (err error) {
		c, err = net.DialTimeout("tcp", netip.AddrPortFrom(netip.MustParseAddr(GatewayIPv4), 80).String(), deadline)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(4 * deadline))
	fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: git.%s\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", path, Domain, len(body), body)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	return resp, c, err
}

func askGit(t testing.TB, ns *os.File, path, body string) (string, error) {
	t.Helper()
	resp, c, err := gitRequest(t, ns, path, body)
	if err != nil {
		return "", err
	}
	defer c.Close()
	b, err := io.ReadAll(resp.Body)
	return fmt.Sprint(resp.StatusCode, " ", string(b)), err
}

// TestStreamsOfProcess checks that streams of the confined process transport data, and that no resource is left afterwards.
func TestStreamsOfProcess(t *testing.T) {
	t.Parallel()
	e := newEchoes(t)
	w := newStreamWorld(t, e)
	id, ns := w.attach(t)
	before := descriptorsOf(t, w.pid(t))
	big := strings.Repeat("0123456789", 300<<10)
	for _, row := range []struct{ path, body, want string }{
		{"/x", "hello", "200 x hello"},
		{"/x", big, "200 x " + big},
		{"/refuse", "", "403 not_found there is no such repository\n"},
		{"/fail", "", "403 internal internal error; the daemon's log has the details\n"},
	} {
		got, err := askGit(t, ns, row.path, row.body)
		if err != nil || got != row.want {
			t.Errorf("%s: %.200q, %v, want %.200q", row.path, got, err, row.want)
		}
	}
	if g := <-e.guests; g != specOf(id).Guest {
		t.Errorf("guest %+v", g)
	}
	e.none(t)
	eventually(t, func() error {
		if after := descriptorsOf(t, w.pid(t)); after != before {
			return fmt.Errorf("%d descriptors, %d before", after, before)
		}
		return nil
	})
}

// held creates jobs that keep their streams open, and opens n of them.
func held(t testing.TB, n int) (e *echoes, w *world, id caisson.ID, ns *os.File, conns []net.Conn) {
	t.Helper()
	e = newEchoes(t)
	w = newWorld(t, func(c *setup) {
		c.Stream = func(ctx context.Context, in json.RawMessage) (*os.File, <-chan struct{}, error) {
			near, far := streamPair(t)
			done := make(chan struct{})
			e.now.Add(1)
			go func() { // stops only when its peer has closed
				defer close(done)
				defer e.now.Add(-1)
				defer far.Close()
				for {
					if _, err := far.Write([]byte("x")); err != nil {
						return
					}
				}
			}()
			return near, done, nil
		}
	})
	id, ns = w.attach(t)
	for range n {
		_, c, err := gitRequest(t, ns, "/held", "")
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	if got := e.now.Load(); got != int64(n) {
		t.Fatalf("%d jobs, want %d", got, n)
	}
	return e, w, id, ns, conns
}

// TestStreamsEnd checks that streams are closed with the request, the wire and the wire process, and that their jobs notice.
func TestStreamsEnd(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*world, caisson.ID, []net.Conn) error{
		"requests":     func(_ *world, _ caisson.ID, conns []net.Conn) error { return errors.Join(closeEach(conns)...) },
		"wire":         func(w *world, id caisson.ID, _ []net.Conn) error { return w.Detach(t.Context(), id) },
		"wire process": func(w *world, _ caisson.ID, _ []net.Conn) error { return syscall.Kill(w.pid(t), syscall.SIGKILL) },
		"manager":      func(w *world, _ caisson.ID, _ []net.Conn) error { w.stop(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			e, w, id, ns, conns := held(t, maxStreams)
			if got, err := askGit(t, ns, "/held", ""); err != nil || !strings.HasPrefix(got, "403 exhausted") {
				t.Errorf("one more: %.200q, %v", got, err)
			}
			if err := end(w, id, conns); err != nil {
				t.Fatal(err)
			}
			e.none(t)
			eventually(t, func() error {
				w.streams.limiter.mu.Lock()
				defer w.streams.limiter.mu.Unlock()
				if w.streams.limiter.total != 0 {
					return fmt.Errorf("%d are counted", w.streams.limiter.total)
				}
				return nil
			})
			if name != "requests" {
				return
			}
			if _, _, err := gitRequest(t, ns, "/held", ""); err != nil {
				t.Errorf("after them: %v", err)
			}
		})
	}
}

func closeEach(conns []net.Conn) (errs []error) {
	for _, c := range conns {
		errs = append(errs, c.Close())
	}
	return errs
}

// TestStreamContextEnds checks that a job's context ends when the wire is detached, even if the wire process keeps its end open.
func TestStreamContextEnds(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{})
	m, process, _ := hear(t, Config{}, Handlers{Stream: func(ctx context.Context, _ json.RawMessage) (*os.File, <-chan struct{}, error) {
		near, far := streamPair(t)
		done := make(chan struct{})
		context.AfterFunc(ctx, func() {
			far.Close()
			close(done)
			close(ended)
		})
		return near, done, nil
	}})
	g := toolGuest(m)
	f, uses := newFeed(process), newStreamLimiter()
	go f.run()
	c, err := f.stream(caisson.WithGuest(t.Context(), g), uses, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	m.mu.Lock()
	a := m.wires[g.Sandbox]
	m.mu.Unlock()
	a.mu.Lock()
	m.removeWireState(g.Sandbox, a)
	a.mu.Unlock()
	<-ended
	if _, err := c.Read(make([]byte, 1)); err != io.EOF {
		t.Error(err)
	}
	if _, err := f.stream(caisson.WithGuest(t.Context(), g), uses, nil); caisson.KindOf(err) != caisson.Denied {
		t.Errorf("afterwards: %v", err)
	}
}
