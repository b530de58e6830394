package engine

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/egress"
	"github.com/caisson-dev/caisson/internal/lru"
	"github.com/caisson-dev/caisson/internal/reach"
	"github.com/caisson-dev/caisson/ledger"
)

// journals is the book as the wires know it.
type journals struct{ *ledger.Book }

// Grew is no news: the book looks by itself, and before every question.
func (journals) Grew() {}

// maxOwners bounds how many sandboxes that are gone are remembered.
const maxOwners = 1 << 16

// wires are the wire manager's, with the ledger in mind: what a sandbox's calls cost is known when its wire has gone, and
// to whom it belonged is known longer than the sandbox exists.
type wires struct {
	caisson.Wires
	book   *ledger.Book
	owners *owners
	remote *remoteRuns // nil: the gateway here serves the sandboxes here
}

// Attach implements [caisson.Wires].
func (w *wires) Attach(ctx context.Context, id caisson.ID, spec caisson.WireSpec) (*os.File, error) {
	w.owners.remember(id, spec.Guest.Account)
	if w.remote == nil {
		return w.Wires.Attach(ctx, id, spec)
	}
	if err := w.remote.enter(ctx, id, spec); err != nil {
		return nil, err
	}
	f, err := w.Wires.Attach(ctx, id, spec)
	if err != nil && caisson.KindOf(err) != caisson.Conflict {
		w.remote.leave(id)
	}
	return f, err
}

// Configure implements [caisson.Wires].
func (w *wires) Configure(ctx context.Context, id caisson.ID, spec caisson.WireSpec) error {
	if w.remote != nil {
		if err := w.remote.enter(ctx, id, spec); err != nil {
			return err
		}
	}
	return w.Wires.Configure(ctx, id, spec)
}

// Reattach implements [caisson.Wires].
func (w *wires) Reattach(ctx context.Context, id caisson.ID, netns *os.File, spec caisson.WireSpec) error {
	w.owners.remember(id, spec.Guest.Account)
	if w.remote != nil {
		w.remote.later(id, spec)
	}
	return w.Wires.Reattach(ctx, id, netns, spec)
}

// Detach implements [caisson.Wires].
func (w *wires) Detach(ctx context.Context, id caisson.ID) error {
	if err := w.Wires.Detach(ctx, id); err != nil {
		return err
	}
	if w.remote != nil {
		w.remote.leave(id)
	}
	return w.book.Ingest(ctx)
}

// owners says whose guests are, also for a while after a sandbox has gone.
type owners struct {
	store caisson.Store

	mu   sync.Mutex
	past *lru.Map[caisson.ID, string] // accounts by sandbox; guarded by mu
}

func newOwners(store caisson.Store) *owners {
	return &owners{store: store, past: lru.New[caisson.ID, string](maxOwners)}
}

func (o *owners) remember(id caisson.ID, account string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.past.Put(id, account)
}

// of says whose sandbox, or run on another machine, a guest is, so that no row of the ledger charges somebody else.
func (o *owners) of(g caisson.Guest) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	id := g.Sandbox
	if id == "" {
		return o.store.GatewayRuns().Owner(ctx, g.Run)
	}
	o.mu.Lock()
	account, ok := o.past.Get(id)
	o.mu.Unlock()
	if ok {
		return account, nil
	}
	sb, err := o.store.Sandboxes().Get(ctx, caisson.Everyone(), string(id))
	if err != nil {
		return "", err
	}
	return sb.Account, nil
}

// record opens the file in which a sandbox's calls of models are recorded. It goes with the sandbox.
func (e *Engine) record(id caisson.ID) (*os.File, error) {
	root, err := os.OpenRoot(filepath.Join(e.cfg.Dir, "sandboxes", string(id)))
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return root.OpenFile("models.jsonl", os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
}

// policies is package egress as the core knows it.
type policies struct{ host reach.Host }

func (policies) Check(p caisson.Policy) (caisson.Policy, error) {
	c, err := egress.Compile(p)
	if err != nil {
		return p, err
	}
	return c.Source(), nil
}

func (policies) Explain(p caisson.Policy, target string) (*caisson.Explanation, error) {
	c, err := egress.Compile(p)
	if err != nil {
		return nil, err
	}
	return c.Explain(target)
}

// Inward asks which addresses are the host's now; one that it gets later, a rule that names it alone leads to.
func (p policies) Inward(policy caisson.Policy) (int, bool) {
	return egress.Inward(policy, func(a netip.Addr) bool {
		own, err := p.host.Own(a)
		return own || err != nil && !reach.NoRoute(err)
	})
}

func (policies) Presets() []caisson.Preset { return egress.Presets() }
