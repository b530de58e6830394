package coretest

import (
	"context"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/image/imagetest"
	"github.com/caisson-dev/caisson/runtime/fake"
	"github.com/caisson-dev/caisson/wire"
)

// runtime is the fake runtime, whose sandboxes leave nothing on the host.
type runtime struct{ *fake.Runtime }

func (runtime) Remains() ([]caisson.ID, error) { return nil, nil } // no sandbox leaves anything on the host
func (runtime) Close() error                   { return nil }      // the fake runtime needs no closing

// images is a driver that finds an image for every reference, except that a pull fails as Unavailable if the reference contains
// "unreachable", fails as Exhausted if it contains "full", and lasts until it is cancelled if it contains "slow".
type images struct {
	*imagetest.Driver

	mu   sync.Mutex
	have map[string]bool     // the references that were requested; guarded by mu
	last caisson.PullRequest // the last request; guarded by mu
}

// newImages returns a driver for images with its layers below dir.
func newImages(dir string) *images {
	d := &images{Driver: imagetest.New(dir), have: map[string]bool{}}
	d.Find = func(ctx context.Context, req caisson.PullRequest) (conf caisson.ImageConfig, err error) {
		d.mu.Lock()
		have := d.have[req.Reference]
		d.last, d.have[req.Reference] = req, true
		d.mu.Unlock()
		switch {
		case req.Offline && !have:
			return conf, caisson.Errorf(caisson.NotFound, "the image %s is not present", req.Reference)
		case strings.Contains(req.Reference, "unreachable"):
			return conf, caisson.Errorf(caisson.Unavailable, "the registry does not answer")
		case strings.Contains(req.Reference, "full"):
			return conf, caisson.Errorf(caisson.Exhausted, "the disk is full")
		case strings.Contains(req.Reference, "slow"):
			<-ctx.Done()
			return conf, ctx.Err()
		}
		return caisson.ImageConfig{Env: map[string]string{"PATH": "/usr/bin:/bin"}, Workdir: "/"}, nil
	}
	return d
}

// pulled returns the last request for an image.
func (d *images) pulled() caisson.PullRequest {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.last
}

// wires are connected to nothing. They pass requests of programs in sandboxes to the engine.
type wires struct {
	running  chan struct{} // closed by Run, after handlers is set
	handlers wire.Handlers // the handlers of the engine; set by Run

	mu    sync.Mutex
	specs map[caisson.ID]caisson.WireSpec // the specs of the wires, by sandbox; guarded by mu
}

func newWires() *wires {
	return &wires{running: make(chan struct{}), specs: map[caisson.ID]caisson.WireSpec{}}
}

// serving waits until the engine runs, and returns its handlers.
func (w *wires) serving() wire.Handlers {
	<-w.running
	return w.handlers
}

// set stores the spec of the wire of a sandbox.
func (w *wires) set(id caisson.ID, spec caisson.WireSpec) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.specs[id] = spec
}

// guest returns the context of a sandbox's requests to the engine.
func (w *wires) guest(ctx context.Context, id caisson.ID) context.Context {
	w.mu.Lock()
	defer w.mu.Unlock()
	return caisson.WithGuest(ctx, w.specs[id].Guest)
}

// Attach implements [caisson.Wires]: it stores the spec of the wire of sandbox id, and returns /dev/null as its namespace.
func (w *wires) Attach(_ context.Context, id caisson.ID, spec caisson.WireSpec) (*os.File, error) {
	w.set(id, spec)
	return os.Open(os.DevNull)
}

// Reattach implements [caisson.Wires]: it stores the spec of the wire of sandbox id.
func (w *wires) Reattach(_ context.Context, id caisson.ID, _ *os.File, spec caisson.WireSpec) error {
	w.set(id, spec)
	return nil
}

// Configure implements [caisson.Wires]: it replaces the spec of the wire of sandbox id.
func (w *wires) Configure(_ context.Context, id caisson.ID, spec caisson.WireSpec) error {
	w.set(id, spec)
	return nil
}

// Detach implements [caisson.Wires]: it removes the spec of the wire of sandbox id.
func (w *wires) Detach(_ context.Context, id caisson.ID) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.specs, id)
	return nil
}

// Run implements [wire.Supervisor]. It starts no wire process: it stores the engine's handlers and waits until ctx ends.
func (w *wires) Run(ctx context.Context, handlers wire.Handlers) error {
	w.handlers = handlers
	close(w.running)
	<-ctx.Done()
	return nil
}

func (*wires) Refresh(context.Context) error                              { return nil } // no wire process needs new settings
func (*wires) Forget(context.Context, ...string) error                    { return nil } // no wire process has leases of budgets
func (*wires) ChangeRuns(context.Context, caisson.GatewayRunChange) error { return nil } // no wire process has gateway runs
func (*wires) DropSandbox(context.Context, caisson.ID) error              { return nil } // no ingress has connections to it

// Network implements sandboxes.Traffic: it returns the network statistics of a sandbox, which are all 0.
func (*wires) Network(context.Context, caisson.ID) (*caisson.NetworkStats, error) {
	return &caisson.NetworkStats{}, nil
}

// Recent returns one decision, about a name that contains an escape sequence.
func (*wires) Recent(context.Context, caisson.ID) ([]caisson.Decision, error) {
	return []caisson.Decision{{
		At: time.Now().UTC(), Kind: "name", Rule: -1, Reason: "no rule allows it", Name: "evil.example\x1b[31m", Count: 3,
	}}, nil
}

// mismatchedLedger is a ledger that reports one discrepancy for the provider named "p": a call in the provider's records that
// is missing in the ledger.
type mismatchedLedger struct{ caisson.Ledger }

// Reconcile implements [caisson.Ledger]. For the provider named "p" it returns one call that is missing in the ledger.
func (l mismatchedLedger) Reconcile(ctx context.Context, provider string, since time.Time) ([]caisson.Discrepancy, error) {
	if provider != "p" {
		return l.Ledger.Reconcile(ctx, provider, since)
	}
	return []caisson.Discrepancy{{UpstreamID: "x", Problem: "missing here", Upstream: caisson.Dollar / 7}}, nil
}

// catalog returns the models of a [World]: two that can be called, and one without a price.
func catalog() []caisson.Model {
	return []caisson.Model{
		{
			Alias: "large", Provider: "cloud", Upstream: "cloud-large", Context: 200_000, Output: 64_000,
			Prices: &caisson.Prices{Input: 3 * caisson.Dollar, Output: 15 * caisson.Dollar, CacheRead: 3 * caisson.Dollar / 10},
		},
		{Alias: "small", Provider: "local", Upstream: "small", Free: true},
		{Alias: "dear", Provider: "local", Upstream: "dear"},
	}
}

// providers returns the model providers of a [World].
func providers() []caisson.Provider {
	return []caisson.Provider{
		{Name: "cloud", Kind: caisson.ProviderOpenAI, BaseURL: "https://cloud.example/v1"},
		{Name: "local", Kind: caisson.ProviderOpenAI, BaseURL: "https://local.example/v1"},
	}
}

// builtin are the built-in agents of a [World]. Their Command names a file of every image; [agents] runs instead of that file.
func builtin() []*caisson.Agent {
	return []*caisson.Agent{
		{
			ID: "caisson", Name: "Caisson", Driver: caisson.DriverJSONL, Image: "host", Command: []string{"/image"},
			SubAgents: []string{"*"},
		},
		{
			ID: "openclaw", Name: "OpenClaw", Description: "Gets things done", Version: "1.2.3", Driver: caisson.DriverOpenClaw,
			Image: "node:24", Models: []string{"large", "small"}, Warm: &caisson.Warm{Randomness: "openssl"}, Memory: true,
			Personas: []caisson.Persona{{ID: "reviewer"}}, Command: []string{"/image"}, Service: []string{"/.caisson/inside", "test", "sleep", "24h"},
			Setup: []caisson.SetupStep{{Run: []string{"echo", "set up"}}},
		},
	}
}
