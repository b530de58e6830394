package test_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/testneed"
)

// Addresses and names in a world. Addresses for documentation represent the public internet; policies do not treat them
// specially.
const (
	hostAddr4, hostAddr6     = "203.0.113.2", "2001:db8:1::2" // The host's addresses on its uplink.
	routerAddr4, routerAddr6 = "203.0.113.1", "2001:db8:1::1"
	nameserverAddr           = "198.51.100.53"
	goodAddr4, goodAddr6     = "198.51.100.10", "2001:db8:10::10"
	badAddr4, badAddr6       = "198.51.100.20", "2001:db8:10::20"

	goodName   = "good.example.net"
	sharedName = "shared.example.net" // Another name of good's addresses.
	badName    = "bad.example.org"
)

// lanAddrs are the host's addresses on a local network.
var lanAddrs = []string{"192.168.77.1", "10.99.0.1", "100.64.9.1", "172.16.5.1", "fd12:3456::1"}

// A world is a host and everything beyond it, each in a separate network namespace, joined by an uplink and a local
// network. The daemon runs on that host. Every packet that leaves it, or goes from it to itself, is recorded.
type world struct {
	*host
	inside, beyond *place
	resolver       *fakeDNS
	out            []*sniffer // Packets that leave the host by the uplink and the local network.
	self           *sniffer   // Packets from the host to itself.
}

// A place is a thread in separate namespaces.
type place struct {
	do   chan func()
	done chan struct{}
	netf *os.File // Its network namespace.
}

// newPlace creates a place in new namespaces. Its thread, and so everything that only it holds, ends with the test.
func newPlace(t testing.TB, setup func() error) *place {
	t.Helper()
	return startPlace(t, func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS); err != nil {
			return err
		}
		return errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), setup())
	})
}

// placeOf returns a place in the network namespace of a process.
func placeOf(t testing.TB, pid int) *place {
	t.Helper()
	return startPlace(t, func() error {
		f, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
		if err != nil {
			return err
		}
		defer f.Close()
		return unix.Setns(int(f.Fd()), unix.CLONE_NEWNET)
	})
}

func startPlace(t testing.TB, setup func() error) *place {
	t.Helper()
	p := &place{do: make(chan func()), done: make(chan struct{})}
	ready := make(chan error)
	go p.live(ready, setup)
	if err := <-ready; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		close(p.do)
		<-p.done
		p.netf.Close()
	})
	return p
}

func (p *place) live(ready chan<- error, setup func() error) {
	runtime.LockOSThread() // The thread is not unlocked, so that it is not used again.
	if unix.Gettid() == unix.Getpid() {
		// The main thread cannot end, and represents the process in /proc.
		go p.live(ready, setup)
		<-p.done
		runtime.UnlockOSThread()
		return
	}
	defer close(p.done)
	err := setup()
	if err == nil {
		p.netf, err = os.Open("/proc/thread-self/ns/net")
	}
	ready <- err
	if err != nil {
		return
	}
	for fn := range p.do {
		fn()
	}
}

// run calls fn in the place.
func (p *place) run(fn func() error) error {
	result := make(chan error)
	p.do <- func() { result <- fn() }
	return <-result
}

// newWorld creates a world. Its daemon is started with serve.
func newWorld(t testing.TB) *world {
	t.Helper()
	h := newHost(t)
	w := &world{host: h}
	resolv := h.write("resolv.conf", "nameserver "+nameserverAddr+"\n")
	w.beyond = newPlace(t, func() error { return up("lo") })
	w.inside = newPlace(t, func() error {
		// /sys still shows the network namespace of the test, but no test reads it there.
		return errors.Join(unix.Mount(resolv, "/etc/resolv.conf", "", unix.MS_BIND, ""), up("lo"))
	})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	err := w.inside.run(func() error {
		for _, name := range []string{"up", "lan"} {
			attrs := netlink.NewLinkAttrs()
			attrs.Name = name + "0"
			far := netlink.NsFd(w.beyond.netf.Fd())
			if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: name + "1", PeerNamespace: far}); err != nil {
				return fmt.Errorf("add %s: %w", name, err)
			}
		}
		return errors.Join(addresses("up0", hostAddr4+"/24", hostAddr6+"/64"), addresses("lan0", withBits(lanAddrs)...), up("up0"), up("lan0"))
	})
	if errors.Is(err, unix.EOPNOTSUPP) {
		testneed.Skip(t, "veth", "this kernel has no veth devices")
	}
	must(err)
	must(w.beyond.run(func() error {
		return errors.Join(addresses("up1", routerAddr4+"/24", routerAddr6+"/64"), up("up1"), up("lan1"),
			addresses("lo", nameserverAddr+"/32", goodAddr4+"/32", badAddr4+"/32", goodAddr6+"/128", badAddr6+"/128"))
	}))
	must(w.inside.run(func() error {
		link, err := netlink.LinkByName("up0")
		if err != nil {
			return err
		}
		for _, via := range []string{routerAddr4, routerAddr6} {
			if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: net.ParseIP(via)}); err != nil {
				return fmt.Errorf("route via %s: %w", via, err)
			}
		}
		return nil
	}))
	w.start = func(cmd *exec.Cmd) error { return w.inside.run(cmd.Start) }
	w.out = []*sniffer{newSniffer(t, w.beyond, "up1"), newSniffer(t, w.beyond, "lan1")}
	w.self = newSniffer(t, w.inside, "lo")
	w.beyond.listenPacket(t, markOut)
	w.inside.listenPacket(t, markLo)
	w.resolver = newFakeDNS(t, w)
	w.serveWeb(t)
	return w
}

func up(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(link)
}

// addresses assigns addresses to a link, usable immediately.
func addresses(name string, list ...string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	for _, s := range list {
		a, err := netlink.ParseAddr(s)
		if err != nil {
			return err
		}
		a.Flags = unix.IFA_F_NODAD
		if err := netlink.AddrAdd(link, a); err != nil {
			return fmt.Errorf("add %s to %s: %w", s, name, err)
		}
	}
	return nil
}

func withBits(addrs []string) (list []string) {
	for _, a := range addrs {
		bits := "/24"
		if netip.MustParseAddr(a).Is6() {
			bits = "/64"
		}
		list = append(list, a+bits)
	}
	return list
}

// hostAddrs returns all addresses of the host.
func hostAddrs() []string {
	return append([]string{"127.0.0.1", "::1", hostAddr4, hostAddr6}, lanAddrs...)
}

// listen listens on a TCP address in a place.
func (p *place) listen(t testing.TB, addr string) (l net.Listener) {
	t.Helper()
	if err := p.run(func() (err error) {
		l, err = net.Listen("tcp", addr)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// listenPacket is listen for UDP.
func (p *place) listenPacket(t testing.TB, addr string) (c net.PacketConn) {
	t.Helper()
	if err := p.run(func() (err error) {
		c, err = net.ListenPacket("udp", addr)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// buildProbe builds the probe program and returns its path.
func buildProbe(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "probe")
	cmd := exec.Command("go", "build", "-trimpath", "-o", path, "./testdata/probe")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the probe: %v\n%s", err, out)
	}
	return path
}
