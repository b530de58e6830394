package wire

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	caisson "github.com/caisson-dev/caisson"
	"golang.org/x/sys/unix"
)

// connected returns both ends of a control connection.
func connected(t *testing.T) (engine, process *net.UnixConn) {
	t.Helper()
	engine, file, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	c, err := net.FileConn(file)
	if err != nil {
		t.Fatal(err)
	}
	process = c.(*net.UnixConn)
	t.Cleanup(func() { engine.Close(); process.Close() })
	return engine, process
}

// startServer runs the wire process's loop in this process, without confinement.
func startServer(t *testing.T) (*net.UnixConn, <-chan error) {
	t.Helper()
	engine, process := connected(t)
	heard, feed := connected(t)
	s, err := newServer(process, feed, testProcess(), Env{}, maxDescriptors)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		err := s.serve(Confinement{Landlock: 3, Seccomp: true})
		closeConns(process, heard, feed)
		done <- err
	}()
	return engine, done
}

func closeConns(conns ...*net.UnixConn) {
	for _, c := range conns {
		c.Close()
	}
}

func TestServer(t *testing.T) {
	t.Parallel()
	conn, done := startServer(t)
	l := newLink(conn, 0, func() { t.Error("link gave up") })
	if c, err := l.hello(); err != nil || c != (Confinement{Landlock: 3, Seccomp: true}) {
		t.Fatal(c, err)
	}
	a, b := caisson.NewID(caisson.SandboxPrefix), caisson.NewID(caisson.SandboxPrefix)
	ask := func(o op, id caisson.ID, file *os.File, want status) reply {
		t.Helper()
		var body any
		var files []*os.File
		if file != nil {
			body, files = specOf(id), []*os.File{file}
		}
		r, err := l.call(t.Context(), request{op: o, id: id}, body, files...)
		if err != nil || r.status != want {
			t.Fatalf("op %d: %+v, %v, want status %d", o, r, err, want)
		}
		return r
	}
	tap, sandbox := pairTAP(t)
	ask(opDetach, a, nil, statusUnknown)
	ask(opStats, a, nil, statusUnknown)
	ask(opAttach, a, tap, statusOK)
	tap.Close()
	other, _ := pairTAP(t)
	ask(opAttach, a, other, statusExists)
	ask(opAttach, b, other, statusOK)

	if _, err := sandbox.Write(packet{dst: "192.0.2.1", proto: protoTCP, body: syn()}.frame()); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, maxFrame)
	n, err := sandbox.Read(buf)
	if err != nil || kind(buf[:n]) != "reset" {
		t.Fatalf("%x, %v, want a reset", buf[:n], err)
	}
	eventually(t, func() error {
		var s Stats
		if err := unmarshal(ask(opStats, a, nil, statusOK).body, &s); err != nil {
			return err
		}
		if s.FramesOut != 1 || s.FramesIn != 1 || s.BytesIn != uint64(n) || s.DroppedOut != 0 {
			return errors.New("stats are wrong")
		}
		return nil
	})
	ask(opDetach, a, nil, statusOK)
	ask(opDetach, a, nil, statusUnknown)
	eventually(t, func() error { // a child of another test may have inherited it until it executes its program
		if _, err := sandbox.Write([]byte("x")); err == nil {
			return errors.New("the process still holds the other end")
		}
		return nil
	})
	conn.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestServerEndsOnNonsense(t *testing.T) {
	file, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	fd := int(file.Fd())
	encode := func(r request) []byte {
		b, err := r.encode()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	good := encode(request{op: opAttach, id: "sb-aaaaaaaaaaaaaaaa", body: []byte("{}")})
	for name, m := range map[string]struct {
		data []byte
		fds  []int
	}{
		"attach without a descriptor": {good, nil},
		"attach with three":           {good, []int{fd, fd, fd}},
		"attach with many":            {good, []int{fd, fd, fd, fd, fd, fd, fd, fd}},
		"detach with a descriptor":    {encode(request{op: opDetach, id: "sb-aaaaaaaaaaaaaaaa"}), []int{fd}},
		"too long":                    {append(encode(request{op: opStats, id: "sb-aaaaaaaaaaaaaaaa"}), make([]byte, maxBody+1)...), nil},
		"too short":                   {good[:requestHeader-1], []int{fd}},
		"unknown":                     {encode(request{op: 99, id: "sb-aaaaaaaaaaaaaaaa"}), nil},
		"settings without any":        {encode(request{op: opSettings}), nil},
	} {
		t.Run(name, func(t *testing.T) {
			before := descriptors(t)
			conn, done := startServer(t)
			var oob []byte
			if m.fds != nil {
				oob = unix.UnixRights(m.fds...)
			}
			if _, _, err := conn.WriteMsgUnix(m.data, oob, nil); err != nil {
				t.Fatal(err)
			}
			if err := <-done; !errors.Is(err, errMessage) {
				t.Errorf("%v, want %v", err, errMessage)
			}
			conn.Close()
			if after := descriptors(t); after > before {
				t.Errorf("%d descriptors, %d before", after, before)
			}
		})
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	fds, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	return len(fds)
}

// The wire process may be compromised: the engine accepts no message out of order.
func TestLinkGivesUpOnHostileProcess(t *testing.T) {
	stats := func(seq uint32) reply { return reply{op: opStats, seq: seq} }
	for name, m := range map[string]struct {
		data   []byte
		with   bool // a descriptor
		accept bool
	}{
		"right":             {stats(1).encode(), false, true},
		"with a descriptor": {stats(1).encode(), true, true}, // which is dropped
		"another's":         {stats(2).encode(), false, false},
		"another kind":      {reply{op: opAttach, seq: 1}.encode(), false, false},
		"short":             {stats(1).encode()[:5], false, false},
		"long":              {bytes.Repeat([]byte{1}, maxReply+1), false, false},
		"end":               {nil, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			engine, process := connected(t)
			var killed atomic.Bool
			l := newLink(engine, 0, func() { killed.Store(true) })
			before := descriptors(t)
			go func() {
				if _, err := io.ReadFull(process, make([]byte, requestHeader)); err != nil {
					t.Error(err)
				}
				if m.data == nil {
					process.Close()
					return
				}
				var oob []byte
				if m.with {
					oob = unix.UnixRights(0)
				}
				if _, _, err := process.WriteMsgUnix(m.data, oob, nil); err != nil {
					t.Error(err)
				}
			}()
			_, err := l.call(t.Context(), request{op: opStats, id: "sb-aaaaaaaaaaaaaaaa"}, nil)
			if (err == nil) != m.accept || killed.Load() == m.accept {
				t.Errorf("%v, killed %t", err, killed.Load())
			}
			if after := descriptors(t); after > before {
				t.Errorf("%d descriptors, %d before", after, before)
			}
		})
	}
}
