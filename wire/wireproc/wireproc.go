// Package wireproc constructs the functions of the wire process: policies, the model gateway, the API for sub-runs, the relay's
// HTTP server, the ingress, and the ledger's meter. Like package engine in the daemon, it only connects other packages.
package wireproc

import (
	"context"
	"errors"
	"net/http"
	"os"
	"sync"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/relay/front"
	"github.com/caisson-dev/caisson/ledger"
	"github.com/caisson-dev/caisson/wire"
	"github.com/caisson-dev/caisson/wire/egress"
	"github.com/caisson-dev/caisson/wire/ingress"
	"github.com/caisson-dev/caisson/wire/llm"
	"github.com/caisson-dev/caisson/wire/llm/anthropic"
	"github.com/caisson-dev/caisson/wire/llm/gemini"
	"github.com/caisson-dev/caisson/wire/llm/openai"
	"github.com/caisson-dev/caisson/wire/llm/scripted"
	"github.com/caisson-dev/caisson/wire/subruns"
)

// Process returns the configuration of the wire process.
func Process() wire.Process {
	return wire.Process{
		Compile: func(p caisson.Policy) (caisson.Decider, error) { return egress.Compile(p) },
		Gateway: func(env wire.Env) (wire.Gateway, error) { return newGateway(env) },
	}
}

// A gateway is the [wire.Gateway] of the wire process: the model gateway with its meter, the ingress, and other virtual hosts.
type gateway struct {
	env      wire.Env            // functions that the wire process provides: grants, dialling, requests to the engine
	llm      *llm.Gateway        // the model gateway
	remote   *remoteGateway      // connects llm with other machines
	ingress  *ingress.Ingress    // serves routes
	segments chan ledger.Segment // journal segments that the engine has sent, for nextSegment

	mu    sync.Mutex    // guards meter
	meter *ledger.Meter // nil until the engine has sent the first journal
}

// newGateway returns the gateway of the wire process. It serves no models and no routes until Configure is called.
func newGateway(env wire.Env) (*gateway, error) {
	g := &gateway{env: env, segments: make(chan ledger.Segment, 1)}
	var err error
	g.llm, err = llm.New(llm.Config{
		APIs: []llm.API{
			{Dialect: openai.New(), Kinds: []string{caisson.ProviderOpenAI, caisson.ProviderLiteLLM}},
			{Dialect: anthropic.New(), Kinds: []string{caisson.ProviderAnthropic}, MarkerHeader: "Anthropic-Version"},
			{Dialect: gemini.New(), Kinds: []string{caisson.ProviderGemini}, MarkerHeader: "X-Goog-Api-Key"},
		},
		Meter: g, Grant: g.grant,
		Dial: env.Dial, Local: scriptedHandler, Roots: env.Roots, Record: env.Record, Log: env.Log,
	})
	if err != nil {
		return nil, err
	}
	g.ingress = ingress.New(ingress.Config{Dial: env.DialSandbox, Logged: env.Requested, Used: env.Used, Log: env.Log})
	g.remote, err = newRemoteGateway(env, g.llm)
	return g, err
}

// grant returns the models that the guest of a request may use: those of its run if it is on another machine, otherwise those of
// its wire's spec.
func (g *gateway) grant(ctx context.Context, guest caisson.Guest) *caisson.ModelGrant {
	if grant, theirs := g.remote.grant(ctx, guest); theirs {
		return grant
	}
	return g.env.Grant(ctx)
}

// scriptedHandler returns the handler of providers that follow a script.
func scriptedHandler(_ caisson.Provider, script string) (http.Handler, error) {
	if script == "" {
		script = scripted.Default
	}
	return scripted.New([]byte(script))
}

// Hosts implements [wire.Gateway]. The virtual hosts are llm (models), tools (the API for sub-runs) and git (the relay).
func (g *gateway) Hosts() map[string]http.Handler {
	return map[string]http.Handler{"llm": g.remote.handler(g.llm), "tools": subruns.Handler(g.env.Tool), "git": front.Handler(g.env.Stream)}
}

// Configure implements [wire.Gateway]: it configures model calls to and from other machines, routes, and providers and models.
func (g *gateway) Configure(c caisson.GatewayConfig) error {
	g.remote.configure(c.Remote)
	return errors.Join(g.ingress.Configure(c.Ingress), g.llm.Configure(c))
}

// Forget implements [wire.Gateway]: it makes the meter give back the leases of the budgets with these keys.
func (g *gateway) Forget(budgets []string) {
	if m := g.currentMeter(); m != nil {
		m.Invalidate(budgets...)
	}
}

// Journal implements [wire.Gateway]. The first journal creates the meter; further journals are passed to the meter when it
// requests one.
func (g *gateway) Journal(id caisson.ID, f *os.File) error {
	page := ledger.Segment{
		Journal: &notifyingFile{f, g.env.Grew}, Lessor: g.env.Lessor(id),
		Done: func() {
			f.Close()
			g.env.Finished(id)
		},
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.meter == nil {
		m, err := ledger.NewMeter(ledger.Config{Segment: page, Next: g.nextSegment, Log: g.env.Log})
		if err != nil {
			f.Close()
			return err
		}
		g.meter = m
		go m.Run(context.Background()) // runs until the process exits
		return nil
	}
	select {
	case g.segments <- page:
		return nil
	default:
		f.Close()
		return errors.New("a journal arrived that was not requested")
	}
}

// nextSegment requests another journal from the engine and waits for it.
func (g *gateway) nextSegment(ctx context.Context) (ledger.Segment, error) {
	g.env.Rotate()
	select {
	case p := <-g.segments:
		return p, nil
	case <-ctx.Done():
		return ledger.Segment{}, ctx.Err()
	}
}

// currentMeter returns the meter, or nil if there is no journal yet.
func (g *gateway) currentMeter() *ledger.Meter {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.meter
}

// Reserve implements [caisson.Meter] with the ledger's meter. It returns Unavailable until there is a journal.
func (g *gateway) Reserve(ctx context.Context, call caisson.Call, d caisson.Demand) (caisson.Reservation, error) {
	m := g.currentMeter()
	if m == nil {
		return nil, caisson.Errorf(caisson.Unavailable, "the ledger is not there yet; try again")
	}
	return m.Reserve(ctx, call, d)
}

// notifyingFile is a journal that notifies the engine when it grows.
type notifyingFile struct {
	file *os.File // the journal
	grew func()   // called after each write, to notify the engine
}

// Write appends p to the journal.
func (a *notifyingFile) Write(p []byte) (int, error) {
	n, err := a.file.Write(p)
	a.grew()
	return n, err
}
