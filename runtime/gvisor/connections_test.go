package gvisor

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/fdbased"
	"gvisor.dev/gvisor/pkg/tcpip/link/tun"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/internal/testneed"
)

// A link is a network namespace for a sandbox, with a TAP whose other end is a network stack with a server that accepts
// connections, keeps them open and never replies.
type link struct {
	ns    *os.File
	stack *stack.Stack
}

// Addresses of the two ends of a link.
const (
	outside = "10.99.0.1"
	within  = "10.99.0.2"
)

func newLink(t *testing.T) *link {
	t.Helper()
	if _, err := exec.LookPath("ip"); err != nil {
		testneed.Skip(t, "ip", err.Error())
	}
	l := &link{ns: newNetNS(t)}
	var tap int
	inNetNS(t, l.ns, func() (err error) {
		if tap, err = tun.OpenTAP("tap"); err != nil {
			return err
		}
		for _, args := range []string{"addr add " + within + "/24 dev tap", "link set tap up", "link set lo up"} {
			if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
				return fmt.Errorf("ip %s: %s", args, out)
			}
		}
		return nil
	})
	unix.CloseOnExec(tap)
	t.Cleanup(func() { unix.Close(tap) })
	l.stack = stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, arp.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol},
	})
	t.Cleanup(l.stack.Destroy)
	endpoint, err := fdbased.New(&fdbased.Options{
		FDs: []int{tap}, MTU: 1500, EthernetHeader: true, Address: "\x02\x00\x00\x00\x00\x01", RXChecksumOffload: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	const nic = 1
	address := tcpip.AddrFromSlice(net.ParseIP(outside).To4())
	if err := l.stack.CreateNIC(nic, endpoint); err != nil {
		t.Fatal(err)
	}
	protocolAddress := tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber, AddressWithPrefix: tcpip.AddressWithPrefix{Address: address, PrefixLen: 24}}
	if err := l.stack.AddProtocolAddress(nic, protocolAddress, stack.AddressProperties{}); err != nil {
		t.Fatal(err)
	}
	// Connections to other ports get no reply.
	l.stack.SetTransportProtocolHandler(tcp.ProtocolNumber, func(stack.TransportEndpointID, *stack.PacketBuffer) bool { return true })
	l.stack.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: nic}})
	server, err := gonet.ListenTCP(l.stack, tcpip.FullAddress{NIC: nic, Addr: address, Port: 9000}, ipv4.ProtocolNumber)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	go func() {
		for {
			c, err := server.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { c.Close() })
		}
	}()
	return l
}

func newNetNS(t *testing.T) *os.File {
	t.Helper()
	ns, err := newEmptyNetNS()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	return ns
}

// inNetNS calls f on a thread in a namespace.
func inNetNS(t *testing.T, ns *os.File, f func() error) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread exits with the goroutine
		err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
		if err == nil {
			err = f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// TestConnectionsAfterRestore checks that in a fork, connections to the outside of the sandbox are closed immediately, and that
// every kind of wait for them returns. Connections within the sandbox continue, and new ones can be made. The original keeps
// all its connections.
func TestConnectionsAfterRestore(t *testing.T) {
	t.Parallel()
	r := open(t)
	p := pythonProgram(t, "net.py")
	p.command = append(p.command, outside)
	p.netns = newLink(t).ns
	original := p.start(t, r)
	image := original.checkpoint(t)
	p.netns = newLink(t).ns
	g := p.restore(t, r, image, "")

	// Python returns b'' for EOF without an error.
	const end = "returned_b''"
	want := "connecting=ECONNABORTED epoll=" + end + " epoll_et=" + end + " fill=EPIPE half=" + end + " poll=" + end + " recv=" + end + " select=" + end
	var got string
	defer func() { t.Log(got) }()
	poll.Until(t, time.Minute, func() bool {
		got = g.ask(t, "ended")
		return got == want
	})
	for _, c := range []struct {
		g              guest
		question, want string
	}{
		{g, "later_send", "EPIPE"},
		{g, "later_recv", "returned b''"},
		{g, "loopback", "ok"},
		{g, "again", "ok"},
		{g, "datagram", "returned 1"},
		{original, "ended", "none"},
		{original, "later_send", "returned 1"},
		{original, "loopback", "ok"},
		{original, "again", "ok"},
	} {
		if a := c.g.ask(t, c.question); a != c.want {
			t.Errorf("%s: %q, want %q", c.question, a, c.want)
		}
	}
}
