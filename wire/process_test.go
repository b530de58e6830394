package wire

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	caisson "github.com/caisson-dev/caisson"
	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/internal/testneed"
)

const engineName = "caisson-wire-test-engine"

// engine runs a Manager until it is killed, and prints the wire process's id.
func engine() int {
	m, err := New(Config{
		Exe: "/proc/self/exe",
		NetNS: func(id caisson.ID) (*os.File, error) {
			return nil, caisson.Errorf(caisson.NotFound, "no sandbox %s", id)
		},
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	go func() {
		if l, err := m.awaitLink(context.Background()); err == nil {
			fmt.Println(l.pid)
		}
	}()
	if err := m.Run(context.Background(), Handlers{Settings: noSettings}); err != nil {
		fmt.Println(err)
	}
	return 1
}

func TestProcessDiesWithEngine(t *testing.T) {
	t.Parallel()
	needWire(t)
	cmd := &exec.Cmd{Path: helper, Args: []string{engineName}, Env: []string{}}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, readErr := bufio.NewReader(out).ReadString('\n')
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	cmd.Wait() // returns the expected error: killed
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatalf("engine said %q, %v", line, readErr)
	}
	poll.Until(t, time.Minute, func() bool {
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		return err != nil || !strings.HasPrefix(string(name), processName)
	})
}

func TestSurvivesDeathOfProcess(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id, ns := w.attach(t)
	for range 3 {
		pid := w.pid(t)
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() error {
			if w.pid(t) == pid {
				return errors.New("still the old one")
			}
			_, err := w.Network(t.Context(), id)
			return err
		})
		if err := inside(t, ns, func() error { return ping(GatewayIPv4, deadline) }); err != nil {
			t.Fatal(err)
		}
		if err := inside(t, ns, func() error { return ping(GatewayIPv6, deadline) }); err != nil {
			t.Fatal(err)
		}
		err := inside(t, ns, func() error { return dialTCP("192.0.2.1:443") })
		if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatal(err)
		}
	}
	if err := w.Detach(t.Context(), id); err != nil {
		t.Fatal(err)
	}
}

// A sandbox that dies before it enters its namespace has none that NetNS could find.
func TestDetachEndsRetaking(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := caisson.NewID(caisson.SandboxPrefix)
	ns, err := w.Attach(t.Context(), id, specOf(id))
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	pid := w.pid(t)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if l := w.pid(t); l == pid {
			return errors.New("still the old one")
		}
		return nil
	})
	if _, err := w.Network(t.Context(), id); caisson.KindOf(err) != caisson.NotFound {
		t.Fatal(err)
	}
	if err := w.Detach(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if err := w.Detach(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	// The namespace can be used by a sandbox of the same name.
	if err := w.Reattach(t.Context(), id, ns, specOf(id)); err != nil {
		t.Fatal(err)
	}
}

func TestReattachAfterRestartOfEngine(t *testing.T) {
	t.Parallel()
	first := newWorld(t)
	id, ns := first.attach(t)
	other, otherNS := first.attach(t)
	first.stop()

	second := newWorld(t)
	for range 2 { // the second call has no effect
		if err := second.Reattach(t.Context(), id, ns, specOf(id)); err != nil {
			t.Fatal(err)
		}
		if err := inside(t, ns, func() error { return ping(GatewayIPv4, deadline) }); err != nil {
			t.Fatal(err)
		}
	}
	host, err := os.Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	mount, err := os.Open("/proc/self/ns/mnt")
	if err != nil {
		t.Fatal(err)
	}
	defer mount.Close()
	for name, f := range map[string]*os.File{"another sandbox's": ns, "the host's": host} {
		if err := second.Reattach(t.Context(), other, f, specOf(other)); caisson.KindOf(err) != caisson.Invalid {
			t.Errorf("%s namespace: %v, want invalid", name, err)
		}
	}
	if err := second.Reattach(t.Context(), other, mount, specOf(other)); err == nil {
		t.Error("took a mount namespace")
	}
	if err := second.Reattach(t.Context(), other, otherNS, specOf(other)); err != nil {
		t.Error(err)
	}
}

func TestProcessHasNothing(t *testing.T) {
	w := newWorld(t)
	// Descriptors that a library opened without close-on-exec must not be inherited.
	leaked, err := unix.Open("/etc/passwd", unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(leaked)
	old := w.pid(t)
	if err := syscall.Kill(old, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if w.pid(t) == old {
			return errors.New("still the old one")
		}
		return nil
	})
	w.attach(t)
	w.attach(t)
	proc := fmt.Sprintf("/proc/%d/", w.pid(t))

	fields := map[string]string{}
	status, err := os.ReadFile(proc + "status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		k, v, _ := strings.Cut(line, ":")
		fields[k] = strings.Join(strings.Fields(v), " ")
	}
	const none = "0000000000000000"
	uid := fmt.Sprint(DefaultUID)
	ids := strings.Join([]string{uid, uid, uid, uid}, " ")
	for k, want := range map[string]string{
		"CapInh": none, "CapPrm": none, "CapEff": none, "CapBnd": none, "CapAmb": none,
		"NoNewPrivs": "1", "Seccomp": "2", "Uid": ids, "Gid": ids, "Groups": "",
	} {
		if fields[k] != want {
			t.Errorf("%s is %q, want %q", k, fields[k], want)
		}
	}

	counts := map[string]int{}
	fds, err := os.ReadDir(proc + "fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		to, err := os.Readlink(filepath.Join(proc, "fd", fd.Name()))
		if err != nil {
			t.Fatal(err)
		}
		kind, _, _ := strings.Cut(to, ":[") // pipe:[1], socket:[1]
		counts[kind]++
	}
	// Standard input and output; standard error; the control connection and the feed; the TAPs; Go's poller.
	want := map[string]int{"/dev/null": 2, "pipe": 1, "socket": 2, "/dev/net/tun": 2, "anon_inode": 2}
	if fmt.Sprint(counts) != fmt.Sprint(want) {
		t.Errorf("descriptors %v, want %v", counts, want)
	}

	env, err := os.ReadFile(proc + "environ")
	if err != nil {
		t.Fatal(err)
	}
	for v := range strings.SplitSeq(strings.TrimRight(string(env), "\x00"), "\x00") {
		if !strings.HasPrefix(v, "GOMAXPROCS=") && !strings.HasPrefix(v, "GODEBUG=") {
			t.Errorf("environment has %q", v)
		}
	}
	limits, err := os.ReadFile(proc + "limits")
	if err != nil || !strings.Contains(strings.Join(strings.Fields(string(limits)), " "), "Max core file size 0 0") {
		t.Errorf("limits: %v\n%s", err, limits)
	}
	if c, err := w.Confinement(t.Context()); err != nil || !c.Seccomp {
		t.Errorf("confinement %+v, %v", c, err)
	}
}

// heldNamespaces returns the network namespaces other than the host's that threads or descriptors of this process keep.
// Namespaces of other sandboxes on the machine are not relevant to this test.
func heldNamespaces(t *testing.T) []string {
	t.Helper()
	host, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	var held []string
	for _, pattern := range []string{"/proc/self/task/*/ns/net", "/proc/self/fd/*"} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range paths {
			if to, err := os.Readlink(p); err == nil && strings.HasPrefix(to, "net:[") && to != host {
				held = append(held, p)
			}
		}
	}
	return held
}

func TestNothingLeaks(t *testing.T) {
	w := newWorld(t)
	var wait sync.WaitGroup
	for range 50 {
		wait.Go(func() {
			id := caisson.NewID(caisson.SandboxPrefix)
			ns, err := w.Attach(t.Context(), id, specOf(id))
			if err != nil {
				t.Error(err)
				return
			}
			defer ns.Close()
			if err := inside(t, ns, func() error { return dialTCP("192.0.2.1:443") }); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Error(err)
			}
			if _, err := w.Attach(t.Context(), id, specOf(id)); caisson.KindOf(err) != caisson.Conflict {
				t.Error(err)
			}
			if err := w.Detach(t.Context(), id); err != nil {
				t.Error(err)
			}
			// Its device exists as long as the namespace, but no process has the other end open.
			tap, err := openLabelledTAP(ns, string(id))
			if err != nil {
				t.Error(err)
				return
			}
			tap.Close()
		})
	}
	wait.Wait()
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", w.pid(t)))
	if err != nil || len(fds) != 7 { // standard streams, control, feed, and two of Go's poller
		t.Errorf("wire process has descriptors %q, %v", fds, err)
	}
	w.mu.Lock()
	if len(w.wires) != 0 {
		t.Errorf("%d wires are remembered", len(w.wires))
	}
	w.mu.Unlock()
	w.stop()
	eventually(t, func() error {
		if held := heldNamespaces(t); len(held) != 0 {
			return fmt.Errorf("namespaces are held by %q", held)
		}
		return nil
	})
	if links, _ := filepath.Glob("/sys/class/net/*/tun_flags"); len(links) != 0 {
		t.Errorf("TAPs in the host's namespace: %q", links)
	}
}

// The confined process can connect over TCP and UDP to destinations that the policy allows.
func TestConnects(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(addrs, func(a net.Addr) bool {
		n, ok := a.(*net.IPNet)
		return ok && n.IP.To4() != nil && !n.IP.IsLoopback() && !n.IP.IsLinkLocalUnicast()
	})
	if i < 0 {
		testneed.Skip(t, "net", "the host has no address but loopback")
	}
	host := addrs[i].(*net.IPNet).IP.String()
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			io.Copy(c, c)
			c.Close()
		}
	}()
	id := caisson.NewID(caisson.SandboxPrefix)
	spec := specOf(id)
	ns, err := w.Attach(t.Context(), id, spec)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	talk := func() error {
		c, err := net.DialTimeout("tcp", l.Addr().String(), deadline)
		if err != nil {
			return err
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(deadline)); err != nil {
			return err
		}
		if _, err := c.Write([]byte("hello")); err != nil {
			return err
		}
		_, err = io.ReadFull(c, make([]byte, 5))
		return err
	}
	if err := inside(t, ns, talk); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("without a rule: %v, want connection refused", err)
	}
	spec.Policy.Rules = []caisson.Rule{{Action: caisson.Allow, Host: host}}
	if err := w.Configure(t.Context(), id, spec); err != nil {
		t.Fatal(err)
	}
	if err := inside(t, ns, talk); err != nil {
		t.Errorf("with a rule: %v", err)
	}
}
