package sandboxes

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/background"
)

// pool keeps running sandboxes ready for templates with a pool size.
//
// A pooled sandbox is an ordinary sandbox of the template's account with Pooled set: running, without a name, and not
// yet in use. A claim clears Pooled in one transaction, so that two claims cannot get the same sandbox.
type pool struct {
	catalog    catalog
	planner    *planner
	creator    *creator
	remover    *remover
	states     states
	network    network
	deadlines  *deadlines
	background *background.Group
	log        *slog.Logger

	mu      sync.Mutex
	filling map[string]int // requests to fill each pool that is being filled, by account/name of its template; guarded by mu
}

// claim returns a pooled sandbox that matches a plan and its request, or nil if there is none.
func (p *pool) claim(ctx context.Context, pl *plan, req *caisson.CreateRequest) (*caisson.Sandbox, error) {
	if pl.from != nil || req.NoPool || req.NoStart || req.Workspace != nil || req.Placeholder != "" || req.Image != "" || len(req.Mounts) > 0 || len(req.Command) > 0 || req.Resources != (caisson.Resources{}) {
		return nil, nil
	}
	want := pl.sandbox
	tpl, err := p.catalog.get(ctx, want.Template)
	if err != nil || tpl.Pool == 0 {
		return nil, err
	}
	defer p.refill(tpl)
	ready, err := p.pooled(ctx, tpl)
	if err != nil {
		return nil, err
	}
	for _, sb := range ready {
		if !matchesSpec(sb, want) {
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
			setDeadlines(s)
			return nil
		})
		if errors.Is(err, errUnchanged) || caisson.KindOf(err) == caisson.NotFound {
			continue // Another claim was faster.
		}
		if err != nil {
			return nil, err
		}
		err = p.network.createBudget(ctx, got)
		if err == nil {
			err = p.network.configure(ctx, got)
		}
		if err != nil {
			// Without its wire's configuration the sandbox does not match the request.
			return nil, errors.Join(err, p.remover.end(context.WithoutCancel(ctx), got.ID))
		}
		p.deadlines.activity.touch(got.ID)
		p.deadlines.arm(got)
		p.states.event(ctx, got, "sandbox.claimed", map[string]string{"template": tpl.Name})
		return got, nil
	}
	return nil, nil
}

// pooled returns the pooled sandboxes of a template.
func (p *pool) pooled(ctx context.Context, tpl *caisson.Template) ([]*caisson.Sandbox, error) {
	list, err := p.states.list(ctx, caisson.In(tpl.Account))
	list = slices.DeleteFunc(list, func(sb *caisson.Sandbox) bool { return !sb.Pooled || sb.Template != tpl.Name })
	return list, err
}

// matchesSpec reports whether the pooled sandbox sb matches want. Environment, working directory and user matter only to the
// command and the services, which already run with them.
func matchesSpec(sb, want *caisson.Sandbox) bool {
	a, b := &sb.Spec, &want.Spec
	return sb.State == caisson.Running && sb.Build == want.Build && a.Digest == b.Digest && a.Resources == b.Resources && a.Randomness == b.Randomness &&
		slices.Equal(a.Command, b.Command) && reflect.DeepEqual(a.Services, b.Services) &&
		(len(a.Command) == 0 && len(a.Services) == 0 || maps.Equal(a.Env, b.Env) && a.Workdir == b.Workdir && a.User == b.User)
}

// refill fills a template's pool to its size, in the background.
func (p *pool) refill(tpl *caisson.Template) {
	key := tpl.Account + "/" + tpl.Name
	p.mu.Lock()
	defer p.mu.Unlock()
	p.filling[key]++
	if p.filling[key] > 1 {
		return
	}
	name, account := tpl.Name, tpl.Account
	p.background.Start(func(ctx context.Context) {
		ctx = caisson.WithCaller(ctx, caisson.Caller{Account: account})
		for asked := 0; p.refillRequested(key, &asked); {
			if err := p.fill(ctx, name); err != nil && ctx.Err() == nil {
				p.log.WarnContext(ctx, "a pool could not be filled", "template", name, "account", account, "err", err)
			}
		}
	})
}

// refillRequested reports whether the number of requests to fill a pool has changed since it was *asked, and sets *asked to the
// new number. If it has not changed, it removes key from p.filling.
func (p *pool) refillRequested(key string, asked *int) bool {
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

// fill creates pooled sandboxes of a template until there are enough, and removes surplus and outdated ones.
func (p *pool) fill(ctx context.Context, name string) error {
	for {
		tpl, err := p.catalog.get(ctx, name)
		if caisson.KindOf(err) == caisson.NotFound {
			// The removal of the template may have missed a sandbox that was created just before.
			_, caller, err := scope(ctx)
			if err != nil {
				return err
			}
			return p.removeAll(ctx, caller.Account, name)
		}
		if err != nil {
			return err
		}
		if tpl.Pool == 0 {
			return p.removeAll(ctx, tpl.Account, tpl.Name)
		}
		pl, hold, err := p.planner.fresh(ctx, &caisson.CreateRequest{Template: name})
		if err != nil {
			return err
		}
		full, err := p.removeUnfit(ctx, tpl, pl.sandbox)
		if err == nil && !full {
			pl.sandbox.Pooled = true
			pl.sandbox.Spec.TTL, pl.sandbox.Spec.HardTTL = 0, 0 // TTLs are counted from the claim.
			_, err = p.creator.execute(ctx, pl)
		}
		hold()
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

// removeUnfit removes the pooled sandboxes of a template that do not match want or exceed the pool size, and reports whether
// enough are left.
func (p *pool) removeUnfit(ctx context.Context, tpl *caisson.Template, want *caisson.Sandbox) (full bool, err error) {
	list, err := p.pooled(ctx, tpl)
	if err != nil {
		return false, err
	}
	fit := 0
	for _, sb := range list {
		if fit < tpl.Pool && matchesSpec(sb, want) {
			fit++
		} else if err := p.remover.discard(ctx, sb.ID, "no longer needed in the pool", isPooled); err != nil {
			return false, err
		}
	}
	return fit >= tpl.Pool, nil
}

// removeAll removes all pooled sandboxes of a template.
func (p *pool) removeAll(ctx context.Context, account, name string) error {
	list, err := p.pooled(ctx, &caisson.Template{Account: account, Name: name})
	for _, sb := range list {
		err = errors.Join(err, p.remover.discard(ctx, sb.ID, "no longer needed in the pool", isPooled))
	}
	return err
}

// isPooled reports whether a sandbox is in a pool and has not been claimed.
func isPooled(sb *caisson.Sandbox) bool { return sb.Pooled }
