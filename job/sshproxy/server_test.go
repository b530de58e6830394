package sshproxy

import (
	"context"
	"crypto/ed25519"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/internal/workertest"
	"github.com/caisson-dev/caisson/job/worker"
)

// hang is a limit that is only reached when something hangs.
const hang = time.Minute

// A fakeDaemon is the daemon's end of the channel. Its processes echo their input until it ends, and then exit with 7.
type fakeDaemon struct {
	t       *testing.T
	conn    *Conn
	far     *os.File // the job's end
	private ed25519.PrivateKey

	mu   sync.Mutex
	seen []Request  // all but those that sign; guarded by mu
	held []*os.File // the input of processes that run "hold", which never exit; guarded by mu
}

// pair returns a daemon and both ends of a connection of a client, which the test's end closes.
func pair(t *testing.T) (d *fakeDaemon, server *os.File, client net.Conn) {
	t.Helper()
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	near, far, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if client, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	if server, err = accepted.(*net.TCPConn).File(); err != nil {
		t.Fatal(err)
	}
	d = &fakeDaemon{t: t, conn: near, far: far, private: private}
	go d.run()
	t.Cleanup(func() {
		client.Close()
		near.Close()
		CloseAll(append(d.held, server, far))
	})
	return d, server, client
}

// connect serves a client and returns its end of the connection.
func connect(t *testing.T, authenticate bool, handshake time.Duration) (*fakeDaemon, net.Conn) {
	t.Helper()
	d, file, client := pair(t)
	server, err := net.FileConn(file)
	file.Close()
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := NewConn(d.far)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		serve(server, newRemote(theirs), d.key(), authenticate, handshake)
	}()
	t.Cleanup(func() {
		client.Close()
		<-ended
		theirs.Close()
	})
	return d, client
}

// key returns the public host key.
func (d *fakeDaemon) key() ssh.PublicKey {
	key, err := ssh.NewPublicKey(d.private.Public())
	if err != nil {
		d.t.Fatal(err)
	}
	return key
}

// run answers requests.
func (d *fakeDaemon) run() {
	for {
		var q Request
		if _, err := d.conn.Receive(&q, 0); err != nil {
			return
		}
		if q.Sign != nil {
			d.conn.Send(Reply{ID: q.ID, Signature: ed25519.Sign(d.private, q.Sign)})
			continue
		}
		d.mu.Lock()
		d.seen = append(d.seen, q)
		d.mu.Unlock()
		switch {
		case q.Login != nil:
			d.conn.Send(Reply{ID: q.ID, Error: &Failure{caisson.Unauthed, "not known"}})
		case q.Start != nil && q.Start.Command == "fail":
			d.conn.Send(Reply{ID: q.ID, Error: &Failure{caisson.NotFound, "there is no sandbox x"}})
		case q.Start != nil:
			d.start(q.ID, q.Start.Command == "hold")
		}
	}
}

func (d *fakeDaemon) start(id uint32, hold bool) {
	in, stdin, _ := os.Pipe()
	stdout, out, _ := os.Pipe()
	stderr, errs, _ := os.Pipe()
	d.conn.Send(Reply{ID: id, PID: 1}, stdin, stdout, stderr)
	CloseAll([]*os.File{stdin, stdout, stderr, errs})
	if hold {
		d.mu.Lock()
		d.held = append(d.held, in)
		d.mu.Unlock()
		return
	}
	go func() {
		io.Copy(out, in)
		CloseAll([]*os.File{in, out})
		d.conn.Send(Reply{ID: id, Exit: &caisson.ExitStatus{Code: 7}})
	}()
}

// requests returns the requests so far that match.
func (d *fakeDaemon) requests(match func(Request) bool) (list []Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(d.seen), func(q Request) bool { return !match(q) })
}

// login returns a client of the connection.
func login(t *testing.T, conn net.Conn) *ssh.Client {
	t.Helper()
	c, channels, requests, err := ssh.NewClientConn(conn, "x", &ssh.ClientConfig{HostKeyCallback: ssh.InsecureIgnoreHostKey()})
	if err != nil {
		t.Fatal(err)
	}
	return ssh.NewClient(c, channels, requests)
}

// TestSession tests what the daemon is asked for a session with a terminal, and how it ends.
func TestSession(t *testing.T) {
	d, conn := connect(t, false, hang)
	c := login(t, conn)
	s, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	for name, ok := range map[string]bool{"LC_ALL": true, "LD_PRELOAD": false, "PATH": false} {
		if err := s.Setenv(name, "x"); (err == nil) != ok {
			t.Errorf("the variable %s: %v", name, err)
		}
	}
	for _, refused := range []string{"auth-agent-req@openssh.com", "x11-req", "subsystem"} {
		if ok, _ := s.SendRequest(refused, true, ssh.Marshal(struct{ Name string }{"netconf"})); ok {
			t.Errorf("%s is granted", refused)
		}
	}
	if err := s.RequestPty("vt100", 24, 80, nil); err != nil {
		t.Fatal(err)
	}
	in, err := s.StdinPipe()
	if err == nil {
		err = s.Start("echo")
	}
	if err == nil {
		err = s.WindowChange(50, 100)
	}
	if err == nil {
		err = s.Signal(ssh.SIGINT)
	}
	if err != nil {
		t.Fatal(err)
	}
	if ok, _ := s.SendRequest("exec", true, ssh.Marshal(struct{ Command string }{"again"})); ok {
		t.Error("a session runs two processes")
	}
	io.WriteString(in, "hello")
	in.Close()
	var exit *ssh.ExitError
	if err := s.Wait(); !errors.As(err, &exit) || exit.ExitStatus() != 7 {
		t.Errorf("the session ends with %v", err)
	}
	poll.Until(t, hang, func() bool { return len(d.requests(func(q Request) bool { return q.End })) == 1 })
	start := d.requests(func(q Request) bool { return q.Start != nil })
	if len(start) != 1 || start[0].Start.Command != "echo" || !start[0].Start.TTY || start[0].Start.Size != (Size{24, 80}) ||
		len(start[0].Start.Env) != 2 || start[0].Start.Env["TERM"] != "vt100" {
		t.Errorf("the daemon was asked for %+v", start)
	}
	if n := len(d.requests(func(q Request) bool { return q.Resize != nil && *q.Resize == Size{50, 100} || q.Signal == 2 })); n != 2 {
		t.Errorf("%d of resize and signal arrived", n)
	}
	if _, err := c.Listen("tcp", "127.0.0.1:0"); err == nil {
		t.Error("remote forwarding is granted")
	}
	// What cannot be started is a process that failed, so that clients show why.
	if s, err = c.NewSession(); err != nil {
		t.Fatal(err)
	}
	out, err := s.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	err = s.Start("fail")
	said, _ := io.ReadAll(out)
	if err != nil || string(said) != "caisson: there is no sandbox x\r\n" {
		t.Errorf("%q, %v", said, err)
	}
}

// TestPromise4TerminalsAreFiltered tests that what a sandbox sends to a terminal passes a filter, unless the client does not want
// it.
func TestPromise4TerminalsAreFiltered(t *testing.T) {
	const hostile = "a\x1b]52;c;aWQK\ab\x1b[6n\x1b[2J\xff\x1b[?1049h"
	for _, tt := range []struct {
		terminal bool
		raw      string
		want     string
	}{
		{true, "", "ab\x1b[2J\ufffd\x1b[?1049h"},
		{true, "0", "ab\x1b[2J\ufffd\x1b[?1049h"},
		{true, "1", hostile},
		{false, "", hostile}, // files and the protocols of editors
	} {
		d, conn := connect(t, false, hang)
		s, err := login(t, conn).NewSession()
		if err != nil {
			t.Fatal(err)
		}
		if tt.raw != "" {
			err = s.Setenv(rawVariable, tt.raw)
		}
		if err == nil && tt.terminal {
			err = s.RequestPty("vt100", 24, 80, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		s.Stdin = iotest.OneByteReader(strings.NewReader(hostile))
		out, err := s.Output("echo")
		exit := (*ssh.ExitError)(nil)
		if !errors.As(err, &exit) || exit.ExitStatus() != 7 {
			t.Fatal(err)
		}
		rest, ok := strings.CutPrefix(string(out), tt.want)
		reset := strings.Contains(rest, "\x1b[?1049l") // what was left on is switched off
		if !ok || reset != (tt.want != hostile) || !reset && rest != "" {
			t.Errorf("terminal %v, %s=%q: %q", tt.terminal, rawVariable, tt.raw, out)
		}
		start := d.requests(func(q Request) bool { return q.Start != nil })
		if _, ok := start[0].Start.Env[rawVariable]; ok {
			t.Error("the sandbox gets the variable")
		}
	}
}

// TestClosedProcess tests that nothing waits for a process whose client has closed the session.
func TestClosedProcess(t *testing.T) {
	d, _, _ := pair(t)
	conn, err := NewConn(d.far)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	p, err := newRemote(conn).start(&Start{Kind: KindExec, Command: "hold"})
	if err != nil {
		t.Fatal(err)
	}
	exited := make(chan caisson.ExitStatus)
	go func() { exited <- p.wait() }()
	p.close()
	select {
	case status := <-exited:
		if !status.Unknown {
			t.Errorf("%+v", status)
		}
	case <-time.After(hang):
		t.Error("the wait goes on")
	}
}

// TestStrangers tests that clients that do not log in are closed: slow ones, and those with keys that are not known.
func TestStrangers(t *testing.T) {
	_, slow := connect(t, true, 50*time.Millisecond)
	slow.SetDeadline(time.Now().Add(hang))
	if _, err := io.Copy(io.Discard, slow); err != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("a silent client is not closed")
	}
	d, conn := connect(t, true, hang)
	var keys []ssh.Signer
	for range 2 * maxAuthTries {
		_, private, err := ed25519.GenerateKey(nil)
		if err != nil {
			t.Fatal(err)
		}
		key, err := ssh.NewSignerFromKey(private)
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, key)
	}
	_, _, _, err := ssh.NewClientConn(conn, "x", &ssh.ClientConfig{
		User: "web", Auth: []ssh.AuthMethod{ssh.PublicKeys(keys...)}, HostKeyCallback: ssh.InsecureIgnoreHostKey(),
	})
	if err == nil {
		t.Error("a stranger is in")
	}
	if n := len(d.requests(func(q Request) bool { return q.Login != nil })); n == 0 || n > maxAuthTries {
		t.Errorf("the daemon was asked about %d keys", n)
	}
}

// TestDaemonGone tests that the job ends with the channel: the client is closed.
func TestDaemonGone(t *testing.T) {
	d, conn := connect(t, false, hang)
	c := login(t, conn)
	s, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	d.conn.Close()
	if err := s.Run("echo"); err == nil {
		t.Error("a process starts without a daemon")
	}
}

// TestMemory tests that the job's limit of memory is enough for a connection at its limits: no process reads what its channel was
// sent.
func TestMemory(t *testing.T) {
	runner := workertest.Runner(t)
	d, server, client := pair(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := Job.Run(ctx, runner, Args{HostKey: d.key().Marshal()}, worker.RunInput{Files: []*os.File{server, d.far}})
		CloseAll([]*os.File{server, d.far})
		ended <- err
	}()
	defer func() {
		cancel()
		<-ended
	}()
	c := login(t, client)
	sent := make([]byte, 2<<20) // what a channel takes unread
	var work sync.WaitGroup
	for range MaxStreams {
		work.Go(func() {
			s, err := c.NewSession()
			if err != nil {
				t.Error(err)
				return
			}
			in, err := s.StdinPipe()
			if err == nil {
				err = s.Start("hold")
			}
			if err == nil {
				_, err = in.Write(sent)
			}
			if err == nil {
				err = in.Close()
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	work.Wait()
	d.mu.Lock()
	held := slices.Clone(d.held)
	d.mu.Unlock()
	for _, in := range held {
		work.Go(func() {
			if n, err := io.Copy(io.Discard, in); err != nil || n != int64(len(sent)) {
				t.Errorf("%d bytes arrived: %v", n, err)
			}
		})
	}
	work.Wait()
	if len(held) != MaxStreams {
		t.Errorf("%d processes were started", len(held))
	}
}
