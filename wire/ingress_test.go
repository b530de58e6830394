package wire

import (
	"bufio"
	"context"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	caisson "github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/internal/socketpair"
)

// Ingress serves connections that name a route in their first line: it answers with "ok" or an error, and then with what comes from
// the sandbox.
func (g *testGateway) Ingress(f *os.File) error {
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go g.serveIngress(c)
		}
	}()
	return nil
}

func (g *testGateway) serveIngress(c net.Conn) {
	defer c.Close()
	r := bufio.NewReader(c)
	line, err := r.ReadString('\n')
	if err != nil {
		return
	}
	conn, err := g.env.DialSandbox(context.Background(), caisson.IngressDial{Route: caisson.ID(strings.TrimSpace(line))})
	if err != nil {
		io.WriteString(c, caisson.MessageOf(err)+"\n")
		return
	}
	defer conn.Close()
	io.WriteString(c, "ok\n")
	if line, err = r.ReadString('\n'); err != nil {
		return
	}
	io.WriteString(conn, line)
	line, err = bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		line = err.Error() + "\n"
	}
	io.WriteString(c, line)
}

// Drop has nothing to drop.
func (*testGateway) Drop(caisson.ID) {}

// askIngress connects to an ingress, names a route, and returns the answer and what the sandbox says after "hello".
func askIngress(t *testing.T, addr, route string) (answer, echo string) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Minute))
	r := bufio.NewReader(c)
	io.WriteString(c, route+"\n")
	if answer, err = r.ReadString('\n'); err != nil || answer != "ok\n" {
		return answer, ""
	}
	io.WriteString(c, "hello\n")
	echo, _ = r.ReadString('\n')
	return answer, echo
}

// TestIngressConnects tests that the confined process gets connections to what the engine allows, and that the next process does so too.
func TestIngressConnects(t *testing.T) {
	t.Parallel()
	needWire(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	addr := l.Addr().String()
	w := newWorld(t, func(c *setup) {
		c.Ingress = f
		c.Dial = func(_ context.Context, d caisson.IngressDial) (*os.File, error) {
			if d.Route != "rt-echo" {
				return nil, caisson.Errorf(caisson.Denied, "no route %s", d.Route)
			}
			near, far, err := socketpair.New()
			if err != nil {
				return nil, err
			}
			go func() {
				defer near.Close()
				line := make([]byte, 100)
				if n, err := near.Read(line); err == nil {
					near.Write(line[:n])
				}
			}()
			return far, nil
		}
	})
	pid := w.pid(t)
	if answer, echo := askIngress(t, addr, "rt-echo"); answer != "ok\n" || echo != "hello\n" {
		t.Errorf("%q, %q", answer, echo)
	}
	if answer, _ := askIngress(t, addr, "rt-other"); answer != "no route rt-other\n" {
		t.Errorf("%q", answer)
	}
	if err := w.DropSandbox(t.Context(), caisson.NewID(caisson.SandboxPrefix)); err != nil {
		t.Error(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, time.Minute, func() bool { return w.pid(t) != pid })
	if answer, echo := askIngress(t, addr, "rt-echo"); answer != "ok\n" || echo != "hello\n" {
		t.Errorf("%q, %q", answer, echo)
	}
}
