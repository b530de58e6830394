package test_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/time/rate"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/client"
	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/internal/testneed"
)

// serverVariable makes the test binary a server in a sandbox: its value is the port.
const serverVariable = "CAISSON_TEST_SERVER"

// seen is what a server in a sandbox saw of a request.
type seen struct {
	Method, Host, Path, Query, Body string
	Header                          http.Header
	Count                           int64
}

// serveInside serves HTTP on the loopback device of a sandbox, until it is killed.
func serveInside(port string) int {
	var count atomic.Int64
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		json.NewEncoder(w).Encode(seen{r.Method, r.Host, r.URL.EscapedPath(), r.URL.RawQuery, string(b), r.Header, count.Add(1)})
	})
	mux.HandleFunc("/hold", func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	if err := http.ListenAndServe("127.0.0.1:"+port, mux); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return 1
}

// A routedHost is a host with an ingress on loopback and a sandbox "web" that has a server.
type routedHost struct {
	*host
	daemon *daemon
	addr   string // of the ingress
	client *http.Client
}

// newRoutedHost returns a host whose daemon serves routes.
func newRoutedHost(t *testing.T, lines ...string) *routedHost {
	t.Helper()
	h := &routedHost{host: newHost(t), addr: freeAddress(t)}
	h.configure(append([]string{"ingress: {listen: " + strconv.Quote(h.addr) + "}"}, lines...)...)
	h.daemon = h.serve()
	t.Cleanup(func() { h.daemon.end() })
	h.client = h.newClient()
	t.Cleanup(h.client.CloseIdleConnections)
	h.startServer("web", "3000")
	return h
}

// newClient returns a client that finds all hosts at the ingress, as browsers find those below localhost, and keeps cookies.
func (h *routedHost) newClient() *http.Client {
	jar, _ := cookiejar.New(nil) // never fails
	return &http.Client{Jar: jar, Timeout: hang, Transport: &http.Transport{
		MaxIdleConnsPerHost: 100,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", h.addr)
		},
	}}
}

// startServer creates a sandbox in which a server listens on the loopback device only.
func (h *routedHost) startServer(name, port string) caisson.Sandbox {
	h.t.Helper()
	h.ok("sandbox", "create", "--name", name)
	self, err := os.Executable()
	if err != nil {
		h.t.Fatal(err)
	}
	h.ok("cp", self, name+":/tmp/server")
	h.sh(name, "chmod +x /tmp/server; "+serverVariable+"="+port+" setsid /tmp/server > /tmp/server.log 2>&1 &")
	return h.show(name)
}

// get returns the status and body of a request. Its host is found at the ingress.
func (h *routedHost) get(url string, header ...string) (int, string) {
	h.t.Helper()
	r, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		h.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	res, err := h.client.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err.Error()
	}
	return res.StatusCode, string(b)
}

// at returns the URL of a path on a host of the ingress.
func (h *routedHost) at(host, path string) string {
	_, port, _ := net.SplitHostPort(h.addr)
	return "http://" + host + ":" + port + path
}

// reach waits until a URL is answered with 200, and returns what the server saw.
func (h *routedHost) reach(url string, header ...string) (s seen) {
	h.t.Helper()
	poll.Until(h.t, hang, func() bool {
		status, body := h.get(url, header...)
		if status != http.StatusOK {
			h.t.Log(status, body)
			return false
		}
		s = seen{}
		if err := json.Unmarshal([]byte(body), &s); err != nil {
			h.t.Fatalf("%q: %v", body, err)
		}
		return true
	})
	return s
}

// TestRoutes tests that a server on the loopback device of a sandbox is reached through routes, by those whom they allow, and that
// what is Caisson's does not reach it.
func TestRoutes(t *testing.T) {
	t.Parallel()
	h := newRoutedHost(t)
	h.ok("route", "add", "open", "web", "3000", "--at", "open.localhost", "--auth", "none")
	got := h.reach(h.at("open.localhost", "/a%2Fb?x=1;y"), "X-Forwarded-For", "6.6.6.6", "Caisson-Client", "6.6.6.6", "Authorization", "Bearer theirs")
	if got.Path != "/a%2Fb" || got.Query != "x=1;y" || !strings.HasPrefix(got.Host, "open.localhost") || got.Header.Get("Caisson-Client") != "127.0.0.1" ||
		got.Header.Get("X-Forwarded-For") != "" || got.Header.Get("Authorization") != "Bearer theirs" {
		t.Errorf("the sandbox saw %+v", got)
	}

	r := h.run("route", "add", "token", "web", "3000", "--at", "/api", "--strip-prefix", "--auth", "bearer")
	_, secret, _ := strings.Cut(strings.TrimSpace(r.stderr), "again: ")
	if r.code != 0 || len(secret) < 20 {
		t.Fatalf("%v", r)
	}
	if status, body := h.get(h.at("localhost", "/api/x")); status != http.StatusUnauthorized {
		t.Errorf("without a token: %d %s", status, body)
	}
	if status, body := h.get(h.at("localhost", "/api/x"), "Authorization", "Bearer "+secret+"x"); status != http.StatusUnauthorized {
		t.Errorf("with another token: %d %s", status, body)
	}
	got = h.reach(h.at("localhost", "/api/x"), "Authorization", "Bearer "+secret)
	if got.Path != "/x" || got.Header.Get("Authorization") != "" {
		t.Errorf("the sandbox saw %+v", got)
	}
	for _, unknown := range []string{h.at("localhost", "/"), h.at("localhost", "/apix"), h.at("other.localhost", "/"), h.at("127.0.0.1", "/api/x")} {
		if status, body := h.get(unknown); status != http.StatusNotFound {
			t.Errorf("%s: %d %s", unknown, status, body)
		}
	}
	h.fails(2, "", "route", "add", "bad", "web", "70000", "--at", "bad.localhost")
	h.fails(3, "", "route", "add", "bad", "nowhere", "3000", "--at", "bad.localhost")

	if list := h.ok("route", "ls", "-q"); list != "open\ntoken" {
		t.Errorf("there are %q", list)
	}
	h.ok("route", "rm", "open")
	if status, body := h.get(h.at("open.localhost", "/")); status != http.StatusNotFound {
		t.Errorf("after its removal: %d %s", status, body)
	}
	h.ok("sandbox", "rm", "web")
	if status, body := h.get(h.at("localhost", "/api/x"), "Authorization", "Bearer "+secret); status != http.StatusBadGateway {
		t.Errorf("after the removal of the sandbox: %d %s", status, body)
	}
}

// TestSignedURLs tests that the URL of caisson open leads to one port of one sandbox until it expires, and only its holder.
func TestSignedURLs(t *testing.T) {
	t.Parallel()
	h := newRoutedHost(t)
	sb := h.show("web")
	u := h.ok("open", "web", "3000", "--no-browser", "--path", "/app?x=1")
	if want := h.at("3000-"+string(sb.ID)+".localhost", "/app?x=1&caisson-token="); !strings.HasPrefix(u, want) {
		t.Fatalf("the URL is %s, want %s…", u, want)
	}
	host := h.at("3000-"+string(sb.ID)+".localhost", "")
	stranger := &routedHost{host: h.host, addr: h.addr, client: h.newClient()}
	got := h.reach(u) // follows the redirection, with a cookie
	if got.Path != "/app" || got.Query != "x=1" || got.Header.Get("Cookie") != "" || strings.Contains(fmt.Sprint(got), "caisson-token") {
		t.Errorf("the sandbox saw %+v", got)
	}
	if status, _ := h.get(host + "/more"); status != http.StatusOK {
		t.Errorf("with the cookie: %d", status)
	}
	if status, _ := stranger.get(host + "/more"); status != http.StatusUnauthorized {
		t.Errorf("without the cookie: %d", status)
	}
	_, token, _ := strings.Cut(u, "caisson-token=")
	h.startServer("second", "3000")
	for _, other := range []string{"3001-" + string(sb.ID), "3000-" + string(h.show("second").ID)} {
		if status, _ := stranger.get(h.at(other+".localhost", "/"), "Caisson-Token", token); status != http.StatusUnauthorized {
			t.Errorf("%s: %d", other, status)
		}
	}
	// Nobody else's account signs URLs of the sandbox.
	h.ok("token", "create", "-q", "ci", "--account", "team-b") // makes the account
	h.fails(3, "", "--account", "team-b", "open", "web", "3000", "--no-browser")
	h.fails(3, "", "--account", "team-b", "route", "add", "x", string(sb.ID), "3000", "--at", "x.localhost")
	// A new daemon has the same key.
	h.daemon.end()
	h.daemon = h.serve()
	h.reach(host + "/after")
}

// TestRoutesWake tests that fifty requests at once for a suspended or paused sandbox share one resume and are all answered, and that
// a sandbox whose route does not say so stays as it is.
func TestRoutesWake(t *testing.T) {
	t.Parallel()
	h := newRoutedHost(t)
	h.ok("route", "add", "wake", "web", "3000", "--at", "wake.localhost", "--auth", "none", "--resume")
	h.ok("route", "add", "leave", "web", "3000", "--at", "leave.localhost", "--auth", "none")
	before := h.reach(h.at("wake.localhost", "/"))
	h.reach(h.at("leave.localhost", "/"))
	for _, c := range []struct{ verb, event string }{{"suspend", "sandbox.waking"}, {"pause", "sandbox.resuming"}} {
		h.ok("sandbox", c.verb, "web")
		if status, body := h.get(h.at("leave.localhost", "/")); status != http.StatusServiceUnavailable {
			t.Errorf("%s, without resume: %d %s", c.verb, status, body)
		}
		var wait sync.WaitGroup
		for range 50 {
			wait.Go(func() {
				if status, body := h.get(h.at("wake.localhost", "/")); status != http.StatusOK {
					t.Errorf("after %s: %d %s", c.verb, status, body)
				}
			})
		}
		wait.Wait()
		if sb := h.show("web"); sb.State != caisson.Running {
			t.Errorf("after the requests it is %s", sb.State)
		}
		// The server is the same one.
		if now := h.reach(h.at("wake.localhost", "/")); now.Count < before.Count+51 {
			t.Errorf("after %s the server has counted %d", c.verb, now.Count)
		}
		before.Count += 51
	}
	events := h.ok("events", "web", "--after", "0", "--for", "1s", "-o", "jsonl")
	if n := strings.Count(events, `"sandbox.running"`); n > 3 { // created, woken, resumed
		t.Errorf("it was resumed %d times: %s", n-1, events)
	}
	h.ok("sandbox", "stop", "web")
	if status, _ := h.get(h.at("wake.localhost", "/")); status != http.StatusBadGateway {
		t.Errorf("stopped: %d", status)
	}
}

// TestRoutesManyPauses tests that each of a client's requests is answered while the sandbox is suspended and paused in between.
func TestRoutesManyPauses(t *testing.T) {
	t.Parallel()
	h := newRoutedHost(t)
	h.ok("route", "add", "wake", "web", "3000", "--at", "wake.localhost", "--auth", "none", "--resume")
	h.reach(h.at("wake.localhost", "/"))
	rounds := 4
	if testneed.All() {
		rounds = 20 // 500 requests
	}
	var answers atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	pace := rate.NewLimiter(100, 1) // half of what one client may send
	var wait sync.WaitGroup
	defer wait.Wait()
	defer stop()
	for range 4 {
		wait.Go(func() {
			for pace.Wait(ctx) == nil {
				if status, body := h.get(h.at("wake.localhost", "/")); status != http.StatusOK {
					t.Errorf("%d %s", status, body)
					return
				}
				answers.Add(1)
			}
		})
	}
	for done := 0; done < rounds && !t.Failed(); {
		at := answers.Load()
		// A request may be about to resume it: then the command fails, and is not a round.
		if h.run("sandbox", []string{"suspend", "pause"}[done%2], "web").code == 0 {
			done++
		}
		poll.Until(t, hang, func() bool { return t.Failed() || answers.Load() >= at+25 })
	}
	stop()
	events := h.ok("events", "web", "--after", "0", "--for", "1s", "-o", "jsonl")
	if n := strings.Count(events, `"sandbox.running"`) - 1; n < rounds-1 { // the first is its creation; the last pause may still hold
		t.Errorf("the sandbox was resumed %d times in %d rounds", n, rounds)
	}
}

// wireProcess returns the pid of the wire process of the daemon.
func (h *routedHost) wireProcess() int {
	h.t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", h.daemon.cmd.Process.Pid))
	if err == nil && len(b) == 0 {
		err = fmt.Errorf("no children")
	}
	for _, task := range tasks(h.daemon.cmd.Process.Pid) {
		b, _ := os.ReadFile(filepath.Join(task, "children"))
		for _, pid := range strings.Fields(string(b)) {
			line, _ := os.ReadFile("/proc/" + pid + "/cmdline")
			if bytes.HasPrefix(line, []byte("caisson-wire\x00")) {
				n, _ := strconv.Atoi(pid)
				return n
			}
		}
	}
	h.t.Fatalf("there is no wire process: %v", err)
	return 0
}

// tasks returns the directories of a process's threads.
func tasks(pid int) []string {
	list, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid)) // the pattern is valid
	return list
}

// TestRoutesWireKilled tests that requests under way end when the wire process is killed, that new ones work, also those for which a
// sandbox was about to be resumed, and that terminals and forwards, which do not lead through it, go on.
func TestRoutesWireKilled(t *testing.T) {
	t.Parallel()
	h := newRoutedHost(t)
	h.ok("route", "add", "open", "web", "3000", "--at", "open.localhost", "--auth", "none")
	h.reach(h.at("open.localhost", "/"))
	var wait sync.WaitGroup
	begun := make(chan struct{}, 10)
	for range 10 {
		wait.Go(func() {
			res, err := h.newClient().Get(h.at("open.localhost", "/hold"))
			begun <- struct{}{}
			if err != nil {
				t.Error(err)
				return
			}
			defer res.Body.Close()
			if _, err := io.Copy(io.Discard, res.Body); err == nil {
				t.Error("the answer seems complete")
			}
		})
	}
	for range 10 {
		<-begun
	}
	d := h.sit("exec", "-it", "--detach-keys", "ctrl-p,ctrl-q", "web", "--", "sh")
	d.types("echo begin-$((40 + 2))\n")
	d.sees("begin-42")
	f := h.forward(1, nil, "web", "0:3000")
	page := "http://" + f.locals[0] + "/"
	mustGet(t, page)
	h.startServer("late", "3000")
	h.ok("route", "add", "late", "late", "3000", "--at", "late.localhost", "--auth", "none", "--resume")
	h.reach(h.at("late.localhost", "/"))
	h.ok("sandbox", "pause", "late")
	held := make(chan int, 1)
	go func() {
		status, _ := h.get(h.at("late.localhost", "/"))
		held <- status
	}()
	if err := syscall.Kill(h.wireProcess(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	wait.Wait()
	<-held // it was answered, or its connection has ended
	h.reach(h.at("open.localhost", "/again"))
	h.reach(h.at("late.localhost", "/again"))
	d.types("echo again-$((40 + 3))\n")
	d.sees("again-43")
	if _, err := get(page); err != nil {
		t.Errorf("a forward after the wire process was killed: %v", err)
	}
	f.interrupt()
}

// TestPromise1Routes tests that nothing leads into sandboxes but routes and signed URLs: not the ingress without one, not another
// port, and not the daemon without an ingress; and that the ingress does not serve the API.
func TestPromise1Routes(t *testing.T) {
	t.Parallel()
	h := newRoutedHost(t)
	sb := h.show("web")
	h.ok("route", "add", "open", "web", "3000", "--at", "open.localhost", "--auth", "none")
	h.reach(h.at("open.localhost", "/"))
	for _, url := range []string{
		h.at("localhost", "/"), h.at("web.localhost", "/"), h.at(string(sb.ID)+".localhost", "/"), h.at("web", "/"), h.at("127.0.0.1", "/api/v1/sandboxes"),
		h.at("open.localhost.evil.example", "/"), h.at("x.open.localhost", "/"),
	} {
		if status, body := h.get(url); status != http.StatusNotFound {
			t.Errorf("%s: %d %s", url, status, body)
		}
	}
	if status, body := h.get(h.at("open.localhost", "/api/v1/sandboxes")); status != http.StatusOK || !strings.Contains(body, `"Path":"/api/v1/sandboxes"`) {
		t.Errorf("the API's path on a route: %d %s", status, body)
	}
	for _, port := range []string{"3000", "1", "22"} {
		if status, _ := h.get(h.at(port+"-"+string(sb.ID)+".localhost", "/")); status != http.StatusUnauthorized {
			t.Errorf("port %s without a token: %d", port, status)
		}
	}
	h.ok("token", "create", "-q", "ci", "--account", "team-b") // makes the account
	h.ok("--account", "team-b", "sandbox", "create", "--name", "theirs")
	h.fails(4, "another account", "--account", "team-b", "route", "add", "theirs", "theirs", "3000", "--at", "open.localhost/login")
	h.ok("--account", "team-b", "sandbox", "rm", "theirs")
	h.ok("route", "rm", "open")
	if status, _ := h.get(h.at("open.localhost", "/")); status != http.StatusNotFound {
		t.Errorf("after its removal: %d", status)
	}
	h.daemon.end()
	h.configure("idleExit: 10m")
	h.daemon = h.serve()
	h.fails(4, "ingress.listen", "open", "web", "3000", "--no-browser")
	if c, err := net.Dial("tcp", h.addr); err == nil {
		c.Close()
		t.Error("there is an ingress although none is configured")
	}
}

// TestRoutesMany tests a thousand routes of two accounts, a request beside ten thousand idle connections of other clients, and a TTL that ends
// during a request.
func TestRoutesMany(t *testing.T) {
	testneed.Full(t, "the tests of package ingress have fewer routes and connections")
	t.Parallel()
	h := newRoutedHost(t)
	h.ok("route", "add", "wake", "web", "3000", "--at", "wake.localhost", "--auth", "none", "--resume")
	h.reach(h.at("wake.localhost", "/"))
	h.ok("token", "create", "-q", "ci", "--account", "b") // makes the account
	h.ok("--account", "b", "sandbox", "create", "--name", "web")
	defer h.ok("--account", "b", "sandbox", "rm", "web")
	for _, account := range []string{"local", "b"} { // an account may have 500
		api, err := client.New(client.Config{Socket: filepath.Join(h.data, "caisson.sock"), Account: account})
		if err != nil {
			t.Fatal(err)
		}
		defer api.Close()
		for i := range 499 {
			_, err := api.Routes.PutRoute(t.Context(), fmt.Sprint("r", i), caisson.RouteSpec{
				Host: fmt.Sprintf("r%d-%s.localhost", i, account), Sandbox: "web", Port: 3000, Auth: caisson.RouteAuth{Kind: caisson.RouteAuthNone},
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	h.fails(6, "too many routes", "route", "add", "more", "web", "3000", "--at", "more.localhost", "--auth", "none")
	for i := 0; i < 499; i += 37 {
		if s := h.reach(h.at(fmt.Sprintf("r%d-local.localhost", i), "/x")); s.Path != "/x" {
			t.Errorf("route %d: %+v", i, s)
		}
		if status, _ := h.get(h.at(fmt.Sprintf("r%d-b.localhost", i), "/x")); status != http.StatusBadGateway {
			t.Errorf("route %d of an account whose sandbox serves nothing: %d", i, status)
		}
	}

	refused := 0
	for i := range 10_000 {
		from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 2, 0, byte(i%40))}}
		c, err := from.Dial("tcp", h.addr)
		if err != nil {
			refused++
			continue
		}
		defer c.Close()
		if i%2 == 0 {
			io.WriteString(c, "GET / HTTP/1.1\r\n")
		}
	}
	if status, body := h.get(h.at("r1-local.localhost", "/")); status != http.StatusOK {
		t.Errorf("among idle connections, of which %d were refused: %d %s", refused, status, body)
	}

	res, err := h.client.Get(h.at("wake.localhost", "/hold"))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	h.ok("sandbox", "extend", "--ttl", "1s", "web")
	if _, err := io.ReadAll(res.Body); err == nil {
		t.Error("an answer that goes on does not end with the TTL")
	}
	poll.Until(t, hang, func() bool { return h.show("web").State == caisson.Paused })
	h.reach(h.at("wake.localhost", "/"))
}

// TestPromise7RoutesDaemonKilled tests that requests under way end when the daemon is killed, that nothing of them is left, and
// that the next daemon serves the route, of a paused sandbox too.
func TestPromise7RoutesDaemonKilled(t *testing.T) {
	t.Parallel()
	h := newRoutedHost(t)
	h.ok("route", "add", "wake", "web", "3000", "--at", "wake.localhost", "--auth", "none", "--resume")
	h.reach(h.at("wake.localhost", "/"))
	var open []io.ReadCloser
	for range 3 {
		res, err := h.client.Get(h.at("wake.localhost", "/hold"))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		open = append(open, res.Body)
	}
	h.daemon.kill()
	for _, body := range open {
		if _, err := io.ReadAll(body); err == nil {
			t.Error("an answer that goes on ends as if it were complete")
		}
	}
	h.daemon = h.serve()
	h.reach(h.at("wake.localhost", "/"))
	h.ok("sandbox", "pause", "web")
	held := make(chan int, 1)
	go func() {
		status, _ := h.get(h.at("wake.localhost", "/")) // held while the sandbox is resumed
		held <- status
	}()
	h.daemon.kill()
	<-held // it was answered, or its connection has ended
	h.daemon = h.serve()
	h.reach(h.at("wake.localhost", "/"))
	if sb := h.show("web"); sb.State != caisson.Running {
		t.Errorf("the sandbox is %s", sb.State)
	}
}
