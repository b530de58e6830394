package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Addresses of the range that RFC 2544 reserves for benchmarks.
const (
	hostAddress = "198.18.0.1" // Address at which sandboxes reach this network namespace; their 127.0.0.1 is their own.
	vethAddress = "198.18.1.1" // Address of the end of a veth pair that is in this network namespace.
	vethPeer    = "198.18.1.2" // Address of the other end of the veth pair.
)

// makeHostAddress brings up the loopback device of this network namespace with hostAddress. It returns an error if another device
// is up, because the namespace may then be that of the host.
func makeHostAddress() error {
	links, err := netlink.LinkList()
	if err != nil {
		return err
	}
	for _, l := range links {
		if l.Attrs().Flags&net.FlagUp != 0 {
			return fmt.Errorf("this network namespace is in use (%s is up); benchmarks need one of their own", l.Attrs().Name)
		}
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	addr, err := netlink.ParseAddr(hostAddress + "/32")
	if err != nil {
		return err
	}
	return netlink.AddrAdd(lo, addr)
}

// overVeth returns a measure that runs a client of the load program in a new network namespace, connected to this one by a veth
// pair, which has the role of a sandbox's wire.
func (s traffic) overVeth(args ...string) measure {
	return func(ctx context.Context) (samples, error) {
		return s.runLoad(ctx, args, func(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET} }, connectVeth)
	}
}

// connectVeth creates a veth pair from this network namespace to that of the process p. The pair is removed with the namespace of
// the process.
func connectVeth(p *os.Process) (err error) {
	ns, err := netns.GetFromPid(p.Pid)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ns.Close()) }()
	there, err := netlink.NewHandleAt(ns)
	if err != nil {
		return err
	}
	defer there.Close()
	here, err := netlink.NewHandle()
	if err != nil {
		return err
	}
	defer here.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "bench0"
	pair := &netlink.Veth{LinkAttrs: attrs, PeerName: "bench1", PeerNamespace: netlink.NsFd(int(ns))}
	// Remove a pair of an earlier call: the kernel may remove it later than its namespace.
	if old, err := here.LinkByName(attrs.Name); err == nil {
		if err := here.LinkDel(old); err != nil {
			return fmt.Errorf("remove the veth pair of before: %w", err)
		}
	}
	if err := here.LinkAdd(pair); err != nil {
		return fmt.Errorf("make a veth pair: %w", err)
	}
	for _, end := range []struct {
		nl         *netlink.Handle
		name, addr string
	}{{here, attrs.Name, vethAddress}, {there, pair.PeerName, vethPeer}} {
		link, err := end.nl.LinkByName(end.name)
		if err != nil {
			return err
		}
		addr, err := netlink.ParseAddr(end.addr + "/30")
		if err != nil {
			return err
		}
		if err := errors.Join(end.nl.AddrAdd(link, addr), end.nl.LinkSetUp(link)); err != nil {
			return fmt.Errorf("configure %s: %w", end.name, err)
		}
	}
	return nil
}
