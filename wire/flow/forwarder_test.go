package flow

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	caisson "github.com/caisson-dev/caisson"
)

func TestAllowAndDeny(t *testing.T) {
	w := newWorld(t)
	w.listen("192.0.2.1:7", echo)
	w.listen("[2001:db8::1]:7", echo)
	w.policy(allowAddr("192.0.2.1"), allowAddr("2001:db8::1"))
	for _, addr := range []string{"192.0.2.1:7", "[2001:db8::1]:7"} {
		c := w.mustDial(addr)
		wantEcho(t, c, "hello")
		c.CloseWrite()
		wantEnd(t, c)
		c.Close()
	}
	w.mustRefuse("192.0.2.2:7")
	w.reportedDenied("flow", "no rule allows it")
	w.mustRefuse("[2001:db8::2]:7")
	if got := len(w.dials()); got != 2 {
		t.Errorf("%d dials %v, want 2: what is denied is not dialled", got, w.dials())
	}
	end := w.reported("the end of a flow", func(d caisson.Decision) bool { return d.Count == 0 })
	if end.BytesIn != 5 || end.BytesOut != 5 || !end.Allowed || end.Address == "" {
		t.Errorf("end of flow: %+v", end)
	}
	eventually(t, func() error {
		if s := w.f.Stats(); s.TCP != 0 || s.Allowed != 2 || s.Denied != 2 || s.BytesIn != 10 || s.BytesOut != 10 {
			return fmt.Errorf("stats: %+v", s)
		}
		return nil
	})
}

func TestDialBeforeAccept(t *testing.T) {
	w := newWorld(t)
	w.policy(allowAll)
	w.mustRefuse("192.0.2.1:7") // nothing listens there
	d := w.reported("the failure", func(d caisson.Decision) bool { return strings.Contains(d.Reason, "connection refused") })
	if !d.Allowed || d.Count != 1 || w.f.Stats().Failed != 1 {
		t.Errorf("%+v %+v", d, w.f.Stats())
	}
}

func TestHalfClose(t *testing.T) {
	w := newWorld(t)
	w.policy(allowAll)
	w.listen("192.0.2.1:7", func(c *net.TCPConn) {
		all, _ := io.ReadAll(c)
		fmt.Fprintf(c, "%d", len(all))
	})
	w.listen("192.0.2.1:8", func(c *net.TCPConn) {
		io.WriteString(c, "bye")
		c.CloseWrite()
		all, _ := io.ReadAll(c)
		w.report(caisson.Decision{Reason: string(all)})
	})
	c := w.mustDial("192.0.2.1:7")
	big := strings.Repeat("x", 3<<20)
	go func() {
		io.WriteString(c, big)
		c.CloseWrite()
	}()
	got, err := io.ReadAll(c)
	if err != nil || string(got) != fmt.Sprint(len(big)) {
		t.Fatalf("%s, %v", got, err)
	}
	c = w.mustDial("192.0.2.1:8")
	if got, err := io.ReadAll(c); err != nil || string(got) != "bye" {
		t.Fatalf("%s, %v", got, err)
	}
	io.WriteString(c, "late")
	c.Close()
	w.reported("what was said after the other side had ended", func(d caisson.Decision) bool { return d.Reason == "late" })
	eventually(t, w.empty)
}

func (w *testWorld) empty() error {
	if s := w.f.Stats(); s.TCP != 0 || s.UDP != 0 || s.InFlight != 0 {
		return fmt.Errorf("still there: %+v", s)
	}
	return nil
}

func TestResetsPropagate(t *testing.T) {
	w := newWorld(t)
	w.policy(allowAll)
	ended := make(chan error, 1)
	w.listen("192.0.2.1:7", func(c *net.TCPConn) {
		wantByte := make([]byte, 1)
		io.ReadFull(c, wantByte)
		c.SetLinger(0)
	})
	w.listen("192.0.2.1:8", func(c *net.TCPConn) {
		io.WriteString(c, "x")
		_, err := io.Copy(io.Discard, c)
		ended <- err
	})
	c := w.mustDial("192.0.2.1:7")
	io.WriteString(c, "x")
	if _, err := c.Read(make([]byte, 1)); err == nil || !strings.Contains(err.Error(), "reset") {
		t.Errorf("the world reset, the sandbox sees: %v", err)
	}
	c = w.mustDial("192.0.2.1:8")
	wantRead(t, c, "x")
	for _, e := range w.guest.RegisteredEndpoints() {
		e.Abort()
	}
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "reset") {
		t.Errorf("the sandbox reset, the world sees: %v", err)
	}
	eventually(t, w.empty)
}

func TestHalfClosedForEver(t *testing.T) {
	w := newWorld(t, func(_ *Config, t *timeouts) { t.halfClosed = 250 * time.Millisecond }) // longer than a dial takes
	w.policy(allowAll)
	w.listen("192.0.2.1:7", func(c *net.TCPConn) {
		c.CloseWrite()
		io.Copy(io.Discard, c)
	})
	w.listen("192.0.2.1:8", echo)
	open := w.mustDial("192.0.2.1:8")
	c := w.mustDial("192.0.2.1:7")
	wantEnd(t, c)
	eventually(t, func() error {
		if s := w.f.Stats(); s.TCP != 1 {
			return fmt.Errorf("%d connections, want that which nobody closed", s.TCP)
		}
		return nil
	})
	wantEcho(t, open, "hello")
}

// A sandbox that never reads uses a flow and its buffers until the connection ends.
func TestNeverReading(t *testing.T) {
	w := newWorld(t, func(c *Config, t *timeouts) { c.Limits.Wide, t.halfClosed = 1, 50*time.Millisecond })
	w.policy(allowAll)
	written := make(chan int64, 1)
	w.listen("192.0.2.1:7", func(c *net.TCPConn) {
		c.SetWriteBuffer(64 << 10)
		n, _ := io.Copy(c, endless{})
		written <- n
	})
	wide := w.mustDial("192.0.2.1:7")
	narrow := w.mustDial("192.0.2.1:7")
	last := int64(-1)
	eventually(t, func() error {
		s := w.f.Stats()
		stuck := s.BytesIn > 0 && s.BytesIn == last
		last = s.BytesIn
		if !stuck {
			return fmt.Errorf("still moving: %d", last)
		}
		return nil
	})
	if last > 16<<20 {
		t.Errorf("%d bytes were taken for a sandbox that does not read", last)
	}
	wide.Close() // resets the connection, because there is unread data
	narrow.Close()
	<-written
	<-written
	eventually(t, w.empty)
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

func TestRecheck(t *testing.T) {
	w := newWorld(t)
	w.listen("192.0.2.1:7", echo)
	w.listen("192.0.2.2:7", echo)
	w.policy(allowAddr("192.0.2.1"), allowAddr("192.0.2.2"))
	a, b := w.mustDial("192.0.2.1:7"), w.mustDial("192.0.2.2:7")
	wantEcho(t, a, "a")
	wantEcho(t, b, "b")
	w.policy(allowAddr("192.0.2.2"))
	wantEnd(t, a)
	w.reportedDenied("flow", "ended by a change of policy")
	wantEcho(t, b, "b")
	w.resolved("192.0.2.2", "b.example")
	w.policy(allowName("b.example")) // b was opened by address
	wantEnd(t, b)
	w.mustRefuse("192.0.2.1:7")
}

func TestRecheckWhileDialling(t *testing.T) {
	dialling := make(chan struct{})
	w := newWorld(t, func(c *Config, _ *timeouts) { c.Dialer = stuck{dialling} })
	w.policy(allowAll)
	result := make(chan error, 1)
	go func() {
		_, err := w.dial("192.0.2.1:7")
		result <- err
	}()
	<-dialling
	w.policy()
	if err := <-result; err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("%v, want a refusal", err)
	}
	w.reportedDenied("flow", "ended by a change of policy")
}

// TestRecheckWhileDeciding: a flow can be checked again while its first decision is made.
func TestRecheckWhileDeciding(t *testing.T) {
	var w *testWorld
	var checks sync.WaitGroup
	w = newWorld(t, func(c *Config, _ *timeouts) {
		names := c.Names
		c.Names = func(a netip.Addr) []string {
			list := names(a)
			for range 4 {
				checks.Go(w.f.Recheck)
			}
			runtime.Gosched()
			return list
		}
	})
	w.resolved("192.0.2.1", "a.example")
	for range 20 {
		w.mustRefuse("192.0.2.1:7")
	}
	checks.Wait()
}

// stuck is a network on which no host answers.
type stuck struct{ dialling chan struct{} }

func (stuck) Own(netip.Addr) (bool, error) { return false, nil }
func (s stuck) DialTCP(ctx context.Context, _ netip.AddrPort) (*net.TCPConn, error) {
	s.dialling <- struct{}{}
	<-ctx.Done()
	return nil, ctx.Err()
}
func (stuck) DialUDP(context.Context, netip.AddrPort) (*net.UDPConn, error) {
	return nil, net.ErrClosed
}

func TestDialTimeout(t *testing.T) {
	dialling := make(chan struct{}, 1)
	w := newWorld(t, func(c *Config, t *timeouts) { c.Dialer, t.dial = stuck{dialling}, 10*time.Millisecond })
	w.policy(allowAll)
	w.mustRefuse("192.0.2.1:7")
	w.reported("the failure", func(d caisson.Decision) bool { return strings.Contains(d.Reason, "no answer in time") })
}

func TestOwnHost(t *testing.T) {
	w := newWorld(t)
	w.listen("192.0.2.1:7", echo)
	w.own[netip.MustParseAddr("192.0.2.1")] = true
	w.policy(allowAll)
	w.mustRefuse("192.0.2.1:7")
	w.reportedDenied("flow", "the host's own")
	w.resolved("192.0.2.1", "rebound.example")
	w.policy(allowName("rebound.example"))
	w.mustRefuse("192.0.2.1:7")
	if d := w.dials(); len(d) != 0 {
		t.Errorf("dialled %v", d)
	}
	w.policy(allowAddr("192.0.2.1"))
	c := w.mustDial("192.0.2.1:7")
	wantEcho(t, c, "hello")
	w.policy(allowAll)
	wantEnd(t, c)
}

func TestLocal(t *testing.T) {
	w := newWorld(t, func(c *Config, _ *timeouts) {
		c.Local = map[uint16]func(net.Conn){80: func(c net.Conn) {
			go func() { // may return before the connection is closed
				defer c.Close()
				fmt.Fprintf(c, "hello %s", c.RemoteAddr().(*net.TCPAddr).IP)
			}()
		}}
	})
	for addr, want := range map[string]string{
		"10.87.0.1:80": "hello 10.87.0.2", "[fdca:1550:a87::1]:80": "hello fdca:1550:a87::2",
	} {
		c := w.mustDial(addr)
		if got, err := io.ReadAll(c); err != nil || string(got) != want {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
		c.Close()
	}
	w.policy(allowAll)
	w.mustRefuse("10.87.0.1:81")
	w.reportedDenied("flow", "no service")
	if d := w.dials(); len(d) != 0 {
		t.Errorf("dialled %v", d)
	}
	eventually(t, w.empty)
}

func TestLimits(t *testing.T) {
	w := newWorld(t, func(c *Config, _ *timeouts) { c.Limits.TCP, c.Limits.UDP = 3, 2 })
	w.listen("192.0.2.1:7", echo)
	w.policy(allowAll)
	first := w.mustDial("192.0.2.1:7")
	for range 2 {
		wantEcho(t, w.mustDial("192.0.2.1:7"), "hello")
	}
	w.mustRefuse("192.0.2.1:7")
	w.reportedDenied("flow", "limit of 3 tcp flows")
	if got := w.f.Stats(); got.Limited != 1 || got.TCP != 3 {
		t.Errorf("%+v", got)
	}
	first.Close()
	eventually(t, func() error {
		if s := w.f.Stats(); s.TCP != 2 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	wantEcho(t, w.mustDial("192.0.2.1:7"), "hello")
}

func TestInFlightLimit(t *testing.T) {
	dialling := make(chan struct{})
	w := newWorld(t, func(c *Config, _ *timeouts) { c.Dialer, c.Limits.InFlight = stuck{dialling}, 2 })
	w.policy(allowAll)
	result := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := w.dial("192.0.2.1:7")
			result <- err
		}()
		<-dialling
	}
	w.mustRefuse("192.0.2.1:7")
	w.reportedDenied("flow", "limit of 2 connections that are being made")
	w.policy()
	<-result
	<-result
}

func TestRateLimit(t *testing.T) {
	w := newWorld(t, func(c *Config, _ *timeouts) { c.Limits.PerSecond, c.Limits.Burst = 1, 5 })
	to := netip.MustParseAddrPort("192.0.2.1:9")
	for range 20 {
		c := w.udp(to)
		c.Write([]byte("x"))
		c.Close()
	}
	eventually(t, func() error {
		if s := w.f.Stats(); s.Denied+s.Dropped != 20 || s.Denied < 5 || s.Denied > 7 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
}

// A service at the gateway has a separate limit, and a sandbox that has reached it can still open other connections.
func TestLocalMost(t *testing.T) {
	w := newWorld(t, func(c *Config, _ *timeouts) {
		c.Local = map[uint16]func(net.Conn){80: func(c net.Conn) { io.Copy(c, c); c.Close() }, 53: func(c net.Conn) { io.Copy(c, c); c.Close() }}
		c.LocalMost = map[uint16]int{80: 2}
	})
	first := w.mustDial("10.87.0.1:80")
	w.mustDial("10.87.0.1:80")
	w.mustRefuse("10.87.0.1:80")
	w.reportedDenied("flow", "limit of 2 connections to port 80")
	for range 3 {
		wantEcho(t, w.mustDial("10.87.0.1:53"), "hello")
	}
	first.Close()
	eventually(t, func() error {
		c, err := w.dial("10.87.0.1:80")
		if err == nil {
			c.Close()
		}
		return err
	})
}
