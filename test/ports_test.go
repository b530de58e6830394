package test_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/internal/poll"
)

// A portForward is a running "caisson port-forward".
type portForward struct {
	t      testing.TB
	cmd    *exec.Cmd
	locals []string // the addresses that it has printed

	mu     sync.Mutex
	errors bytes.Buffer // its standard error; guarded by mu
}

// Write implements [io.Writer] for the standard error.
func (f *portForward) Write(b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.errors.Write(b)
}

func (f *portForward) said() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.errors.String()
}

// forward starts "caisson port-forward" for n ports and waits until it listens. It is ended with the test.
func (h *host) forward(n int, env []string, args ...string) *portForward {
	h.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	f := &portForward{t: h.t, cmd: h.command(ctx, append([]string{"port-forward"}, args...)...)}
	f.cmd.Env = append(slices.Clone(h.env), env...)
	f.cmd.Stderr = f
	out, err := f.cmd.StdoutPipe()
	if err == nil {
		err = f.cmd.Start()
	}
	if err != nil {
		cancel()
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { cancel(); f.cmd.Wait() })
	lines := bufio.NewScanner(out)
	for range n {
		if !lines.Scan() {
			h.t.Fatalf("port-forward said %q", f.said())
		}
		local, _, _ := strings.Cut(lines.Text(), " -> ")
		f.locals = append(f.locals, local)
	}
	return f
}

// interrupt sends Ctrl-C and checks that the command ends well.
func (f *portForward) interrupt() {
	f.t.Helper()
	if err := f.cmd.Process.Signal(os.Interrupt); err != nil {
		f.t.Error(err)
	}
	if err := f.cmd.Wait(); err != nil {
		f.t.Errorf("after Ctrl-C: %v; %s", err, f.said())
	}
}

// get returns the body of a page.
func get(url string) (string, error) {
	c := http.Client{Timeout: hang, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Get(url)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

// server starts an HTTP server on port 3000 of 127.0.0.1 in a sandbox.
func (h *host) server(sandbox string) {
	h.t.Helper()
	h.ok("exec", "-d", "-w", "/srv", sandbox, "--", "python3", "-m", "http.server", "--bind", "127.0.0.1", "3000")
}

// serving waits until the page is there.
func serving(t testing.TB, url, want string) {
	t.Helper()
	poll.Until(t, settle, func() bool {
		page, err := get(url)
		return err == nil && page == want
	})
}

// freePort returns a port of 127.0.0.1 that was free a moment ago.
func freePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return fmt.Sprint(l.Addr().(*net.TCPAddr).Port)
}

// broken connects and checks that the connection breaks: at once, or at its first use.
func broken(t testing.TB, address string) {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(settle))
	if _, err := c.Write([]byte("GET / HTTP/1.0\r\n\r\n")); err != nil {
		return
	}
	if b, err := io.ReadAll(c); len(b) != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%s gave %q, %v", address, b, err)
	}
}

// TestPortForward looks at a server that listens on 127.0.0.1 of a sandbox, over the unix socket and with a token.
func TestPortForward(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	listen := "127.0.0.1:" + freePort(t)
	d := h.serve("--listen", listen)
	h.ok("sandbox", "create", "--name", "web")
	h.sh("web", "echo hello > /srv/page")
	f := h.forward(2, nil, "web", "0:3000", "0:3001")
	page := "http://" + f.locals[0] + "/page"

	broken(t, f.locals[1])
	poll.Until(t, settle, func() bool { return strings.Contains(f.said(), "no server listens at 3001 in the sandbox") })
	h.server("web")
	serving(t, page, "hello\n")

	remote := func(account string) []string {
		return []string{"CAISSON_HOST=http://" + listen, "CAISSON_TOKEN=" + h.ok("token", "create", "t", "--account", account)}
	}
	far := h.forward(1, remote("local"), "web", "0:3000")
	serving(t, "http://"+far.locals[0]+"/page", "hello\n")
	far.interrupt()

	// A token of another account does not find the sandbox, and a wrong one nothing.
	other := *h
	other.env = append(slices.Clone(h.env), remote("team-b")...)
	other.fails(3, "web", "port-forward", "web", "0:3000")
	other.env = append(slices.Clone(h.env), "CAISSON_HOST=http://"+listen, "CAISSON_TOKEN=wrong")
	other.fails(5, "token", "port-forward", "web", "0:3000")
	h.fails(3, "nobody", "port-forward", "nobody", "0:3000")
	h.fails(2, "x:3000", "port-forward", "web", "x:3000")
	h.fails(4, "in use", "port-forward", "web", strings.TrimPrefix(f.locals[0], "127.0.0.1:")+":3000")

	// A connection that is open when the daemon is killed ends, and new ones can be made as soon as there is a daemon again.
	open, err := net.Dial("tcp", f.locals[0])
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	d.kill()
	open.SetDeadline(time.Now().Add(settle))
	if b, err := io.ReadAll(open); len(b) != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after the daemon was killed: %q, %v", b, err)
	}
	h.serve()
	serving(t, page, "hello\n")

	h.ok("sandbox", "pause", "web")
	broken(t, f.locals[0])
	h.ok("sandbox", "resume", "web")
	serving(t, page, "hello\n")

	f.interrupt()
	if _, err := get(page); err == nil {
		t.Error("the forward is still there after Ctrl-C")
	}
}

// connect requests a connection as the local user and returns the status and the connection.
func (h *host) connect(sandbox, body string) (int, net.Conn) {
	h.t.Helper()
	c, err := net.Dial("unix", h.socket())
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(hang))
	fmt.Fprintf(c, "POST /api/v1/sandboxes/%s/connections HTTP/1.1\r\nHost: caisson\r\nContent-Type: application/json\r\n"+
		"Connection: Upgrade\r\nUpgrade: caisson-stream\r\nContent-Length: %d\r\n\r\n%s", sandbox, len(body), body)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		h.t.Fatal(err)
	}
	return resp.StatusCode, c
}

// TestPromise1ConnectionsLeadOnlyIntoTheSandbox attacks connections: neither ports of the host nor its unix sockets are reached, also not
// those in a directory that the sandbox sees, and a request cannot name a host.
func TestPromise1ConnectionsLeadOnlyIntoTheSandbox(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.serve()
	port, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	shared := filepath.Dir(h.write("shared/file", ""))
	socket, err := net.Listen("unix", filepath.Join(shared, "host.sock"))
	if err != nil {
		t.Fatal(err)
	}
	var reached sync.Map
	for _, l := range []net.Listener{port, socket} {
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				reached.Store(l.Addr().String(), true)
				c.Close()
			}
		}()
	}
	if err := errors.Join(os.Chmod(h.dir, 0o755), os.Chmod(filepath.Join(shared, "host.sock"), 0o777)); err != nil {
		t.Fatal(err)
	}
	h.ok("sandbox", "create", "--name", "box", "--mount", shared+":/shared")
	// A link to the daemon's own socket, and to one that the sandbox sees.
	h.sh("box", "ln -s /shared/host.sock /tmp/link; ln -s "+h.socket()+" /tmp/daemon")
	quote := func(v any) string { b, _ := json.Marshal(v); return string(b) }
	for body, want := range map[string]int{
		fmt.Sprintf(`{"port": %d}`, port.Addr().(*net.TCPAddr).Port): http.StatusServiceUnavailable,
		`{"path": "/shared/host.sock"}`:                              http.StatusServiceUnavailable,
		`{"path": "/tmp/link"}`:                                      http.StatusServiceUnavailable,
		`{"path": "/tmp/daemon"}`:                                    http.StatusServiceUnavailable,
		`{"path": "/proc/1/root/../../shared/host.sock"}`:            http.StatusServiceUnavailable,
		`{"path": ` + quote(h.socket()) + `}`:                        http.StatusServiceUnavailable,
		`{"path": "\u0000abstract"}`:                                 http.StatusBadRequest,
		`{"port": 80, "host": "127.0.0.1"}`:                          http.StatusBadRequest,
		`{"port": "127.0.0.1:80"}`:                                   http.StatusBadRequest,
		`{}`:                                                         http.StatusBadRequest,
	} {
		if got, _ := h.connect("box", body); got != want {
			t.Errorf("%s: status %d, want %d", body, got, want)
		}
	}
	reached.Range(func(address, _ any) bool {
		t.Errorf("%s of the host was reached", address)
		return true
	})
}

// TestPromise7KilledWithConnectionsOpen kills the daemon while connections are open and being used: the sandbox ends its side, and
// the next daemon finds everything in order.
func TestPromise7KilledWithConnectionsOpen(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	d := h.serve()
	h.ok("sandbox", "create", "--name", "web")
	h.server("web")
	f := h.forward(1, nil, "web", "0:3000")
	mustGet(t, "http://"+f.locals[0]+"/")
	var conns []net.Conn
	for range 50 {
		status, c := h.connect("web", `{"port": 3000}`)
		if status != http.StatusSwitchingProtocols {
			t.Fatalf("status %d", status)
		}
		conns = append(conns, c)
	}
	d.kill()
	for _, c := range conns {
		if _, err := io.Copy(io.Discard, c); err != nil && !errors.Is(err, syscall.ECONNRESET) {
			t.Error(err)
		}
	}
	h.serve()
	// The sandbox closes the connections that the dead daemon has left: the server has none any more.
	poll.Until(t, settle, func() bool {
		return h.sh("web", "grep -c ':0BB8 .* 01 ' /proc/net/tcp || true") == "0"
	})
}

// mustGet waits until there is a page and returns it.
func mustGet(t testing.TB, url string) (page string) {
	t.Helper()
	poll.Until(t, settle, func() bool {
		var err error
		page, err = get(url)
		return err == nil
	})
	return page
}

// TestGuidePorts runs the commands of docs/guides/ports.md.
func TestGuidePorts(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	local := freePort(t)
	var f *portForward
	h.guide("docs/guides/ports.md", map[string]func([]string){
		"caisson port-forward": func(words []string) {
			f = h.forward(1, nil, words[2], local+":"+words[3])
			mustGet(t, "http://127.0.0.1:"+local+"/")
		},
		"curl": func(words []string) {
			words[len(words)-1] = strings.Replace(words[len(words)-1], ":3000", ":"+local, 1)
			if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil || len(out) == 0 {
				t.Errorf("%v: %v: %s", words, err, out)
			}
		},
	})
	f.interrupt()
}
