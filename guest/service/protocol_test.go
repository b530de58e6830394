package service

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
)

// A flakyListener fails the first Accept.
type flakyListener struct {
	net.Listener
	once sync.Once
}

func (l *flakyListener) Accept() (conn net.Conn, err error) {
	l.once.Do(func() { err = syscall.EMFILE })
	if err != nil {
		return nil, err
	}
	return l.Listener.Accept()
}

// serve serves s on a socket, and returns a function that connects to it.
func serve(t *testing.T, s *Supervisor) func() net.Conn {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); Serve(&flakyListener{Listener: ln}, s) }()
	t.Cleanup(func() { ln.Close(); <-done })
	return func() net.Conn {
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
}

func TestProtocol(t *testing.T) {
	t.Parallel()
	s, started := newSupervisor(t, func(c *child) error { _, err := io.WriteString(c.out, "hello\n"); return err })
	dial, ctx := serve(t, s), t.Context()
	if err := Apply(ctx, dial(), 1, nil, []caisson.Service{web(caisson.RestartNever)}); err != nil {
		t.Fatal(err)
	}
	// await watches until the service is in a state.
	await := func(want caisson.ServiceState) (c Condition) {
		t.Helper()
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		err := Watch(ctx, dial(), func(list []Condition) {
			if c = list[0]; c.State == want {
				cancel()
			}
		})
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("%+v: %v", c, err)
		}
		return c
	}
	if c := await(caisson.ServiceReady); c.ID != "web" || c.PID != 7 {
		t.Errorf("%+v", c)
	}
	log, err := Logs(ctx, dial(), "web", true)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	line := make([]byte, 6)
	if _, err := io.ReadFull(log, line); err != nil || string(line) != "hello\n" {
		t.Fatalf("%q, %v", line, err)
	}
	if err := Restart(ctx, dial(), "web"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(log, line); err != nil || string(line) != "hello\n" {
		t.Fatalf("%q, %v", line, err)
	}
	started.all()[1].end(caisson.ExitStatus{Code: 5})
	if c := await(caisson.ServiceFailed); c.Exit.Code != 5 {
		t.Errorf("%+v", c)
	}
	list, err := List(ctx, dial())
	if err != nil || len(list) != 1 || list[0].State != caisson.ServiceFailed {
		t.Errorf("%+v, %v", list, err)
	}
	whole, err := Logs(ctx, dial(), "web", false)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(whole); err != nil || string(b) != "hello\nhello\n" {
		t.Errorf("%q, %v", b, err)
	}
	whole.Close()
	for name, err := range map[string]error{
		"restart": Restart(ctx, dial(), "nobody"),
		"logs":    func() error { _, err := Logs(ctx, dial(), "nobody", false); return err }(),
	} {
		if caisson.KindOf(err) != caisson.NotFound {
			t.Errorf("%s of a service that is not there: %v", name, err)
		}
	}
	if err := Apply(ctx, dial(), 2, nil, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(log); err != nil { // the service that it follows is gone
		t.Error(err)
	}
}

// TestHostileClients sends a supervisor what no client sends, and shows that others are still served.
func TestHostileClients(t *testing.T) {
	t.Parallel()
	s, _ := newSupervisor(t, func(c *child) error {
		for range 100 { // fills the log
			if _, err := c.out.Write(make([]byte, 10<<10)); err != nil {
				return err
			}
		}
		return nil
	})
	dial := serve(t, s)
	apply(t, s, 1, web(caisson.RestartAlways))
	for _, text := range []string{
		"", "x", "\xff\xff\xff\xff{}", "\x00\x00\x00\x01{", "\x00\x00\x00\x02{}", "\x00\x00\x00\x0a{\"x\":true}", "\x00\x00\x00\x04nullnull",
	} {
		conn := dial()
		if _, err := io.WriteString(conn, text); err != nil {
			t.Error(err)
		}
		conn.(*net.UnixConn).CloseWrite()
		if _, err := io.Copy(io.Discard, conn); err != nil && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%q: %v", text, err)
		}
	}
	// Clients that never read and clients that say nothing take all places but one.
	for i := range maxConns - 1 {
		conn := dial()
		if i%2 == 0 {
			if err := writeMessage(conn, request{Op: opLogs, ID: "web", Follow: true}); err != nil {
				t.Error(err)
			}
		}
	}
	if list, err := List(t.Context(), dial()); err != nil || len(list) != 1 {
		t.Errorf("%+v, %v", list, err)
	}
}

// TestHostileSupervisor answers clients with what no supervisor answers.
func TestHostileSupervisor(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", maxAnswer)
	many := strings.Repeat(`{"id":"a","state":"ready"},`, MaxServices)
	for _, text := range []string{
		"", "\x00", "\xff\xff\xff\xff", "\x00\x00\x00\x09{}", message(`{"x":1}`), message(`{} {}`), message(`[]`), message(`{"message":"` + long + `"}`),
		message(`{"kind":"internal"}`), message(`{"kind":"unauthenticated","message":"log in"}`), message(`{"kind":"x"}`),
		message(`{"conditions":[{"id":"a","state":"happy"}]}`), message(`{"conditions":[{"id":"a","state":"ready","pid":-1}]}`),
		message(`{"conditions":[{"id":"a","state":"ready","restarts":9999999999}]}`), message(`{"conditions":[{"id":"a","state":"ready","exit":{"code":1,"reason":"x"}}]}`),
		message(`{"conditions":[{"id":"a","state":"ready"},{"id":"a","state":"ready"}]}`), message(`{"conditions":[` + many + `{"id":"b","state":"ready"}]}`),
		message(`{"conditions":[{"id":"a","state":"ready","since":"99999-01-01T00:00:00Z"}]}`),
		message(`{"conditions":[{"id":"a","state":"ready","since":"9999-12-31T23:59:59-01:00"}]}`),
	} {
		host, guest := net.Pipe()
		go func() { io.Copy(io.Discard, guest) }()
		go func() { io.WriteString(guest, text); guest.Close() }()
		if list, err := List(t.Context(), host); caisson.KindOf(err) != caisson.Unavailable {
			t.Errorf("%.80q: %+v, %v", text, list, err)
		}
	}
	host, guest := net.Pipe()
	go func() { io.Copy(io.Discard, guest) }()
	go func() {
		io.WriteString(guest, message(`{"conditions":[{"id":"a","state":"failed","message":"\u001b[2J`+strings.Repeat("y", 1000)+`"}]}`))
	}()
	list, err := List(t.Context(), host)
	if err != nil || len(list) != 1 || len(list[0].Message) > maxMessage+3 || strings.Contains(list[0].Message, "\x1b") {
		t.Errorf("%+v, %v", list, err)
	}
	// One that does not answer does not hold the caller.
	ctx, cancel := context.WithCancel(t.Context())
	host, guest = net.Pipe()
	go func() { guest.Read(make([]byte, 4)); cancel() }()
	if _, err := List(ctx, host); err == nil {
		t.Error("no answer is an answer")
	}
}

// message returns text with its length before it.
func message(text string) string {
	return string(binary.BigEndian.AppendUint32(nil, uint32(len(text)))) + text
}

func TestChecks(t *testing.T) {
	t.Parallel()
	for answer, ok := range map[string]bool{
		"HTTP/1.1 200 OK\r\n\r\n": true, "HTTP/1.0 204 \n": true, "HTTP/1.1 302 Found\r\n\r\n": true,
		"HTTP/1.1 404 Not Found\r\n\r\n": false, "HTTP/1.1 503 no\r\n\r\n": false, "HTTP/1.1 2\r\n": false, "hello 200\r\n": false, "": false,
		strings.Repeat("x", 1<<20): false,
	} {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		go func() {
			for {
				conn, err := ln.Accept()
				if err != nil {
					return
				}
				go func() { defer conn.Close(); conn.Read(make([]byte, 100)); io.WriteString(conn, answer) }()
			}
		}()
		port := ln.Addr().(*net.TCPAddr).Port
		err = check(t.Context(), &children{}, caisson.Service{Port: port, Readiness: &caisson.Readiness{HTTP: "/health"}})
		if (err == nil) != ok {
			t.Errorf("%.60q: %v", answer, err)
		}
		if err := check(t.Context(), &children{}, caisson.Service{Port: port, Readiness: &caisson.Readiness{TCP: true}}); err != nil {
			t.Error(err)
		}
		ln.Close()
		if err := check(t.Context(), &children{}, caisson.Service{Port: port, Readiness: &caisson.Readiness{TCP: true}}); err == nil {
			t.Error("a closed port accepts connections")
		}
	}
}

func FuzzReadMessage(f *testing.F) {
	f.Add([]byte(message(`{"op":"list"}`)), []byte(message(`{"conditions":[{"id":"a","state":"ready"}]}`)))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		var req request
		if err := readMessage(bytes.NewReader(a), maxRequest, &req); err == nil {
			var again bytes.Buffer
			if err := writeMessage(&again, req); err != nil {
				t.Fatalf("%+v: %v", req, err)
			}
		}
		got, err := receive(bytes.NewReader(b))
		if err == nil && len(got.Conditions) > 0 {
			if err := writeMessage(io.Discard, got); err != nil {
				t.Fatalf("%+v: %v", got, err)
			}
		}
	})
}

// TestServeLeavesNothing shows that a closed listener ends all connections.
func TestServeLeavesNothing(t *testing.T) {
	t.Parallel()
	s, _ := newSupervisor(t, nil)
	path := filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := writeMessage(conn, request{Op: opWatch}); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); Serve(ln, s) }()
	var a answer
	if err := readMessage(conn, maxAnswer, &a); err != nil {
		t.Fatal(err)
	}
	ln.Close()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("Serve does not return")
	}
}
