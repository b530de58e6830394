package models

import (
	"context"
	"log/slog"
	"maps"
	"reflect"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
)

// Timing of the registrations at a gateway on another machine.
const (
	remoteTTL        = 24 * time.Hour   // validity of a registration; without renewal, as after the loss of this host, it ends
	remoteRenewAfter = time.Hour        // age at which a registration is renewed
	remoteInterval   = 5 * time.Second  // interval at which failed requests are repeated, and old registrations are renewed
	remoteTimeout    = 10 * time.Second // timeout of one request
	remoteAttempts   = 3                // tries before register returns an error
)

// RemoteRuns registers the local sandboxes that may call models at a gateway on another machine, which serves their calls.
type RemoteRuns struct {
	api     func(ctx context.Context) (caisson.GatewayRuns, error) // returns the API of the other machine
	budget  caisson.Limits                                         // budget of a sandbox that has none of its own
	log     *slog.Logger
	changed chan struct{} // a value in it makes Run update the registrations soon

	mu   sync.Mutex
	runs map[caisson.ID]*remoteRun // registrations by sandbox; guarded by mu
}

// remoteRun is the desired and the actual registration of one sandbox. Its mutex is held during requests to the gateway about
// the sandbox.
type remoteRun struct {
	mu           sync.Mutex
	registeredID string              // id of the gateway run in the last request to the gateway; "" before the first request
	desired      *caisson.GatewayRun // desired registration; nil if the registration is to be removed
	registeredAt time.Time           // time at which the gateway confirmed desired; zero if desired is not confirmed
}

// NewRemoteRuns returns a RemoteRuns that has registered no sandbox yet. Before each request to the remote gateway it calls api,
// which returns a client of that gateway. budget is the default budget of a sandbox.
func NewRemoteRuns(
	api func(ctx context.Context) (caisson.GatewayRuns, error), budget caisson.Limits, log *slog.Logger,
) *RemoteRuns {
	return &RemoteRuns{api: api, budget: budget, log: log, changed: make(chan struct{}, 1), runs: map[caisson.ID]*remoteRun{}}
}

// lock returns the registration of a sandbox, with its mutex locked.
func (r *RemoteRuns) lock(id caisson.ID) *remoteRun {
	for {
		r.mu.Lock()
		x := r.runs[id]
		if x == nil {
			x = &remoteRun{}
			r.runs[id] = x
		}
		r.mu.Unlock()
		x.mu.Lock()
		r.mu.Lock()
		same := r.runs[id] == x // false if the entry was deleted while lock waited for x.mu
		r.mu.Unlock()
		if same {
			return x
		}
		x.mu.Unlock()
	}
}

// register registers a sandbox that may call models, and removes the registration of a sandbox that may not. It returns when
// the gateway has confirmed the registration. On an error the previous registration stays in force.
func (r *RemoteRuns) register(ctx context.Context, id caisson.ID, spec caisson.WireSpec) error {
	if spec.Models == nil {
		r.unregister(id)
		return nil
	}
	x := r.lock(id)
	defer x.mu.Unlock()
	old, run := x.desired, r.registration(id, spec)
	if reflect.DeepEqual(old, run) && !x.registeredAt.IsZero() {
		return nil
	}
	x.desired, x.registeredAt = run, time.Time{}
	var err error
	for i := range remoteAttempts {
		if i > 0 {
			select {
			case <-time.After(200 * time.Millisecond << i):
			case <-ctx.Done():
			}
		}
		if err = r.put(ctx, x); caisson.KindOf(err) != caisson.Unavailable {
			break
		}
	}
	if err != nil {
		x.desired, x.registeredAt = old, time.Time{} // old is sent again, because the gateway may have replaced it by run
		r.trigger()
	}
	switch kind := caisson.KindOf(err); {
	case err == nil:
		return nil
	case kind == caisson.Invalid:
		return caisson.Wrap(err, kind, "the remote model gateway has rejected the sandbox: %s", caisson.MessageOf(err))
	default:
		return caisson.Wrap(err, caisson.Unavailable, "the remote model gateway cannot be used: %s", caisson.MessageOf(err))
	}
}

// registerLater sets the desired registration of a sandbox that is already running. Run sends it to the gateway in the
// background.
func (r *RemoteRuns) registerLater(id caisson.ID, spec caisson.WireSpec) {
	if spec.Models == nil {
		return
	}
	x := r.lock(id)
	defer x.mu.Unlock()
	x.desired, x.registeredAt = r.registration(id, spec), time.Time{}
	r.trigger()
}

// registration returns the registration of a sandbox. The gateway sets the account, which is that of the token.
func (r *RemoteRuns) registration(id caisson.ID, spec caisson.WireSpec) *caisson.GatewayRun {
	g := spec.Guest
	run := &caisson.GatewayRun{Run: g.Run, Attempt: g.Attempt, Session: g.Session, Agent: g.Agent, User: g.User, Models: *spec.Models}
	if run.Run == "" {
		run.Run = string(id)
	}
	if run.Models.Budget.IsZero() {
		run.Models.Budget = r.budget
	}
	return run
}

// unregister removes the registration of a sandbox in the background.
func (r *RemoteRuns) unregister(id caisson.ID) {
	r.mu.Lock()
	x := r.runs[id]
	r.mu.Unlock()
	if x == nil {
		return
	}
	x.mu.Lock()
	x.desired = nil
	x.mu.Unlock()
	r.trigger()
}

// trigger makes Run update the registrations soon. It does not block.
func (r *RemoteRuns) trigger() {
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// put registers x.desired at the gateway. The caller must hold x.mu.
func (r *RemoteRuns) put(ctx context.Context, x *remoteRun) error {
	ctx, cancel := context.WithTimeout(ctx, remoteTimeout)
	defer cancel()
	api, err := r.api(ctx)
	if err != nil {
		return err
	}
	run := *x.desired
	run.ExpiresAt = time.Now().Add(remoteTTL)
	x.registeredID = run.Run
	if _, err = api.PutGatewayRun(ctx, run); err == nil {
		x.registeredAt = time.Now()
	}
	return err
}

// Run keeps the registrations up to date until ctx is done.
func (r *RemoteRuns) Run(ctx context.Context) error {
	tick := time.NewTicker(remoteInterval)
	defer tick.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-r.changed:
		}
		err := r.update(ctx)
		if err != nil && !failing && ctx.Err() == nil {
			r.log.WarnContext(ctx, "the model gateway of this machine does not know all of its sandboxes; trying again", "err", err)
		}
		failing = err != nil
	}
}

// update sends the desired registrations to the gateway, up to the first failure.
func (r *RemoteRuns) update(ctx context.Context) error {
	r.mu.Lock()
	runs := maps.Clone(r.runs)
	r.mu.Unlock()
	for id, x := range runs {
		x.mu.Lock()
		err := r.updateOne(ctx, id, x)
		x.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// updateOne renews or removes the registration of one sandbox at the gateway if that is due. The caller must hold x.mu.
func (r *RemoteRuns) updateOne(ctx context.Context, id caisson.ID, x *remoteRun) error {
	if x.desired != nil {
		if time.Since(x.registeredAt) < remoteRenewAfter {
			return nil
		}
		return r.put(ctx, x)
	}
	if x.registeredID != "" {
		ctx, cancel := context.WithTimeout(ctx, remoteTimeout)
		defer cancel()
		api, err := r.api(ctx)
		if err == nil {
			err = api.RemoveGatewayRun(ctx, x.registeredID)
		}
		if err != nil && caisson.KindOf(err) != caisson.NotFound {
			return err
		}
	}
	r.mu.Lock()
	delete(r.runs, id)
	r.mu.Unlock()
	return nil
}
