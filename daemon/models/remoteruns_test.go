package models

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
)

// farGateway is a gateway on another machine whose management of runs fails on demand.
type farGateway struct {
	mu   sync.Mutex
	runs map[string]caisson.GatewayRun // guarded by mu
	fail error                         // guarded by mu
	puts int                           // guarded by mu
}

func (g *farGateway) PutGatewayRun(_ context.Context, r caisson.GatewayRun) (*caisson.GatewayRun, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.puts++
	if g.fail != nil {
		return nil, g.fail
	}
	g.runs[r.Run] = r
	return &r, nil
}

func (g *farGateway) ListGatewayRuns(context.Context) ([]*caisson.GatewayRun, error) { return nil, nil }

func (g *farGateway) RemoveGatewayRun(_ context.Context, run string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.fail != nil {
		return g.fail
	}
	if _, ok := g.runs[run]; !ok {
		return caisson.Errorf(caisson.NotFound, "no run %s", run)
	}
	delete(g.runs, run)
	return nil
}

func (g *farGateway) set(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.fail = err
}

// known returns the ids of the registered runs.
func (g *farGateway) known() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return strings.Join(slices.Sorted(maps.Keys(g.runs)), " ")
}

func newFarGateway(t *testing.T, run bool) (*RemoteRuns, *farGateway) {
	t.Helper()
	g := &farGateway{runs: map[string]caisson.GatewayRun{}}
	usd := 3 * caisson.Dollar
	r := NewRemoteRuns(func(context.Context) (caisson.GatewayRuns, error) { return g, nil }, caisson.Limits{USD: &usd}, slog.New(slog.DiscardHandler))
	if !run {
		return r, g
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return r, g
}

func granted(id caisson.ID, models ...string) caisson.WireSpec {
	return caisson.WireSpec{
		Guest: caisson.Guest{Sandbox: id, Account: "here", Run: string(id), Attempt: 2}, Models: &caisson.ModelGrant{Models: models},
	}
}

func TestRemoteRuns(t *testing.T) {
	r, g := newFarGateway(t, false)
	ctx := t.Context()
	update := func() {
		t.Helper()
		if err := r.update(ctx); err != nil {
			t.Error(err)
		}
	}
	a, b := caisson.ID("sb-aaaaaaaaaaaaaaaa"), caisson.ID("sb-bbbbbbbbbbbbbbbb")
	if err := r.register(ctx, a, granted(a, "m")); err != nil {
		t.Fatal(err)
	}
	run := g.runs[string(a)]
	if run.Account != "" || run.Attempt != 2 || run.Models.Budget.USD == nil || *run.Models.Budget.USD != 3*caisson.Dollar || time.Until(run.ExpiresAt) < time.Hour {
		t.Errorf("%+v", run)
	}
	// An unchanged registration is not sent again, even if the gateway is unavailable.
	g.set(caisson.Errorf(caisson.Unavailable, "down"))
	if err := r.register(ctx, a, granted(a, "m")); err != nil || g.puts != 1 {
		t.Error(err, g.puts)
	}
	// A failed registration of a new sandbox is an error, and a registered sandbox keeps its registration.
	for _, id := range []caisson.ID{a, b} {
		if err := r.register(ctx, id, granted(id, "other")); caisson.KindOf(err) != caisson.Unavailable {
			t.Errorf("%s: %v", id, err)
		}
	}
	if g.puts != 1+2*remoteAttempts {
		t.Errorf("%d tries", g.puts)
	}
	g.set(nil)
	update()
	if got := g.known(); len(r.runs) != 1 || got != string(a) || g.runs[string(a)].Models.Models[0] != "m" {
		t.Errorf("the gateway knows %s: %+v", got, g.runs[string(a)])
	}
	// A sandbox that is already running is registered when the gateway is available.
	r.registerLater(b, granted(b, "m"))
	if update(); g.known() != string(a)+" "+string(b) {
		t.Error(g.known())
	}
	puts := g.puts
	if update(); g.puts != puts {
		t.Error("what the gateway knows was said again")
	}
	r.runs[a].registeredAt = time.Now().Add(-2 * remoteRenewAfter)
	if update(); g.puts != puts+1 {
		t.Error("the registration was not renewed")
	}
	// A sandbox that has lost its grant or its wire is unregistered.
	if err := r.register(ctx, b, caisson.WireSpec{Guest: caisson.Guest{Sandbox: b, Account: "here"}}); err != nil {
		t.Error(err)
	}
	r.unregister(a)
	r.unregister("sb-cccccccccccccccc")
	g.set(caisson.Errorf(caisson.Unavailable, "down"))
	if err := r.update(ctx); caisson.KindOf(err) != caisson.Unavailable {
		t.Error(err)
	}
	g.set(nil)
	if update(); g.known() != "" || len(r.runs) != 0 {
		t.Errorf("left are %q and %v", g.known(), r.runs)
	}
}

// TestRemoteRunsRefused checks that the gateway's error about a grant is returned to the caller.
func TestRemoteRunsRefused(t *testing.T) {
	r, g := newFarGateway(t, false)
	id := caisson.ID("sb-aaaaaaaaaaaaaaaa")
	for _, c := range []struct {
		err   error
		kind  caisson.Kind
		tries int
	}{
		{caisson.Invalidf("models", "there is no model x"), caisson.Invalid, 1},
		{caisson.Errorf(caisson.Unauthed, "the token is not known"), caisson.Unavailable, 1},
		{caisson.Errorf(caisson.Exhausted, "too many"), caisson.Unavailable, 1},
		{caisson.Errorf(caisson.Unavailable, "no daemon answers"), caisson.Unavailable, remoteAttempts},
	} {
		g.puts = 0
		g.set(c.err)
		err := r.register(t.Context(), id, granted(id, "x"))
		if caisson.KindOf(err) != c.kind || !strings.Contains(caisson.MessageOf(err), caisson.MessageOf(c.err)) || g.puts != c.tries {
			t.Errorf("%v became %v after %d tries", c.err, err, g.puts)
		}
	}
}

// TestRemoteRunsConcurrent checks that, after many concurrent changes, exactly the existing sandboxes are registered.
func TestRemoteRunsConcurrent(t *testing.T) {
	r, g := newFarGateway(t, true)
	var wg sync.WaitGroup
	var want []string
	for range 20 {
		id := caisson.NewID(caisson.SandboxPrefix)
		stays := len(want) < 10
		if stays {
			want = append(want, string(id))
		}
		wg.Go(func() {
			for i := range 20 {
				if err := r.register(context.Background(), id, granted(id, "m")); err != nil {
					t.Error(err)
				}
				if i < 19 || !stays {
					r.unregister(id)
				}
			}
		})
	}
	wg.Wait()
	slices.Sort(want)
	poll.Until(t, time.Minute, func() bool { return g.known() == strings.Join(want, " ") })
}
