package wire

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/osthread"
)

// newNamespace creates a network namespace with a configured TAP for sandbox id. The namespace exists until ns, tap and all other
// references to it are closed.
func newNamespace(id string) (ns, tap *os.File, err error) {
	defer func() {
		if err != nil {
			closeAll(ns, tap)
			ns, tap = nil, nil
		}
	}()
	err = osthread.Do(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		var err error
		if ns, err = os.Open("/proc/thread-self/ns/net"); err != nil {
			return err
		}
		if tap, err = openTAP(); err != nil {
			return err
		}
		if err := unix.IoctlSetInt(int(tap.Fd()), unix.TUNSETPERSIST, 1); err != nil {
			return fmt.Errorf("make tap persistent: %w", err)
		}
		return configureNamespace(id)
	})
	return ns, tap, err
}

// closeAll closes the files that are not nil.
func closeAll(files ...*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}

// configureNamespace prepares the calling thread's namespace: it labels the TAP with the sandbox's ID, which openLabelledTAP
// checks, and configures the addresses and routes that gVisor, or another stack in the sandbox, takes over.
func configureNamespace(id string) error {
	nl, err := newHandle()
	if err != nil {
		return err
	}
	defer nl.Close()
	tap, err := nl.LinkByName(Interface)
	if err != nil {
		return fmt.Errorf("find tap: %w", err)
	}
	v6 := hasIPv6()
	if v6 {
		if err := configureIPv6(); err != nil {
			return err
		}
	}
	lo := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: 1}} // the loopback interface has index 1 in every namespace
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"set lo up", func() error { return nl.LinkSetUp(lo) }},
		{"label tap", func() error { return nl.LinkSetAlias(tap, id) }},
		{"set link address", func() error { return nl.LinkSetHardwareAddr(tap, net.HardwareAddr(sandboxMAC)) }},
		{"set mtu", func() error { return nl.LinkSetMTU(tap, MTU) }},
		{"set queue", func() error { return nl.LinkSetTxQLen(tap, queueLen) }},
		{"set tap up", func() error { return nl.LinkSetUp(tap) }},
		{"configure ipv4", func() error { return addAddress(nl, tap, SandboxIPv4, GatewayIPv4, bitsIPv4, 32) }},
		{"configure ipv6", func() error {
			if !v6 {
				return nil
			}
			return addAddress(nl, tap, SandboxIPv6, GatewayIPv6, bitsIPv6, 128)
		}},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
	}
	return nil
}

// addAddress adds an address and a default route to the TAP.
func addAddress(nl *netlink.Handle, tap netlink.Link, own, gateway string, ones, bits int) error {
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(own), Mask: net.CIDRMask(ones, bits)}}
	if bits == 128 {
		addr.Flags = unix.IFA_F_NODAD // the TAP has no other hosts, and duplicate address detection would take a second
	}
	if err := nl.AddrAdd(tap, addr); err != nil {
		return err
	}
	all := &net.IPNet{IP: make(net.IP, bits/8), Mask: net.CIDRMask(0, bits)}
	return nl.RouteAdd(&netlink.Route{LinkIndex: tap.Attrs().Index, Dst: all, Gw: net.ParseIP(gateway)})
}

// errWrongNamespace reports a network namespace that newNamespace did not create for the given sandbox.
var errWrongNamespace = errors.New("not the network namespace of this sandbox")

// openLabelledTAP opens the TAP of a namespace that newNamespace created with the label of sandbox id. It returns
// errWrongNamespace for any other namespace: with the wrong TAP, frames of one sandbox would be treated as those of another.
func openLabelledTAP(ns *os.File, id string) (*os.File, error) {
	if err := checkNotHost(ns); err != nil {
		return nil, err
	}
	var tap *os.File
	err := osthread.Do(func() error {
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
			return fmt.Errorf("%w: find tap: %w", errWrongNamespace, err)
		}
		if link.Attrs().Alias != id {
			return fmt.Errorf("%w: it is labelled %.40q", errWrongNamespace, link.Attrs().Alias)
		}
		tap, err = openTAP()
		return err
	})
	if err != nil {
		return nil, err
	}
	return tap, nil
}

// checkNotHost returns errWrongNamespace if ns is the engine's network namespace.
func checkNotHost(ns *os.File) error {
	var own, other unix.Stat_t
	if err := unix.Stat("/proc/self/ns/net", &own); err != nil {
		return fmt.Errorf("own network namespace: %w", err)
	}
	if err := unix.Fstat(int(ns.Fd()), &other); err != nil {
		return err
	}
	if own.Dev == other.Dev && own.Ino == other.Ino {
		return fmt.Errorf("%w: it is the host's", errWrongNamespace)
	}
	return nil
}

// openTAP opens the TAP of the calling thread's namespace, and creates it if it does not exist.
func openTAP() (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/net/tun: %w", err)
	}
	ifr, err := unix.NewIfreq(Interface)
	if err == nil {
		ifr.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		err = attachTAP(fd, ifr)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("attach tap: %w", err)
	}
	// The descriptor stays in blocking mode, so Go does not add it to the poller: the engine never reads from it.
	return os.NewFile(uintptr(fd), "tap"), nil
}

// attachTAP attaches fd to the TAP that ifr names. It retries for up to a second while the TAP is busy: the kernel closes with a
// delay the descriptors of a dead process, and those in flight in a socket.
func attachTAP(fd int, ifr *unix.Ifreq) error {
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

// hasIPv6 reports whether this kernel supports IPv6. If it was disabled at boot, wires have IPv4 only.
func hasIPv6() bool {
	_, err := os.Stat("/proc/sys/net/ipv6")
	return err == nil
}

// configureIPv6 keeps the kernel from sending packets on the interface by itself: no link-local address, no solicitations. It
// enables IPv6 for this interface even if the host disables it by default.
func configureIPv6() error {
	for _, s := range []struct{ name, value string }{
		{"disable_ipv6", "0"}, {"addr_gen_mode", "1"}, {"accept_ra", "0"}, {"accept_dad", "0"},
	} {
		if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+Interface+"/"+s.name, []byte(s.value), 0); err != nil {
			return fmt.Errorf("sysctl: %w", err)
		}
	}
	return nil
}
