package flow

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	caisson "github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
)

const (
	nic      = 1
	mtu      = 65520
	patience = time.Minute // longer than any operation that does not hang
)

var (
	guest4, gateway4 = netip.MustParseAddr("10.87.0.2"), netip.MustParseAddr("10.87.0.1")
	guest6, gateway6 = netip.MustParseAddr("fdca:1550:a87::2"), netip.MustParseAddr("fdca:1550:a87::1")
)

// A testWorld is a sandbox's stack, a wire's stack with a Forwarder, and listeners on loopback that are reachable by other
// addresses.
type testWorld struct {
	t     testing.TB
	f     *Forwarder
	guest *stack.Stack
	wire  *channel.Endpoint // packets injected here arrive at the Forwarder's stack

	mu        sync.Mutex
	rules     []func(caisson.Flow) *caisson.Verdict // the first one with a result decides
	names     map[netip.Addr][]string
	hosts     map[netip.AddrPort]netip.AddrPort // real destinations of dials
	own       map[netip.Addr]bool
	dialled   []netip.AddrPort
	decisions []caisson.Decision
}

func newWorld(t testing.TB, change ...func(*Config, *timeouts)) *testWorld {
	t.Helper()
	before := runtime.NumGoroutine()
	w := &testWorld{
		t: t, names: map[netip.Addr][]string{}, hosts: map[netip.AddrPort]netip.AddrPort{}, own: map[netip.Addr]bool{},
	}
	far := newStack()
	near := newStack()
	cfg := Config{
		Stack: far, NIC: nic, Gateway: []netip.Addr{gateway4, gateway6},
		Decide: w.decide, Names: w.namesOf, Dialer: w, Report: w.report,
	}
	times := defaultTimeouts()
	for _, c := range change {
		c(&cfg, &times)
	}
	f, err := newForwarder(cfg, times)
	if err != nil {
		t.Fatal(err)
	}
	a, b := channel.New(4096, mtu, ""), channel.New(4096, mtu, "")
	setup(t, far, a, gateway4, gateway6)
	far.SetPromiscuousMode(nic, true)
	far.SetSpoofing(nic, true)
	setup(t, near, b, guest4, guest6)
	ctx, cancel := context.WithCancel(context.Background())
	var pumps sync.WaitGroup
	pumps.Go(func() { pump(ctx, a, b) })
	pumps.Go(func() { pump(ctx, b, a) })
	w.f, w.guest, w.wire = f, near, a
	t.Cleanup(func() {
		f.Close()
		if s := f.Stats(); s.TCP != 0 || s.UDP != 0 || s.InFlight != 0 {
			t.Errorf("after Close there are %+v", s)
		}
		cancel()
		pumps.Wait()
		for _, s := range []*stack.Stack{near, far} {
			s.RemoveNIC(nic)
			s.Destroy()
		}
		if _, fuzzing := t.(*testing.F); fuzzing {
			return // it leaves goroutines
		}
		eventually(t, func() error {
			if n := runtime.NumGoroutine(); n > before {
				return fmt.Errorf("%d goroutines, there were %d\n%s", n, before, stacks())
			}
			return nil
		})
	})
	return w
}

func stacks() string {
	buf := make([]byte, 1<<20)
	return string(buf[:runtime.Stack(buf, true)])
}

func newStack() *stack.Stack {
	return stack.New(stack.Options{
		NetworkProtocols: []stack.NetworkProtocolFactory{
			// So that the sandbox's host, which has one interface, has more addresses for the tests.
			ipv4.NewProtocolWithOptions(ipv4.Options{AllowExternalLoopbackTraffic: true}),
			ipv6.NewProtocol,
		},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol},
	})
}

func setup(t testing.TB, s *stack.Stack, link stack.LinkEndpoint, addrs ...netip.Addr) {
	if err := s.CreateNIC(nic, link); err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		proto, all := protocol(a)
		own := tcpip.ProtocolAddress{Protocol: proto, AddressWithPrefix: tcpip.AddrFromSlice(a.AsSlice()).WithPrefix()}
		if err := s.AddProtocolAddress(nic, own, stack.AddressProperties{}); err != nil {
			t.Fatal(err)
		}
		s.AddRoute(tcpip.Route{Destination: all, NIC: nic})
	}
}

func protocol(a netip.Addr) (tcpip.NetworkProtocolNumber, tcpip.Subnet) {
	if a.Is4() {
		return ipv4.ProtocolNumber, header.IPv4EmptySubnet
	}
	return ipv6.ProtocolNumber, header.IPv6EmptySubnet
}

func pump(ctx context.Context, from, to *channel.Endpoint) {
	for {
		pkt := from.ReadContext(ctx)
		if pkt == nil {
			return
		}
		c := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithView(pkt.ToView())})
		to.InjectInbound(pkt.NetworkProtocolNumber, c)
		c.DecRef()
		pkt.DecRef()
	}
}

func eventually(t testing.TB, check func() error) {
	t.Helper()
	var err error
	defer func() {
		if err != nil {
			t.Log(err)
		}
	}()
	poll.Until(t, patience, func() bool {
		err = check()
		return err == nil
	})
}

func (w *testWorld) decide(f caisson.Flow) caisson.Verdict {
	w.mu.Lock()
	rules := slices.Clone(w.rules)
	w.mu.Unlock()
	for i, r := range rules {
		if v := r(f); v != nil {
			v.Rule = i
			v.Reason = fmt.Sprintf("rule %d", i)
			return *v
		}
	}
	return caisson.Verdict{Rule: -1, Reason: "no rule allows it"}
}

// policy replaces the rules, as a policy change does.
func (w *testWorld) policy(rules ...func(caisson.Flow) *caisson.Verdict) {
	w.mu.Lock()
	w.rules = rules
	w.mu.Unlock()
	w.f.Recheck()
}

func allowAddr(addr string) func(caisson.Flow) *caisson.Verdict {
	return func(f caisson.Flow) *caisson.Verdict {
		if f.Dst.Addr() == netip.MustParseAddr(addr) {
			return &caisson.Verdict{Allowed: true, Exact: true}
		}
		return nil
	}
}

func allowAll(caisson.Flow) *caisson.Verdict { return &caisson.Verdict{Allowed: true} }

func allowName(names ...string) func(caisson.Flow) *caisson.Verdict {
	return func(f caisson.Flow) *caisson.Verdict {
		for _, n := range f.Names {
			if slices.Contains(names, n) {
				return &caisson.Verdict{Allowed: true, Name: n}
			}
		}
		return nil
	}
}

func (w *testWorld) namesOf(a netip.Addr) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.names[a]
}

// resolved records that names were answered with addr.
func (w *testWorld) resolved(addr string, names ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.names[netip.MustParseAddr(addr)] = names
}

func (w *testWorld) report(d caisson.Decision) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.decisions = append(w.decisions, d)
}

// reported waits for a decision.
func (w *testWorld) reported(what string, is func(caisson.Decision) bool) caisson.Decision {
	w.t.Helper()
	var found caisson.Decision
	eventually(w.t, func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if i := slices.IndexFunc(w.decisions, is); i >= 0 {
			found = w.decisions[i]
			return nil
		}
		return fmt.Errorf("no report of %s in %+v", what, w.decisions)
	})
	return found
}

func (w *testWorld) reportedDenied(kind, reason string) {
	w.t.Helper()
	w.reported("denied "+kind+": "+reason, func(d caisson.Decision) bool {
		return d.Kind == kind && !d.Allowed && d.Count == 1 && strings.Contains(d.Reason, reason)
	})
}

func (w *testWorld) Own(a netip.Addr) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.own[a], nil
}

func (w *testWorld) dials() []netip.AddrPort {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.dialled)
}

func (w *testWorld) where(dst netip.AddrPort) netip.AddrPort {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dialled = append(w.dialled, dst)
	if to, ok := w.hosts[dst]; ok {
		return to
	}
	return netip.MustParseAddrPort("127.0.0.1:1") // refuses
}

func (w *testWorld) DialTCP(ctx context.Context, dst netip.AddrPort) (*net.TCPConn, error) {
	return (&net.Dialer{}).DialTCP(ctx, "tcp", netip.AddrPort{}, w.where(dst))
}

func (w *testWorld) DialUDP(ctx context.Context, dst netip.AddrPort) (*net.UDPConn, error) {
	return (&net.Dialer{}).DialUDP(ctx, "udp", netip.AddrPort{}, w.where(dst))
}

// listen calls serve for each connection to addr.
func (w *testWorld) listen(addr string, serve func(*net.TCPConn)) {
	w.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	w.mu.Lock()
	w.hosts[netip.MustParseAddrPort(addr)] = l.Addr().(*net.TCPAddr).AddrPort()
	w.mu.Unlock()
	var serving sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
			serving.Go(func() {
				defer c.Close()
				serve(c.(*net.TCPConn))
			})
		}
	})
	w.t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, c := range conns {
			c.Close()
		}
		mu.Unlock()
		serving.Wait()
	})
}

func echo(c *net.TCPConn) {
	io.Copy(c, c)
	c.CloseWrite()
}

func full(a netip.AddrPort) tcpip.FullAddress {
	return tcpip.FullAddress{NIC: nic, Addr: tcpip.AddrFromSlice(a.Addr().AsSlice()), Port: a.Port()}
}

// dial connects from the sandbox.
func (w *testWorld) dial(addr string) (*gonet.TCPConn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	to := netip.MustParseAddrPort(addr)
	proto, _ := protocol(to.Addr())
	return gonet.DialContextTCP(ctx, w.guest, full(to), proto)
}

func (w *testWorld) mustDial(addr string) *gonet.TCPConn {
	w.t.Helper()
	c, err := w.dial(addr)
	if err != nil {
		w.t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(patience))
	w.t.Cleanup(func() { c.Close() })
	return c
}

func (w *testWorld) mustRefuse(addr string) {
	w.t.Helper()
	c, err := w.dial(addr)
	if err == nil {
		c.Close()
		w.t.Fatalf("%s: connected", addr)
	}
	if !strings.Contains(err.Error(), "refused") {
		w.t.Fatalf("%s: %v, want a refusal", addr, err)
	}
}

// wantEnd checks that c ends without more data.
func wantEnd(t testing.TB, c net.Conn) {
	t.Helper()
	n, err := c.Read(make([]byte, 1))
	if n != 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) || isTimeout(err) {
		t.Fatalf("read %d, %v; want the end", n, err)
	}
}

func wantEcho(t testing.TB, c net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	wantRead(t, c, text)
}

func wantRead(t testing.TB, c io.Reader, text string) {
	t.Helper()
	got := make([]byte, len(text))
	if n, err := io.ReadFull(c, got); err != nil || string(got) != text {
		t.Fatalf("read %q, %v; want %q", got[:n], err, text)
	}
}
