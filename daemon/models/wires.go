package models

import (
	"context"
	"os"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/lru"
)

// maxOwners is the maximum number of sandboxes whose accounts are cached.
const maxOwners = 1 << 16

// Wires wraps the wires of sandboxes for model calls: it ingests the calls of a sandbox after its wire is detached, caches the
// account of a sandbox beyond the sandbox's lifetime, and registers a sandbox at a remote gateway before the sandbox can call it.
type Wires struct {
	Wires       caisson.Wires                   // the wrapped wires
	IngestCalls func(ctx context.Context) error // reads finished model calls into the ledger
	Owners      *Owners                         // accounts of sandboxes
	Remote      *RemoteRuns                     // registers sandboxes at a remote gateway; nil if the local gateway serves them
}

var _ caisson.Wires = (*Wires)(nil)

// Attach implements [caisson.Wires].
func (w *Wires) Attach(ctx context.Context, id caisson.ID, spec caisson.WireSpec) (*os.File, error) {
	w.Owners.remember(id, spec.Guest.Account)
	if w.Remote == nil {
		return w.Wires.Attach(ctx, id, spec)
	}
	if err := w.Remote.register(ctx, id, spec); err != nil {
		return nil, err
	}
	f, err := w.Wires.Attach(ctx, id, spec)
	if err != nil && caisson.KindOf(err) != caisson.Conflict {
		w.Remote.unregister(id)
	}
	return f, err
}

// Configure implements [caisson.Wires].
func (w *Wires) Configure(ctx context.Context, id caisson.ID, spec caisson.WireSpec) error {
	if w.Remote != nil {
		if err := w.Remote.register(ctx, id, spec); err != nil {
			return err
		}
	}
	return w.Wires.Configure(ctx, id, spec)
}

// Reattach implements [caisson.Wires].
func (w *Wires) Reattach(ctx context.Context, id caisson.ID, netns *os.File, spec caisson.WireSpec) error {
	w.Owners.remember(id, spec.Guest.Account)
	if w.Remote != nil {
		w.Remote.registerLater(id, spec)
	}
	return w.Wires.Reattach(ctx, id, netns, spec)
}

// Detach implements [caisson.Wires].
func (w *Wires) Detach(ctx context.Context, id caisson.ID) error {
	if err := w.Wires.Detach(ctx, id); err != nil {
		return err
	}
	if w.Remote != nil {
		w.Remote.unregister(id)
	}
	return w.IngestCalls(ctx)
}

// Owners finds the accounts of sandboxes and gateway runs, also of sandboxes that were removed recently.
type Owners struct {
	store caisson.Store

	mu    sync.Mutex
	cache *lru.Map[caisson.ID, string] // accounts by sandbox; guarded by mu
}

// NewOwners returns an Owners, which finds the accounts of the sandboxes and gateway runs in the store.
func NewOwners(store caisson.Store) *Owners {
	return &Owners{store: store, cache: lru.New[caisson.ID, string](maxOwners)}
}

// remember caches the account of a sandbox.
func (o *Owners) remember(id caisson.ID, account string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.cache.Put(id, account)
}

// AccountOf returns the account of a guest, which is a sandbox or a gateway run. It does not rely on g.Account, so that the calls
// of a guest are charged to no other account. Returns NotFound if there is no such guest.
func (o *Owners) AccountOf(g caisson.Guest) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	id := g.Sandbox
	if id == "" {
		return o.store.GatewayRuns().Owner(ctx, g.Run)
	}
	o.mu.Lock()
	account, ok := o.cache.Get(id)
	o.mu.Unlock()
	if ok {
		return account, nil
	}
	sb, err := o.store.Sandboxes().Get(ctx, caisson.AllAccounts(), string(id))
	if err != nil {
		return "", err
	}
	return sb.Account, nil
}
