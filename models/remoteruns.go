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

// How runs are kept registered at a gateway on another machine.
const (
	remoteTTL   = 24 * time.Hour  // a host that is gone is forgotten by then
	remoteAgain = time.Hour       // how old a registration may become
	remoteRetry = 5 * time.Second // between tries
	remoteTime  = 10 * time.Second
	remoteTries = 3 // before a sandbox is refused
)

// RemoteRuns registers the sandboxes here that may call models at the gateway of another machine, which serves them.
type RemoteRuns struct {
	api    func(ctx context.Context) (caisson.GatewayRuns, error)
	budget caisson.Limits // of a sandbox that brings none
	log    *slog.Logger
	wake   chan struct{} // makes run look

	mu   sync.Mutex
	runs map[caisson.ID]*remoteRun // by sandbox; guarded by mu
}

// remoteRun is what is to be registered of one sandbox. Whoever speaks to the gateway about it holds its mutex.
type remoteRun struct {
	mu   sync.Mutex
	id   string              // of the run; "" until it was registered
	want *caisson.GatewayRun // nil: it is to be removed
	at   time.Time           // when it was registered; zero: not as wanted
}

// NewRemoteRuns returns the registrations at the gateway whose API api returns. budget is that of a sandbox that brings none.
func NewRemoteRuns(
	api func(ctx context.Context) (caisson.GatewayRuns, error), budget caisson.Limits, log *slog.Logger,
) *RemoteRuns {
	return &RemoteRuns{api: api, budget: budget, log: log, wake: make(chan struct{}, 1), runs: map[caisson.ID]*remoteRun{}}
}

// of returns what is known of a sandbox, locked.
func (r *RemoteRuns) of(id caisson.ID) *remoteRun {
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
		same := r.runs[id] == x // it may have been forgotten meanwhile
		r.mu.Unlock()
		if same {
			return x
		}
		x.mu.Unlock()
	}
}

// enter registers a sandbox that may call models, and takes back one that may not. It returns when the gateway knows; on an
// error it is as before.
func (r *RemoteRuns) enter(ctx context.Context, id caisson.ID, spec caisson.WireSpec) error {
	if spec.Models == nil {
		r.leave(id)
		return nil
	}
	x := r.of(id)
	defer x.mu.Unlock()
	old, run := x.want, r.run(id, spec)
	if reflect.DeepEqual(old, run) && !x.at.IsZero() {
		return nil
	}
	x.want, x.at = run, time.Time{}
	var err error
	for i := range remoteTries {
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
		x.want, x.at = old, time.Time{} // the gateway may have heard it
		r.look()
	}
	switch kind := caisson.KindOf(err); {
	case err == nil:
		return nil
	case kind == caisson.Invalid:
		return caisson.Wrap(err, kind, "the model gateway of this machine refuses: %s", caisson.MessageOf(err))
	default:
		return caisson.Wrap(err, caisson.Unavailable, "the model gateway of this machine cannot be used: %s", caisson.MessageOf(err))
	}
}

// later is enter for a sandbox that runs already: it is registered in the background.
func (r *RemoteRuns) later(id caisson.ID, spec caisson.WireSpec) {
	if spec.Models == nil {
		return
	}
	x := r.of(id)
	defer x.mu.Unlock()
	x.want, x.at = r.run(id, spec), time.Time{}
	r.look()
}

// run is what the gateway is to know of a sandbox. The account is that of the token.
func (r *RemoteRuns) run(id caisson.ID, spec caisson.WireSpec) *caisson.GatewayRun {
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

// leave takes a sandbox back, in the background.
func (r *RemoteRuns) leave(id caisson.ID) {
	r.mu.Lock()
	x := r.runs[id]
	r.mu.Unlock()
	if x == nil {
		return
	}
	x.mu.Lock()
	x.want = nil
	x.mu.Unlock()
	r.look()
}

func (r *RemoteRuns) look() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// put registers x, whose mutex is held.
func (r *RemoteRuns) put(ctx context.Context, x *remoteRun) error {
	ctx, cancel := context.WithTimeout(ctx, remoteTime)
	defer cancel()
	api, err := r.api(ctx)
	if err != nil {
		return err
	}
	run := *x.want
	run.ExpiresAt = time.Now().Add(remoteTTL)
	x.id = run.Run
	if _, err = api.PutGatewayRun(ctx, run); err == nil {
		x.at = time.Now()
	}
	return err
}

// Run keeps the gateway up to date until ctx ends.
func (r *RemoteRuns) Run(ctx context.Context) error {
	tick := time.NewTicker(remoteRetry)
	defer tick.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-r.wake:
		}
		err := r.update(ctx)
		if err != nil && !failing && ctx.Err() == nil {
			r.log.WarnContext(ctx, "the model gateway of this machine does not know all of its sandboxes; trying again", "err", err)
		}
		failing = err != nil
	}
}

// update does what is to be done, up to the first failure.
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

func (r *RemoteRuns) updateOne(ctx context.Context, id caisson.ID, x *remoteRun) error {
	if x.want != nil {
		if time.Since(x.at) < remoteAgain {
			return nil
		}
		return r.put(ctx, x)
	}
	if x.id != "" {
		ctx, cancel := context.WithTimeout(ctx, remoteTime)
		defer cancel()
		api, err := r.api(ctx)
		if err == nil {
			err = api.RemoveGatewayRun(ctx, x.id)
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
