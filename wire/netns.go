package wire

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A namespace is a network namespace with a configured TAP that no sandbox has used.
type namespace struct {
	ns    *os.File
	tap   *os.File
	nl    *netlink.Handle // a socket in the namespace
	index int             // of the TAP
}

// newNamespace makes one. It exists until Close and the close of whatever was taken out of it.
func newNamespace() (*namespace, error) {
	n := &namespace{}
	err := onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		var err error
		if n.ns, err = os.Open("/proc/thread-self/ns/net"); err != nil {
			return err
		}
		if n.tap, err = openTAP(); err != nil {
			return err
		}
		if err := unix.IoctlSetInt(int(n.tap.Fd()), unix.TUNSETPERSIST, 1); err != nil {
			return fmt.Errorf("make tap persistent: %w", err)
		}
		if n.nl, err = newHandle(); err != nil {
			return err
		}
		return n.configure()
	})
	if err != nil {
		n.Close()
		return nil, err
	}
	return n, nil
}

// Close lets go of whatever n still holds.
func (n *namespace) Close() {
	if n.ns != nil {
		n.ns.Close()
	}
	if n.tap != nil {
		n.tap.Close()
	}
	if n.nl != nil {
		n.nl.Close()
	}
}

// configure gives the TAP what gVisor, or any other stack in the sandbox, will take over. It must run in the namespace.
func (n *namespace) configure() error {
	link, err := n.nl.LinkByName(Interface)
	if err != nil {
		return fmt.Errorf("find tap: %w", err)
	}
	n.index = link.Attrs().Index
	v6 := hasIPv6()
	if v6 {
		if err := quietIPv6(); err != nil {
			return err
		}
	}
	up := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: 1}}
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"set lo up", func() error { return n.nl.LinkSetUp(up) }},
		{"set link address", func() error { return n.nl.LinkSetHardwareAddr(link, net.HardwareAddr(sandboxMAC)) }},
		{"set mtu", func() error { return n.nl.LinkSetMTU(link, MTU) }},
		{"set tap up", func() error { return n.nl.LinkSetUp(link) }},
		{"configure ipv4", func() error { return n.address(SandboxIPv4, GatewayIPv4, bitsIPv4, 32) }},
		{"configure ipv6", func() error {
			if !v6 {
				return nil
			}
			return n.address(SandboxIPv6, GatewayIPv6, bitsIPv6, 128)
		}},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
	}
	return nil
}

// address gives the TAP an address and a default route.
func (n *namespace) address(own, gateway string, ones, bits int) error {
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(own), Mask: net.CIDRMask(ones, bits)}}
	all := &net.IPNet{IP: make(net.IP, bits/8), Mask: net.CIDRMask(0, bits)}
	if bits == 128 {
		addr.Flags = unix.IFA_F_NODAD // there is nobody to have it already, and it would cost a second
	}
	link := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: n.index, Name: Interface}}
	if err := n.nl.AddrAdd(link, addr); err != nil {
		return err
	}
	return n.nl.RouteAdd(&netlink.Route{LinkIndex: n.index, Dst: all, Gw: net.ParseIP(gateway)})
}

// label writes a sandbox's ID on the TAP, where openNamespace looks for it.
func (n *namespace) label(id string) error {
	link := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: n.index, Name: Interface}}
	return n.nl.LinkSetAlias(link, id)
}

var errNotOurs = errors.New("not the network namespace of this sandbox")

// takeTAP opens the TAP in a namespace that newNamespace made, and that bears the label of sandbox id. Anything else is
// refused: a TAP taken for another sandbox's would let one sandbox speak as the other.
func takeTAP(ns *os.File, id string) (*os.File, error) {
	if err := notHost(ns); err != nil {
		return nil, err
	}
	var tap *os.File
	err := onThread(func() error {
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("setns: %w", err)
		}
		nl, err := newHandle()
		if err != nil {
			return err
		}
		defer nl.Close()
		link, err := nl.LinkByName(Interface)
		if err != nil {
			return fmt.Errorf("%w: find tap: %w", errNotOurs, err)
		}
		if link.Attrs().Alias != id {
			return fmt.Errorf("%w: it is labelled %.40q", errNotOurs, link.Attrs().Alias)
		}
		tap, err = openTAP()
		return err
	})
	if err != nil {
		return nil, err
	}
	return tap, nil
}

// notHost refuses the engine's own network namespace.
func notHost(ns *os.File) error {
	var own, other unix.Stat_t
	if err := unix.Stat("/proc/self/ns/net", &own); err != nil {
		return fmt.Errorf("own network namespace: %w", err)
	}
	if err := unix.Fstat(int(ns.Fd()), &other); err != nil {
		return err
	}
	if own.Dev == other.Dev && own.Ino == other.Ino {
		return fmt.Errorf("%w: it is the host's", errNotOurs)
	}
	return nil
}

// openTAP opens the TAP of the calling thread's namespace, and makes it if there is none.
func openTAP() (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/net/tun: %w", err)
	}
	ifr, err := unix.NewIfreq(Interface)
	if err == nil {
		ifr.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		err = attach(fd, ifr)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("attach tap: %w", err)
	}
	// It is still blocking, which keeps it out of this process's poller: the engine never reads it.
	return os.NewFile(uintptr(fd), "tap"), nil
}

// attach waits a moment for the TAP's last holder to let go: the kernel drops the descriptors of a process, and those
// under way in a socket, shortly after its death.
func attach(fd int, ifr *unix.Ifreq) error {
	const patience, pause = time.Second, 2 * time.Millisecond
	for end := time.Now().Add(patience); ; time.Sleep(pause) {
		err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr)
		if err != unix.EBUSY || time.Now().After(end) {
			return err
		}
	}
}

// newHandle opens a netlink socket in the calling thread's namespace.
func newHandle() (*netlink.Handle, error) {
	nl, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	if err := nl.SetSocketTimeout(10 * time.Second); err != nil {
		nl.Close()
		return nil, fmt.Errorf("netlink: %w", err)
	}
	return nl, nil
}

// hasIPv6 says whether this kernel does IPv6. Where it was turned off at boot, wires are IPv4 only.
func hasIPv6() bool {
	_, err := os.Stat("/proc/sys/net/ipv6")
	return err == nil
}

// quietIPv6 keeps the kernel, which only lends the interface, from speaking on it of its own accord: no link-local address, no
// solicitations. A host that turns IPv6 off by default is overruled for this one interface.
func quietIPv6() error {
	for _, s := range []struct{ name, value string }{
		{"disable_ipv6", "0"}, {"addr_gen_mode", "1"}, {"accept_ra", "0"}, {"accept_dad", "0"},
	} {
		if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+Interface+"/"+s.name, []byte(s.value), 0); err != nil {
			return fmt.Errorf("sysctl: %w", err)
		}
	}
	return nil
}

// onThread runs f on an OS thread that may change its namespaces, because it ends with f.
func onThread(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the runtime destroys the thread
		if unix.Gettid() != unix.Getpid() {
			result <- f()
			return
		}
		// The main thread cannot be destroyed, and what /proc shows of the process is its namespaces. While it is held
		// here, another goroutine gets another thread.
		defer runtime.UnlockOSThread()
		result <- onThread(f)
	}()
	return <-result
}
