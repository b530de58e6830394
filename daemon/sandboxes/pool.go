package sandboxes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/background"
	"github.com/caisson-dev/caisson/internal/timing"
)

// pools keeps sandboxes running in advance: sandboxes of templates, and forks of snapshots.
//
// A pooled sandbox is an ordinary sandbox of the account with Pooled set: running, without a name, and not yet in use. A claim
// clears Pooled in one transaction, so that two claims cannot get the same sandbox.
type pools struct {
	planner    *planner          // resolves requests into plans
	creator    *creator          // executes plans
	remover    *remover          // removes sandboxes
	states     states            // stored records of sandboxes
	network    network           // configures wires and creates budgets
	deadlines  *deadlines        // timers for TTLs and autoPause
	admission  *admission        // decides whether the host has room
	background *background.Group // background goroutines of the core
	log        *slog.Logger

	forking sync.Mutex // held while a pooled fork is created, so that two of them cannot exceed Limits.PoolMemory together
	mu      sync.Mutex
	filling map[poolKey]int // number of requests to fill each pool that is being filled; guarded by mu
}

// A poolKey identifies a pool: the template or the snapshot that its sandboxes are made from.
type poolKey struct {
	account  string     // account that owns the pool
	template string     // name of the template, or of the template of the snapshot
	snapshot caisson.ID // id of the snapshot; "" for the pool of a template
}

// templatePoolKey returns the key of a template's pool.
func templatePoolKey(t *caisson.Template) poolKey { return poolKey{t.Account, t.Name, ""} }

// forkPoolKey returns the key of the pool of a snapshot's forks.
func forkPoolKey(s *caisson.Snapshot) poolKey { return poolKey{s.Account, s.Template, s.ID} }

// contains reports whether a sandbox is in the pool that k identifies.
func (k poolKey) contains(sb *caisson.Sandbox) bool {
	return sb.Pooled && sb.Account == k.account && sb.Template == k.template && sb.Parent == k.snapshot
}

// canAnswer reports whether the pooled sandbox sb satisfies a request for a sandbox with the record want.
func (k poolKey) canAnswer(sb, want *caisson.Sandbox) bool {
	if k.snapshot == "" {
		return matchesSpec(sb, want)
	}
	return sb.State == caisson.Running && sb.Reason == "" && sb.Spec.Resources == want.Spec.Resources
}

// create claims a pooled sandbox that matches a plan and its request, and returns it, or nil if there is none.
func (p *pools) create(ctx context.Context, pl *plan, req *caisson.CreateRequest) (*caisson.Sandbox, error) {
	if pl.from != nil || req.NoPool || req.NoStart || req.Workspace != nil || req.Placeholder != "" || req.Image != "" || len(req.Mounts) > 0 || len(req.Command) > 0 || req.Resources != (caisson.Resources{}) {
		return nil, nil
	}
	tpl, err := p.planner.catalog.get(ctx, pl.sandbox.Template)
	if err != nil || tpl.Pool == 0 {
		return nil, err
	}
	got, err := p.claim(ctx, templatePoolKey(tpl), pl.sandbox)
	if got != nil {
		p.states.event(ctx, got, "sandbox.claimed", map[string]string{"template": tpl.Name})
	}
	return got, err
}

// fork claims a pooled fork of a snapshot that matches a request, which has been checked, and returns it, or nil if there is
// none. A request with a workspace gets none, because a running fork cannot get a workspace.
func (p *pools) fork(ctx context.Context, snap *caisson.Snapshot, req *caisson.ForkRequest) (*caisson.Sandbox, error) {
	if snap.Pool == 0 || req.Count != 1 || req.Workspace != nil || req.KeepRandomness {
		return nil, nil
	}
	began := time.Now()
	plans, err := p.planner.forks(snapshotOrigin(snap), p.planner.dirs.snapshotDir(snap.ID), req)
	if err != nil {
		return nil, err
	}
	got, err := p.claim(ctx, forkPoolKey(snap), plans[0].sandbox)
	if got != nil {
		p.states.event(ctx, got, "sandbox.claimed", map[string]string{"parent": string(snap.ID)})
		timing.RecordTime(ctx, "claim", began)
	}
	return got, err
}

// claim claims a sandbox of a pool and gives it the name, labels, spec and assignment of want. It returns nil if no sandbox of
// the pool satisfies want. In any case it starts to refill the pool.
func (p *pools) claim(ctx context.Context, key poolKey, want *caisson.Sandbox) (*caisson.Sandbox, error) {
	defer p.refill(key)
	ready, err := p.pooled(ctx, key)
	if err != nil {
		return nil, err
	}
	for _, sb := range ready {
		if !key.canAnswer(sb, want) {
			continue
		}
		got, err := p.states.set(ctx, sb.ID, caisson.Running, func(s *caisson.Sandbox) error {
			if !s.Pooled || s.State != caisson.Running {
				return errUnchanged
			}
			command := s.Spec.Command
			s.Pooled, s.Name, s.Labels, s.Spec = false, want.Name, want.Labels, want.Spec
			s.Spec.Command, s.Assigned = command, want.Assigned
			s.CreatedAt, s.ChangedAt = now(), now()
			if s.Assigned != nil {
				s.SharedRandomness = nil // forks for runs are not searched for programs with shared random numbers
			}
			setDeadlines(s)
			return nil
		})
		if errors.Is(err, errUnchanged) || caisson.KindOf(err) == caisson.NotFound {
			continue // Another request has claimed or removed the sandbox.
		}
		if err != nil {
			return nil, err
		}
		err = p.network.createBudget(ctx, got)
		if err == nil {
			err = p.network.configure(ctx, got)
		}
		if err != nil {
			// The sandbox has no budget, or its wire is not configured: it cannot be used for the request.
			return nil, errors.Join(err, p.remover.forceRemove(context.WithoutCancel(ctx), got.ID))
		}
		p.deadlines.activity.recordUse(got.ID)
		p.deadlines.arm(got)
		return got, nil
	}
	return nil, nil
}

// pooled returns the sandboxes of a pool.
func (p *pools) pooled(ctx context.Context, key poolKey) ([]*caisson.Sandbox, error) {
	list, err := p.states.list(ctx, caisson.In(key.account))
	list = slices.DeleteFunc(list, func(sb *caisson.Sandbox) bool { return !key.contains(sb) })
	return list, err
}

// matchesSpec reports whether the spec of the pooled sandbox sb satisfies want. Environment, working directory and user are
// compared only if the sandbox has a command or services, which already run with them.
func matchesSpec(sb, want *caisson.Sandbox) bool {
	a, b := &sb.Spec, &want.Spec
	return sb.State == caisson.Running && sb.Build == want.Build && a.Digest == b.Digest && a.Resources == b.Resources && a.Randomness == b.Randomness &&
		slices.Equal(a.Command, b.Command) && reflect.DeepEqual(a.Services, b.Services) &&
		(len(a.Command) == 0 && len(a.Services) == 0 || maps.Equal(a.Env, b.Env) && a.Workdir == b.Workdir && a.User == b.User)
}

// refillAll starts to fill the pools of all templates and snapshots, in the background.
func (p *pools) refillAll(ctx context.Context) error {
	snaps, err := caisson.ListAll(ctx, p.planner.snapshots, caisson.AllAccounts(), snapshotID)
	if err != nil {
		return err
	}
	tpls, err := p.planner.catalog.list(ctx, caisson.AllAccounts())
	if err != nil {
		return err
	}
	for _, s := range snaps {
		if s.Pool > 0 {
			p.refill(forkPoolKey(s))
		}
	}
	for _, t := range tpls {
		if t.Pool > 0 {
			p.refill(templatePoolKey(t))
		}
	}
	return nil
}

// refill fills a pool to its size, in the background.
func (p *pools) refill(key poolKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.filling[key]++
	if p.filling[key] > 1 {
		return
	}
	p.background.Start(func(ctx context.Context) {
		ctx = caisson.WithCaller(ctx, caisson.Caller{Account: key.account})
		for asked := 0; p.refillRequested(key, &asked); {
			if err := p.fill(ctx, key); err != nil && ctx.Err() == nil {
				level := slog.LevelWarn
				if caisson.KindOf(err) == caisson.Exhausted {
					level = slog.LevelInfo // expected, because a pool gets only the capacity that other sandboxes leave
				}
				p.log.Log(ctx, level, "a pool could not be filled", "template", key.template, "snapshot", key.snapshot, "account", key.account, "err", err)
			}
		}
	})
}

// refillRequested reports whether more than *asked requests to fill a pool have arrived, so that it has to be filled again, and
// sets *asked to their number. If there are no more, or the daemon stops, it returns false and removes key from p.filling.
func (p *pools) refillRequested(key poolKey, asked *int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.filling[key] == *asked || p.background.Context().Err() != nil {
		delete(p.filling, key)
		return false
	}
	*asked = p.filling[key]
	return true
}

// refillPause is the pause after each sandbox that a refill creates, because claims have priority.
const refillPause = 10 * time.Millisecond

// fill creates sandboxes until a pool has its size, and removes surplus and outdated sandboxes from it.
func (p *pools) fill(ctx context.Context, key poolKey) error {
	for {
		pl, size, release, err := p.planner.pooled(ctx, key)
		if err != nil {
			return err
		}
		if size == 0 {
			// The removal of the template or snapshot may have missed a sandbox that was created just before.
			release()
			return p.removeAll(ctx, key)
		}
		full, err := p.removeUnfit(ctx, key, size, pl.sandbox)
		if err == nil && !full {
			err = p.add(ctx, pl)
		}
		release()
		if err != nil || full {
			return err
		}
		select {
		case <-time.After(refillPause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// add creates a pooled sandbox. For a fork, add returns only when the runtime has restored all of the fork's memory.
func (p *pools) add(ctx context.Context, pl *plan) error {
	pl.sandbox.Pooled = true
	pl.sandbox.Spec.TTL, pl.sandbox.Spec.HardTTL = 0, 0 // TTLs are counted from the claim.
	if pl.from != nil {
		p.forking.Lock()
		defer p.forking.Unlock()
	}
	sb, err := p.creator.execute(ctx, pl)
	if err != nil || pl.from == nil {
		return err
	}
	if sb.Reason != "" {
		return errors.Join(fmt.Errorf("the fork started without the memory of its snapshot: %s", sb.Reason), p.remover.discard(ctx, sb.ID, "without the memory of its snapshot", isPooled))
	}
	return p.admission.waitForMemory(ctx, sb.ID)
}

// removeUnfit removes sandboxes from a pool that do not satisfy want or exceed the size of the pool. It reports whether the pool
// then has size sandboxes.
func (p *pools) removeUnfit(ctx context.Context, key poolKey, size int, want *caisson.Sandbox) (full bool, err error) {
	list, err := p.pooled(ctx, key)
	if err != nil {
		return false, err
	}
	fit := 0
	for _, sb := range list {
		if fit < size && key.canAnswer(sb, want) {
			fit++
		} else if err := p.remover.discard(ctx, sb.ID, "no longer needed in the pool", isPooled); err != nil {
			return false, err
		}
	}
	return fit >= size, nil
}

// removeAll removes all sandboxes of a pool.
func (p *pools) removeAll(ctx context.Context, key poolKey) error {
	list, err := p.pooled(ctx, key)
	for _, sb := range list {
		err = errors.Join(err, p.remover.discard(ctx, sb.ID, "no longer needed in the pool", isPooled))
	}
	return err
}

// isPooled reports whether a sandbox is in a pool and has not been claimed.
func isPooled(sb *caisson.Sandbox) bool { return sb.Pooled }
