package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	caisson "github.com/caisson-dev/caisson"

	"github.com/caisson-dev/caisson/internal/poll"
)

// testGateway reports over TCP which runs it has, and serves a virtual host.
type testGateway struct {
	env Env
	git http.Handler

	mu   sync.Mutex
	runs map[string]bool // guarded by mu
}

func (g *testGateway) Hosts() map[string]http.Handler   { return map[string]http.Handler{"git": g.git} }
func (*testGateway) Journal(caisson.ID, *os.File) error { return errors.New("there is no ledger") }
func (*testGateway) Forget([]string)                    {}

// Configure returns an error if the first provider is named "refuse".
func (*testGateway) Configure(c caisson.GatewayConfig) error {
	if len(c.Providers) > 0 && c.Providers[0].Name == "refuse" {
		return caisson.Invalidf("providers", "refused")
	}
	return nil
}

func (g *testGateway) Runs(c caisson.GatewayRunChange) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, run := range c.Remove {
		delete(g.runs, run)
	}
	for _, r := range c.Put {
		g.runs[r.Run] = true
	}
	return nil
}

func (g *testGateway) Listen(f *os.File) error {
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return err
	}
	go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		g.mu.Lock()
		defer g.mu.Unlock()
		io.WriteString(w, strings.Join(slices.Sorted(maps.Keys(g.runs)), " "))
	}))
	return nil
}

// others is the engine's state of runs on other machines.
type others struct {
	addr string

	mu   sync.Mutex
	runs map[string]*caisson.GatewayRun // guarded by mu
}

// newOthers returns a world that serves other machines.
func newOthers(t testing.TB) (*world, *others) {
	t.Helper()
	needWire(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	o := &others{addr: l.Addr().String(), runs: map[string]*caisson.GatewayRun{}}
	o.set("a")
	w := newWorld(t, func(c *setup) { c.Listen, c.Runs = f, o.list })
	w.pid(t) // waits until the process runs
	return w, o
}

func (o *others) list(context.Context) (list []*caisson.GatewayRun, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, run := range slices.Sorted(maps.Keys(o.runs)) {
		list = append(list, o.runs[run])
	}
	return list, nil
}

func (o *others) set(run string) *caisson.GatewayRun {
	o.mu.Lock()
	defer o.mu.Unlock()
	// Large, so that a few hundred need more than one message.
	r := &caisson.GatewayRun{Run: run, Account: "a", Models: caisson.ModelGrant{Models: []string{strings.Repeat("m", 20<<10)}}}
	o.runs[run] = r
	return r
}

func (o *others) remove(run string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.runs, run)
}

// ask returns the runs that the wire process reports to another machine.
func (o *others) ask(t testing.TB) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+o.addr, nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// TestServesOthers checks that the confined process serves a socket that it could not have created, that it has each run before
// it accepts connections, and that the next process does so too.
func TestServesOthers(t *testing.T) {
	t.Parallel()
	w, o := newOthers(t)
	want := func(runs string) {
		t.Helper()
		if got := o.ask(t); got != runs {
			t.Errorf("it knows the runs %.200q, want %.200q", got, runs)
		}
	}
	want("a")
	if err := w.ChangeRuns(t.Context(), caisson.GatewayRunChange{Put: []*caisson.GatewayRun{o.set("b")}}); err != nil {
		t.Fatal(err)
	}
	want("a b")
	o.remove("a")
	if err := w.ChangeRuns(t.Context(), caisson.GatewayRunChange{Remove: []string{"a"}}); err != nil {
		t.Fatal(err)
	}
	want("b")
	names := []string{"b"}
	for i := range 200 { // 4 MiB
		names = append(names, o.set(fmt.Sprintf("r%03d", i)).Run)
	}
	pid := w.pid(t)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	// Requests during the start wait and are not answered as for an unknown run; only connections that the dying process had
	// accepted fail.
	poll.Until(t, time.Minute, func() bool { return o.ask(t) != "b" && w.pid(t) != pid })
	want(strings.Join(names, " "))
}

// TestRunsChangeWhileItStarts checks that no change is lost between the list for a new process and the changes after it.
func TestRunsChangeWhileItStarts(t *testing.T) {
	t.Parallel()
	w, o := newOthers(t)
	for i := range 5 {
		if err := syscall.Kill(w.pid(t), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for j := range 10 {
			wg.Go(func() {
				run := fmt.Sprintf("%d-%d", i, j)
				put := caisson.GatewayRunChange{Put: []*caisson.GatewayRun{o.set(run)}}
				for w.ChangeRuns(context.Background(), put) != nil { // the call may reach the dying process
				}
				if j%2 == 0 {
					return
				}
				o.remove(run)
				for w.ChangeRuns(context.Background(), caisson.GatewayRunChange{Remove: []string{run}}) != nil {
				}
			})
		}
		wg.Wait()
		list, _ := o.list(t.Context())
		var names []string
		for _, r := range list {
			names = append(names, r.Run)
		}
		want, got := strings.Join(names, " "), ""
		poll.Until(t, time.Minute, func() bool {
			got = o.ask(t)
			return got == want
		})
	}
}

// TestRefreshWhileItStarts checks that settings that change while a process starts are applied in the end.
func TestRefreshWhileItStarts(t *testing.T) {
	t.Parallel()
	needWire(t)
	var mu sync.Mutex
	asked, entered, release := 0, make(chan struct{}), make(chan struct{})
	w := newWorld(t, func(c *setup) {
		c.Settings = func(context.Context) (*caisson.GatewayConfig, error) {
			mu.Lock()
			asked++
			first := asked == 1
			mu.Unlock()
			if first {
				close(entered)
				<-release
			}
			return &caisson.GatewayConfig{}, nil
		}
	})
	<-entered // the first process is about to receive outdated settings
	if err := w.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	close(release)
	w.pid(t)
	poll.Until(t, time.Minute, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return asked == 2
	})
}

// TestRefusedSettings checks that settings that the gateway refuses affect nothing else, neither at the start nor later.
func TestRefusedSettings(t *testing.T) {
	t.Parallel()
	needWire(t)
	w := newWorld(t, func(c *setup) {
		c.Settings = func(context.Context) (*caisson.GatewayConfig, error) {
			return &caisson.GatewayConfig{Providers: []caisson.Provider{{Name: "refuse"}}}, nil
		}
	})
	pid := w.pid(t)
	if err := w.Refresh(t.Context()); !errors.Is(err, errSettings) {
		t.Errorf("refresh: %v", err)
	}
	id := caisson.NewID(caisson.SandboxPrefix)
	ns, err := w.Attach(t.Context(), id, caisson.WireSpec{Guest: caisson.Guest{Sandbox: id, Account: "a", Run: string(id)}})
	if err != nil {
		t.Fatal(err)
	}
	ns.Close()
	if err := w.Detach(t.Context(), id); err != nil {
		t.Error(err)
	}
	if now := w.pid(t); now != pid {
		t.Errorf("the process %d was replaced by %d", pid, now)
	}
}
