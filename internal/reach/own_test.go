package reach

import (
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/osthread"
	"github.com/caisson-dev/caisson/internal/testneed"
)

// mapped returns all forms in which an IPv4 address can be written as an IPv6 address.
func mapped(a netip.Addr) []netip.Addr {
	b := a.As4()
	at := func(prefix string, bytes ...int) netip.Addr {
		out := netip.MustParseAddr(prefix).As16()
		for i, to := range bytes {
			out[to] = b[i]
		}
		return netip.AddrFrom16(out)
	}
	teredo := at("2001:0:c633:640a::", 12, 13, 14, 15).As16()
	for i := 12; i < 16; i++ {
		teredo[i] = ^teredo[i]
	}
	return []netip.Addr{
		at("::ffff:0:0", 12, 13, 14, 15), at("::", 12, 13, 14, 15), at("::ffff:0:0:0", 12, 13, 14, 15), at("64:ff9b::", 12, 13, 14, 15),
		at("64:ff9b:1::", 12, 13, 14, 15), at("64:ff9b:1::", 6, 7, 9, 10), at("64:ff9b:1::", 7, 9, 10, 11), at("64:ff9b:1::", 9, 10, 11, 12),
		at("2002::1", 2, 3, 4, 5), at("2001::1", 4, 5, 6, 7), netip.AddrFrom16(teredo),
	}
}

// inNamespace calls fn in a network namespace with only a loopback interface, and returns its error.
func inNamespace(t *testing.T, fn func(lo netlink.Link) error) {
	t.Helper()
	testneed.Root(t)
	err := osthread.Do(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetUp(lo), fn(lo))
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestOwnRoutes tests that addresses without an interface are own while a route makes them so.
func TestOwnRoutes(t *testing.T) {
	t.Parallel()
	inNamespace(t, func(lo netlink.Link) error {
		for _, prefix := range []string{"2606:4700:1::/64", "203.0.113.0/24"} {
			a := netip.MustParsePrefix(prefix).Addr().Next().Next()
			_, dst, err := net.ParseCIDR(prefix)
			if err != nil {
				return err
			}
			const localTable = 255
			route := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: dst, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST, Table: localTable}
			for _, want := range []bool{true, false} {
				if want {
					err = netlink.RouteAdd(route)
				} else {
					err = netlink.RouteDel(route)
				}
				if err != nil {
					return err
				}
				if own, err := (Host{}).IsOwn(a); own != want || err != nil && !NoRoute(err) {
					t.Errorf("%s is own: %t, %v; want %t", a, own, err, want)
				}
			}
		}
		return nil
	})
}

// TestOwnComesAndGoes tests that an address is own, in every form, from its assignment to an interface until its
// removal.
func TestOwnComesAndGoes(t *testing.T) {
	t.Parallel()
	const own4, own6 = "203.0.113.2", "2606:4700::2"
	inNamespace(t, func(lo netlink.Link) error {
		expect := func(when string, want bool) {
			for _, a := range append(mapped(netip.MustParseAddr(own4)), netip.MustParseAddr(own4), netip.MustParseAddr(own6)) {
				if own, err := (Host{}).IsOwn(a); own != want || err != nil && !NoRoute(err) {
					t.Errorf("%s, %s is own: %t, %v", when, a, own, err)
				}
				if err := (Host{}).Check(a, false, false); want && caisson.KindOf(err) != caisson.Denied || !want && Public(a) && err != nil {
					t.Errorf("%s, check of %s: %v", when, a, err)
				}
				if err := (Host{}).Check(a, false, true); err != nil { // On behalf of the machine itself.
					t.Errorf("%s, local check of %s: %v", when, a, err)
				}
			}
		}
		expect("before", false)
		for _, s := range []string{own4 + "/32", own6 + "/128"} {
			a, err := netlink.ParseAddr(s)
			if err != nil {
				return err
			}
			a.Flags = unix.IFA_F_NODAD
			if err := netlink.AddrAdd(lo, a); err != nil {
				return err
			}
			defer netlink.AddrDel(lo, a)
		}
		expect("with the addresses", true)
		for _, s := range []string{own4 + "/32", own6 + "/128"} {
			a, err := netlink.ParseAddr(s)
			if err != nil {
				return err
			}
			if err := netlink.AddrDel(lo, a); err != nil {
				return err
			}
		}
		expect("after", false)
		return nil
	})
}

// TestOwnBehindNonlocalBind tests that if processes may bind to addresses that are not the host's, secondary addresses
// of an interface and addresses that are own because of a route are detected by their route.
func TestOwnBehindNonlocalBind(t *testing.T) {
	t.Parallel()
	inNamespace(t, func(lo netlink.Link) error {
		for _, family := range []string{"ipv4", "ipv6"} {
			if err := os.WriteFile("/proc/sys/net/"+family+"/ip_nonlocal_bind", []byte("1"), 0); err != nil {
				return err
			}
		}
		out := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "out0"}, Mode: netlink.TUNTAP_MODE_TAP}
		if err := errors.Join(netlink.LinkAdd(out), netlink.LinkSetUp(out)); err != nil {
			return err
		}
		for _, s := range []string{"203.0.113.2/24", "203.0.113.3/24", "2606:4700::2/64", "2606:4700::3/64"} {
			a, err := netlink.ParseAddr(s)
			if err != nil {
				return err
			}
			a.Flags = unix.IFA_F_NODAD
			if err := netlink.AddrAdd(out, a); err != nil {
				return err
			}
		}
		for a, want := range map[string]bool{
			"203.0.113.2": true, "203.0.113.3": true, "203.0.113.4": false,
			"2606:4700::2": true, "2606:4700::3": true, "2606:4700::4": false,
		} {
			if own, err := (Host{}).IsOwn(netip.MustParseAddr(a)); own != want || err != nil {
				t.Errorf("%s is own: %t, %v; want %t", a, own, err, want)
			}
		}
		return nil
	})
}

// TestPublicAddresses tests that configured addresses are own in every form although no interface has them, also after
// encoding for a worker job.
func TestPublicAddresses(t *testing.T) {
	t.Parallel()
	text, err := json.Marshal(Host{PublicAddresses: []netip.Prefix{netip.MustParsePrefix("198.51.100.16/28"), netip.MustParsePrefix("2606:4700::16/128")}})
	if err != nil {
		t.Fatal(err)
	}
	var h Host
	if err := json.Unmarshal(text, &h); err != nil {
		t.Fatal(err)
	}
	own := append(mapped(netip.MustParseAddr("198.51.100.31")), netip.MustParseAddr("198.51.100.16"), netip.MustParseAddr("2606:4700::16"))
	for _, a := range own {
		if own, err := h.IsOwn(a); !own || err != nil {
			t.Errorf("%s: %t, %v", a, own, err)
		}
		if err := h.Check(a, false, false); caisson.KindOf(err) != caisson.Denied {
			t.Errorf("check of %s: %v", a, err)
		}
	}
	for _, a := range append(mapped(netip.MustParseAddr("198.51.100.32")), netip.MustParseAddr("198.51.100.15"), netip.MustParseAddr("2606:4700::17")) {
		if h.Listed(a) {
			t.Errorf("%s is listed", a)
		}
	}
}

// TestOwnAddressOfThisHost tests that no connection to a service of the host is made, and that the errors are the same
// whether or not the port is open.
func TestOwnAddressOfThisHost(t *testing.T) {
	t.Parallel()
	inNamespace(t, func(lo netlink.Link) error {
		a, err := netlink.ParseAddr("203.0.113.2/32")
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(lo, a); err != nil {
			return err
		}
		open, err := net.Listen("tcp4", "203.0.113.2:0")
		if err != nil {
			return err
		}
		defer open.Close()
		closed, err := net.Listen("tcp4", "203.0.113.2:0")
		if err != nil {
			return err
		}
		closed.Close()
		d := Dialer(time.Minute, func(ap netip.AddrPort) error { return Host{}.Check(ap.Addr(), false, false) })
		var said []string
		for _, to := range []net.Addr{open.Addr(), closed.Addr()} {
			c, err := d.DialContext(t.Context(), "tcp", to.String())
			if err == nil {
				c.Close()
			}
			denied, ok := errors.AsType[*caisson.Error](err)
			if !ok || denied.Kind != caisson.Denied {
				t.Errorf("%s: %v", to, err)
				continue
			}
			said = append(said, denied.Error())
		}
		if len(slices.Compact(said)) != 1 {
			t.Errorf("the errors differ: %q", said)
		}
		return nil
	})
}
