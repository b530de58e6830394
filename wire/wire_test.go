package wire

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	caisson "github.com/caisson-dev/caisson"

	"github.com/caisson-dev/caisson/internal/osthread"
	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/internal/testneed"
)

func needWire(t testing.TB) {
	t.Helper()
	testneed.Root(t)
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		testneed.Skip(t, "tun", err.Error())
	}
}

// A world is a running Manager with the state of a runtime.
type world struct {
	*Manager
	stop func() // stops Run and waits for it

	mu sync.Mutex
	ns map[caisson.ID]*os.File
}

// setup configures a Manager and its handlers.
type setup struct {
	Config
	Handlers
}

func newWorld(t testing.TB, change ...func(*setup)) *world {
	t.Helper()
	needWire(t)
	w := &world{ns: map[caisson.ID]*os.File{}}
	s := setup{Config{Exe: helper, NetNS: w.netns, Log: slog.New(slog.NewTextHandler(testWriter{t}, nil))}, Handlers{Settings: noSettings}}
	for _, c := range change {
		c(&s)
	}
	m, err := New(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx, s.Handlers) }()
	w.Manager = m
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		w.stop()
		for _, f := range w.ns {
			f.Close()
		}
	})
	return w
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// netns returns what a runtime returns: a new descriptor of the sandbox's namespace.
func (w *world) netns(id caisson.ID) (*os.File, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := w.ns[id]
	if f == nil {
		return nil, caisson.Errorf(caisson.NotFound, "no sandbox %s", id)
	}
	return os.Open(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
}

// attach attaches a sandbox, which consists only of the namespace.
func (w *world) attach(t testing.TB) (caisson.ID, *os.File) {
	t.Helper()
	id := caisson.NewID(caisson.SandboxPrefix)
	ns, err := w.Attach(t.Context(), id, specOf(id))
	if err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	w.ns[id] = ns
	w.mu.Unlock()
	return id, ns
}

func (w *world) pid(t testing.TB) int {
	t.Helper()
	l, err := w.awaitLink(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return l.pid
}

// inside runs f in a namespace. f must not start goroutines that make network system calls.
func inside(t testing.TB, ns *os.File, f func() error) error {
	t.Helper()
	return osthread.Do(func() error {
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return err
		}
		return f()
	})
}

// eventually waits until f returns nil.
func eventually(t testing.TB, f func() error) {
	t.Helper()
	var err error
	t.Cleanup(func() {
		if t.Failed() && err != nil {
			t.Log("last: ", err)
		}
	})
	poll.Until(t, 2*time.Minute, func() bool {
		err = f()
		return err == nil
	})
}

const deadline = 2 * time.Minute // longer than any expected event takes

func dialTCP(address string) error {
	c, err := (&net.Dialer{Timeout: deadline}).Dial("tcp", address)
	if err == nil {
		c.Close()
	}
	return err
}

func askUDP(address string) error {
	c, err := net.Dial("udp", address)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(deadline))
	if _, err := c.Write([]byte("hello")); err != nil {
		return err
	}
	_, err = c.Read(make([]byte, 16))
	return err
}

// ping sends an echo request every second and waits for a reply: the kernel drops packets while a TAP is being reopened.
func ping(address string, wait time.Duration) error {
	network, request, answer := "ip4:icmp", byte(8), byte(0)
	if strings.Contains(address, ":") {
		network, request, answer = "ip6:ipv6-icmp", 128, 129
	}
	c, err := net.Dial(network, address)
	if err != nil {
		return err
	}
	defer c.Close()
	end := time.Now().Add(wait)
	echo := []byte{request, 0, 0, 0, 'c', 'a', 0, 1, 'w', 'i', 'r', 'e'}
	if network == "ip4:icmp" { // for IPv6 the kernel sets the checksum
		sum := uint32(0)
		for i := 0; i < len(echo); i += 2 {
			sum += uint32(echo[i])<<8 | uint32(echo[i+1])
		}
		sum = ^(sum&0xffff + sum>>16)
		echo[2], echo[3] = byte(sum>>8), byte(sum)
	}
	for buf, sent := make([]byte, 1500), (time.Time{}); ; {
		if time.Since(sent) >= time.Second {
			if _, err := c.Write(echo); err != nil {
				return err
			}
			sent = time.Now()
		}
		again := sent.Add(time.Second)
		if again.After(end) {
			again = end
		}
		c.SetReadDeadline(again)
		n, _, err := c.(*net.IPConn).ReadFrom(buf) // Read would include the IPv4 header
		if errors.Is(err, os.ErrDeadlineExceeded) && time.Now().Before(end) {
			continue
		}
		if err != nil {
			return err
		}
		if n >= len(echo) && buf[0] == answer && bytes.Equal(buf[4:n], echo[4:]) {
			return nil
		}
	}
}

func TestAttachConfigures(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id, ns := w.attach(t)
	err := inside(t, ns, func() error {
		nl, err := newHandle()
		if err != nil {
			return err
		}
		defer nl.Close()
		links, err := nl.LinkList()
		if err != nil {
			return err
		}
		var names []string
		for _, l := range links {
			a := l.Attrs()
			names = append(names, a.Name)
			if a.Flags&net.FlagUp == 0 {
				t.Errorf("%s is down", a.Name)
			}
			if a.Name == Interface && (a.MTU != MTU || string(a.HardwareAddr) != sandboxMAC || a.TxQLen != queueLen || a.Alias != string(id)) {
				t.Errorf("mtu %d, address %s, alias %q", a.MTU, a.HardwareAddr, a.Alias)
			}
		}
		if got := strings.Join(names, " "); got != "lo eth0" {
			t.Errorf("interfaces %q", got)
		}
		eth, err := nl.LinkByName(Interface)
		if err != nil {
			return err
		}
		addrs, err := nl.AddrList(eth, unix.AF_UNSPEC)
		if err != nil {
			return err
		}
		var got []string
		for _, a := range addrs {
			got = append(got, a.IPNet.String())
		}
		if want := SandboxIPv4 + "/30 " + SandboxIPv6 + "/126"; strings.Join(got, " ") != want {
			t.Errorf("addresses %q, want %q", got, want)
		}
		for family, want := range map[int]string{unix.AF_INET: GatewayIPv4, unix.AF_INET6: GatewayIPv6} {
			routes, err := nl.RouteList(eth, family)
			if err != nil {
				return err
			}
			gateway := ""
			for _, r := range routes {
				if r.Gw != nil {
					gateway += r.Dst.String() + " " + r.Gw.String()
				}
			}
			if !strings.HasSuffix(gateway, "/0 "+want) {
				t.Errorf("gateway %q, want %s", gateway, want)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// hostAddresses returns an address of each kind that this machine has, with a TCP port that is in use.
func hostAddresses(t *testing.T) []string {
	t.Helper()
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Errorf("connection from %s", c.RemoteAddr())
			c.Close()
		}
	}()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	all := []string{}
	for _, a := range addrs {
		if ip := a.(*net.IPNet).IP; !ip.IsLinkLocalUnicast() {
			all = append(all, net.JoinHostPort(ip.String(), port))
		}
	}
	return all
}

func TestRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, ns := w.attach(t)
	targets := append(hostAddresses(t),
		GatewayIPv4+":81", GatewayIPv4+":5353", "["+GatewayIPv6+"]:443",
		"192.0.2.1:443", "8.8.8.8:53", "10.0.0.1:22", "169.254.169.254:80", "172.17.0.1:2375",
		"[2001:db8::1]:443", "[fd00:ec2::254]:80",
	)
	for _, target := range targets {
		for network, try := range map[string]func(string) error{"tcp": dialTCP, "udp": askUDP} {
			err := inside(t, ns, func() error { return try(target) })
			if !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("%s %s: %v, want connection refused", network, target, err)
			}
		}
	}
}

func TestPing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id, ns := w.attach(t)
	for _, gateway := range []string{GatewayIPv4, GatewayIPv6} {
		if err := inside(t, ns, func() error { return ping(gateway, deadline) }); err != nil {
			t.Errorf("ping %s: %v", gateway, err)
		}
	}
	for _, other := range []string{"192.0.2.1", "169.254.169.254", "2001:db8::1"} {
		err := inside(t, ns, func() error { return ping(other, 200*time.Millisecond) })
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("ping %s: %v, want no answer", other, err)
		}
	}
	s, err := w.Network(t.Context(), id)
	if err != nil || s.Dropped < 3 || s.BytesOut < 100 || s.BytesIn < 100 {
		t.Errorf("stats %+v, %v", s, err)
	}
}

func TestWiresAreApart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, a := w.attach(t)
	_, b := w.attach(t)
	const address = "10.99.0.1"
	var listener net.Listener
	err := inside(t, a, func() (err error) {
		nl, err := newHandle()
		if err != nil {
			return err
		}
		defer nl.Close()
		eth, err := nl.LinkByName(Interface)
		if err != nil {
			return err
		}
		if err := nl.AddrAdd(eth, &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(address), Mask: net.CIDRMask(32, 32)}}); err != nil {
			return err
		}
		listener, err = net.Listen("tcp", address+":4000")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if err := inside(t, a, func() error { return dialTCP(address + ":4000") }); err != nil {
		t.Fatalf("from its own namespace: %v", err)
	}
	if err := inside(t, b, func() error { return dialTCP(address + ":4000") }); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("from another: %v, want connection refused", err)
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	ok := Config{Exe: "/proc/self/exe", NetNS: func(caisson.ID) (*os.File, error) { return nil, nil }, Log: slog.New(slog.DiscardHandler)}
	m, err := New(ok)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Run(t.Context(), Handlers{}); caisson.KindOf(err) != caisson.Invalid {
		t.Errorf("without settings: %v, want invalid", err)
	}
	for name, change := range map[string]func(*Config){
		"exe":     func(c *Config) { c.Exe = "" },
		"missing": func(c *Config) { c.Exe = "/nonexistent" },
		"netns":   func(c *Config) { c.NetNS = nil },
		"log":     func(c *Config) { c.Log = nil },
		"uid":     func(c *Config) { c.UID = 1 << 31 },
	} {
		c := ok
		change(&c)
		if _, err := New(c); caisson.KindOf(err) != caisson.Invalid {
			t.Errorf("%s: %v, want invalid", name, err)
		}
	}
}

func TestRefusesForeignIDs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, id := range []caisson.ID{"", "sb-", "../../etc/passwd", caisson.NewID(caisson.AccountPrefix)} {
		if _, err := w.Attach(t.Context(), id, specOf(id)); caisson.KindOf(err) != caisson.Invalid {
			t.Errorf("attach %q: %v", id, err)
		}
		if err := w.Detach(t.Context(), id); err != nil {
			t.Errorf("detach %q: %v", id, err)
		}
	}
}
