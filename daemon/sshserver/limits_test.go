package sshserver

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/job/sshproxy"
	"github.com/caisson-dev/caisson/job/worker"
)

// hang is a limit that is only reached when something hangs.
const hang = time.Minute

// fakeTokens has one token, whose key is its id.
type fakeTokens struct {
	mu      sync.Mutex
	token   caisson.Token
	gone    bool
	passing bool // it is removed once it has been found for use
	used    int
}

// FindSSHKey implements [Tokens].
func (f *fakeTokens) FindSSHKey(ctx context.Context, key []byte, use bool) (*caisson.Token, error) {
	t, err := f.CheckToken(ctx, f.token.Account, caisson.ID(key))
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil && use {
		f.used++
		f.gone = f.gone || f.passing
	}
	return t, err
}

// CheckToken implements [Tokens].
func (f *fakeTokens) CheckToken(_ context.Context, account string, id caisson.ID) (*caisson.Token, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.gone || account != f.token.Account || id != f.token.ID {
		return nil, caisson.Errorf(caisson.Unauthed, "there is no such token")
	}
	t := f.token
	return &t, nil
}

// newServer returns a server with one token, of account "a".
func newServer(t *testing.T, jobs worker.Starter, processes caisson.Processes) (*Server, *fakeTokens) {
	t.Helper()
	tokens := &fakeTokens{token: caisson.Token{ID: "t", Account: "a"}}
	s, err := New(Config{
		Processes: processes, HostKey: caisson.NewSecret(strings.Repeat("k", 32)), Log: slog.New(slog.DiscardHandler), Jobs: jobs,
		Tokens: tokens,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, tokens
}

// starterFunc is a [worker.Starter].
type starterFunc func(context.Context) error

// Run implements [worker.Starter].
func (f starterFunc) Run(ctx context.Context, _ worker.Request, _ any) error { return f(ctx) }

// listen serves clients over TCP and returns a function that connects from an address.
func listen(t *testing.T, s *Server) func(from string) net.Conn {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error)
	go func() { served <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return func(from string) net.Conn {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		c, err := d.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(hang))
		return c
	}
}

// closed waits until the server has closed a connection.
func closed(t *testing.T, c net.Conn) {
	t.Helper()
	if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("a connection stays open")
	}
}

// TestPromise9StrangersStartFewJobs tests that strangers of many sources have no more jobs than the limit, whether these run or are
// being killed, and that one source cannot have jobs started without end.
func TestPromise9StrangersStartFewJobs(t *testing.T) {
	var started atomic.Int32
	killed := make(chan struct{}) // lets jobs that are killed end
	s, _ := newServer(t, starterFunc(func(ctx context.Context) error {
		started.Add(1)
		<-ctx.Done()
		<-killed
		return ctx.Err()
	}), nil)
	dial := listen(t, s)
	free := sync.OnceFunc(func() { close(killed) })
	t.Cleanup(free)
	for i := range maxAnonymous + 50 { // of which the first ones are displaced
		dial(netip.AddrFrom4([4]byte{127, 1, 0, byte(i + 1)}).String())
		if i == maxAnonymous-1 {
			poll.Until(t, hang, func() bool { return started.Load() == maxAnonymous })
		}
	}
	// The source with the most strangers displaces its own, which are closed although they had no job.
	first := dial("127.2.0.1")
	for range sourceBurst - 1 {
		dial("127.2.0.1")
	}
	closed(t, first)
	later := time.Now().Add(time.Hour)
	for s.listener.allow(netip.MustParsePrefix("127.2.0.1/32"), later) { // until then there are no more
	}
	closed(t, dial("127.2.0.1"))
	if n := started.Load(); n != maxAnonymous {
		t.Errorf("%d jobs", n)
	}
	free()
	poll.Until(t, hang, func() bool { return started.Load() > maxAnonymous && len(s.listener.jobs) == maxAnonymous })
}

// TestRates tests the limit of connections per second of a source, and that the number of known sources is bounded.
func TestRates(t *testing.T) {
	f, now := newListenerState(""), time.Now()
	source := func(i int) netip.Prefix {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 32)
	}
	count := func(i int) (n int) {
		for range 2 * sourceBurst {
			if f.allow(source(i), now) {
				n++
			}
		}
		return n
	}
	if a, b := count(0), count(1); a != sourceBurst || b != sourceBurst {
		t.Errorf("%d and %d connections at once", a, b)
	}
	now = now.Add(time.Second)
	if n := count(0); n != sourceRate {
		t.Errorf("%d connections a second later", n)
	}
	for i := range 2 * maxRates {
		f.allow(source(i), now)
	}
	if n := f.rates.Len(); n > maxRates {
		t.Errorf("%d sources are known", n)
	}
}

// pipeProcess is a process that runs until it is closed.
type pipeProcess struct {
	caisson.Process // nil: other calls panic
	files           []*os.File
}

// PID implements [caisson.Process].
func (p pipeProcess) PID() int { return 1 }

// Stdin implements [caisson.Process].
func (p pipeProcess) Stdin() io.WriteCloser { return p.files[0] }

// Stdout implements [caisson.Process].
func (p pipeProcess) Stdout() io.Reader { return p.files[1] }

// Stderr implements [caisson.Process].
func (p pipeProcess) Stderr() io.Reader { return p.files[2] }

// Wait implements [caisson.Process].
func (p pipeProcess) Wait(ctx context.Context) (caisson.ExitStatus, error) {
	<-ctx.Done()
	return caisson.ExitStatus{}, ctx.Err()
}

// Close implements [caisson.Process].
func (p pipeProcess) Close() error {
	sshproxy.CloseAll(p.files)
	return nil
}

// pipeProcesses starts processes that run until they are closed.
type pipeProcesses struct {
	caisson.Processes // nil: other calls panic
}

// ListProcesses implements [caisson.Processes].
func (pipeProcesses) ListProcesses(context.Context, string) ([]caisson.ProcessInfo, error) {
	return nil, nil
}

// Kill implements [caisson.Processes].
func (pipeProcesses) Kill(context.Context, string, int, int) error { return nil }

// Exec implements [caisson.Processes].
func (pipeProcesses) Exec(context.Context, string, caisson.ExecRequest) (caisson.Process, error) {
	var p pipeProcess
	for range 3 {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		r.Close()
		p.files = append(p.files, w)
	}
	return p, nil
}

// TestPromise9SSHMemory tests that only one process of a connection has large pipes, and that the streams of an account are limited.
func TestPromise9SSHMemory(t *testing.T) {
	next := uint32(0)
	// start starts a process and returns the sizes of its pipes, or why there is none.
	start := func(c *sshproxy.Conn, q sshproxy.Start) (sizes []int, err error) {
		next++
		if err := c.Send(sshproxy.Request{ID: next, Start: &q}); err != nil {
			return nil, err
		}
		var a sshproxy.Reply
		files, err := c.Receive(&a, 3)
		if err != nil {
			return nil, err
		}
		defer sshproxy.CloseAll(files)
		if a.Error != nil {
			return nil, caisson.Errorf(a.Error.Kind, "%s", a.Error.Message)
		}
		for _, f := range files {
			n, err := unix.FcntlInt(f.Fd(), unix.F_GETPIPE_SZ, 0)
			if err != nil {
				return nil, err
			}
			sizes = append(sizes, n)
		}
		return sizes, nil
	}
	exec := sshproxy.Start{Kind: sshproxy.KindExec}
	const usual = 64 << 10
	s, _ := newServer(t, jobFunc(func(c *sshproxy.Conn) {
		for i, want := range [][]int{{usual, usual, usual}, {pipeSize, pipeSize, usual}, {usual, usual, usual}} {
			q := exec
			q.TTY = i == 0
			if got, err := start(c, q); err != nil || len(got) != 3 || got[0] != want[0] || got[1] != want[1] || got[2] != want[2] {
				t.Errorf("pipes of %d bytes, want %d: %v", got, want, err)
			}
		}
		if err := c.Send(sshproxy.Request{ID: 2, End: true}); err != nil {
			t.Error(err)
		}
		poll.Until(t, hang, func() bool {
			got, err := start(c, exec)
			return err == nil && got[0] == pipeSize // once the stream has ended
		})
	}), pipeProcesses{})
	who := &user{caller: caisson.Caller{Account: "a"}, ref: "x"}
	s.serve(t.Context(), null(t), who, nil)
	if len(s.count.accounts) != 0 {
		t.Errorf("streams are left: %v", s.count.accounts)
	}

	for range maxStreams - 1 {
		if err := s.count.addStream("a"); err != nil {
			t.Fatal(err)
		}
	}
	next = 0
	s.jobs = jobFunc(func(c *sshproxy.Conn) {
		if _, err := start(c, exec); err != nil {
			t.Error(err)
		}
		if _, err := start(c, exec); caisson.KindOf(err) != caisson.Exhausted {
			t.Errorf("too many streams: %v", err)
		}
	})
	s.serve(t.Context(), null(t), who, nil)
	if n := s.count.accounts["a"].streams; n != maxStreams-1 {
		t.Errorf("%d streams are left", n)
	}
}

// null opens a client that says nothing.
func null(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestTokensEnd tests that the connections of a token end with it, whether it was used over the API or is a key, and that what is
// left of a connection does not wait for the end of its token.
func TestTokensEnd(t *testing.T) {
	withKey := jobFunc(func(c *sshproxy.Conn) {
		var a sshproxy.Reply
		for id, signed := range []bool{false, true} {
			c.Send(sshproxy.Request{ID: uint32(id + 1), Login: &sshproxy.Login{User: "x", Key: []byte("t"), Signed: signed}})
			c.Receive(&a, 0)
		}
		c.Receive(&a, 0) // until the connection is ended
	})
	overAPI := jobFunc(func(c *sshproxy.Conn) {
		var a sshproxy.Reply
		c.Receive(&a, 0)
	})
	for name, job := range map[string]jobFunc{"key": withKey, "API": overAPI} {
		for _, how := range []string{"expires", "removed", "removed before", "closed"} {
			t.Run(name+" "+how, func(t *testing.T) {
				s, tokens := newServer(t, job, pipeProcesses{})
				end := time.Now().Add(time.Hour)
				if how == "expires" {
					end = time.Now().Add(-time.Hour) // just after it was found
				}
				tokens.token.ExpiresAt, tokens.gone = &end, how == "removed before" && name == "API"
				tokens.passing = how == "removed before"
				var conn io.ReadWriteCloser
				if name == "key" {
					conn = listen(t, s)("127.0.0.1")
				} else {
					var err error
					conn, err = s.ConnectSSH(caisson.WithCaller(t.Context(), caisson.Caller{Account: "a", Token: "t"}), "x")
					if tokens.gone {
						if caisson.KindOf(err) != caisson.Unauthed || len(s.listener.tokens) != 0 || len(s.count.accounts) != 0 {
							t.Errorf("%v; %v", err, s.listener.tokens)
						}
						return
					}
					if err != nil {
						t.Fatal(err)
					}
				}
				var v *clientConn
				if how == "removed" || how == "closed" {
					poll.Until(t, hang, func() bool {
						s.listener.mu.Lock()
						defer s.listener.mu.Unlock()
						for x := range s.listener.tokens["t"] {
							if x.expiry != nil {
								v = x
							}
						}
						return v != nil
					})
				}
				switch how {
				case "removed":
					s.Revoke("other")
					s.Revoke("t")
				case "closed":
					s.stop()
				}
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					io.Copy(io.Discard, conn)
				}()
				select {
				case <-ended:
				case <-time.After(hang):
					t.Fatal("the connection goes on")
				}
				s.Close()
				if v != nil && v.expiry.Stop() {
					t.Error("the timer of an ended connection is left")
				}
				if len(s.listener.tokens) != 0 || len(s.count.accounts) != 0 || len(s.listener.jobs) != 0 {
					t.Errorf("left: %v, %v, %d jobs", s.listener.tokens, s.count.accounts, len(s.listener.jobs))
				}
				if name == "key" && tokens.used != 1 {
					t.Errorf("%d uses were recorded", tokens.used)
				}
			})
		}
	}
}
