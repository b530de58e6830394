package wire

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	caisson "github.com/caisson-dev/caisson"
)

var errDialled = errors.New("dialled")

// dials is a flow.Dialer that only counts its calls.
type dials struct{}

func (dials) Own(netip.Addr) (bool, error) { return false, nil }
func (dials) DialTCP(context.Context, netip.AddrPort) (*net.TCPConn, error) {
	return nil, errDialled
}
func (dials) DialUDP(context.Context, netip.AddrPort) (*net.UDPConn, error) {
	return nil, errDialled
}

// lowest returns the number of the next descriptor.
func lowest(t *testing.T) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
	return fd
}

func TestReserve(t *testing.T) {
	dst := netip.MustParseAddrPort("192.0.2.1:443")
	ask := func(r *limitedDialer) []error {
		_, tcp := r.DialTCP(t.Context(), dst)
		_, udp := r.DialUDP(t.Context(), dst)
		return []error{tcp, udp}
	}
	for _, err := range ask(newLimitedDialer(dials{}, maxDescriptors)) {
		if !errors.Is(err, errDialled) {
			t.Errorf("with room: %v", err)
		}
	}
	for _, err := range ask(&limitedDialer{dials{}, lowest(t)}) {
		if caisson.KindOf(err) != caisson.Exhausted {
			t.Errorf("without: %v", err)
		}
	}
}

// withoutDescriptors runs f while this process can open at most room more descriptors.
func withoutDescriptors(t *testing.T, room int, f func()) {
	t.Helper()
	var had unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &had); err != nil {
		t.Fatal(err)
	}
	few := had
	few.Cur = uint64(lowest(t) + room)
	if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, &few, nil); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, &had, nil); err != nil {
			t.Fatal(err)
		}
	}()
	f()
}

// TestServerWithoutDescriptors checks that a wire for which there are no descriptors is refused, without an effect on others.
func TestServerWithoutDescriptors(t *testing.T) {
	conn, done := startServer(t)
	l := newLink(conn, 0, func() { t.Error("link gave up") })
	if _, err := l.hello(); err != nil {
		t.Fatal(err)
	}
	tap, _ := pairTAP(t)
	record, err := os.OpenFile("/dev/null", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer record.Close()
	id := caisson.NewID(caisson.SandboxPrefix)
	attach := func() (status, error) {
		r, err := l.call(t.Context(), request{op: opAttach, id: id}, specOf(id), tap, record)
		return r.status, err
	}
	// With 0 no descriptor arrives; with 1 only the TAP; with 2 both, but the TAP cannot be duplicated to make it pollable.
	for room := range 3 {
		before := descriptors(t)
		withoutDescriptors(t, room, func() {
			if st, err := attach(); err != nil || st != statusFull {
				t.Errorf("room for %d: status %d, %v, want %d", room, st, err, statusFull)
			}
			if r, err := l.call(t.Context(), request{op: opConfigure, id: id}, specOf(id), record); err != nil || r.status == statusOK {
				t.Errorf("room for %d: configure: %+v, %v", room, r, err)
			}
		})
		if after := descriptors(t); after > before {
			t.Errorf("room for %d: %d descriptors, %d before", room, after, before)
		}
	}
	if st, err := attach(); err != nil || st != statusOK {
		t.Errorf("with room again: status %d, %v", st, err)
	}
	conn.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
