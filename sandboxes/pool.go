package sandboxes

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
)

// pool keeps ready sandboxes of templates that ask for them.
//
// A pooled sandbox is an ordinary one of the template's account, marked Pooled: running, without a name, and not yet
// anybody's. A claim takes the mark away in one transaction, so that two claims cannot have the same.
type pool struct {
	c *Core

	mu      sync.Mutex
	filling map[string]bool // account/name of templates being filled; guarded by mu
}

func newPool(c *Core) *pool { return &pool{c: c, filling: map[string]bool{}} }

// claim returns a ready sandbox that is what was prepared, or nil.
func (p *pool) claim(ctx context.Context, want *caisson.Sandbox, req *caisson.CreateRequest) (*caisson.Sandbox, error) {
	if req.NoPool || req.NoStart || req.Image != "" || len(req.Mounts) > 0 || len(req.Command) > 0 || req.Resources != (caisson.Resources{}) {
		return nil, nil
	}
	tpl, err := p.c.Templates().template(ctx, want.Template)
	if err != nil || tpl.Pool == 0 {
		return nil, err
	}
	defer p.refill(tpl)
	ready, err := p.ready(ctx, tpl)
	if err != nil {
		return nil, err
	}
	for _, sb := range ready {
		if sb.Spec.Digest != want.Spec.Digest || sb.Spec.Resources != want.Spec.Resources || sb.Build != p.c.Build {
			continue
		}
		got, err := p.c.setState(ctx, sb.ID, caisson.Running, func(s *caisson.Sandbox) error {
			if !s.Pooled || s.State != caisson.Running {
				return errUnchanged
			}
			command := s.Spec.Command
			s.Pooled, s.Name, s.Labels, s.Spec = false, want.Name, want.Labels, want.Spec
			s.Spec.Command = command
			s.CreatedAt, s.ChangedAt = now(), now()
			setDeadlines(s)
			return nil
		})
		if errors.Is(err, errUnchanged) || caisson.KindOf(err) == caisson.NotFound {
			continue // somebody else was faster
		}
		if err != nil {
			return nil, err
		}
		p.c.deadlines.arm(got)
		p.c.event(ctx, got, "sandbox.claimed", map[string]string{"template": tpl.Name})
		return got, nil
	}
	return nil, nil
}

// ready returns the pooled sandboxes of a template that run.
func (p *pool) ready(ctx context.Context, tpl *caisson.Template) ([]*caisson.Sandbox, error) {
	list, err := all(ctx, p.c.Store.Sandboxes(), caisson.In(tpl.Account), func(s *caisson.Sandbox) caisson.ID { return s.ID })
	var ready []*caisson.Sandbox
	for _, sb := range list {
		if sb.Pooled && sb.Template == tpl.Name && sb.State == caisson.Running {
			ready = append(ready, sb)
		}
	}
	return ready, err
}

// refill brings a template's pool to its size in the background.
func (p *pool) refill(tpl *caisson.Template) {
	key := tpl.Account + "/" + tpl.Name
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.filling[key] || p.c.ctx.Err() != nil {
		return
	}
	p.filling[key] = true
	name, account := tpl.Name, tpl.Account
	p.c.do(func(ctx context.Context) {
		ctx = caisson.WithCaller(ctx, caisson.Caller{Account: account})
		err := p.fill(ctx, name)
		p.mu.Lock()
		delete(p.filling, key)
		p.mu.Unlock()
		if err != nil && ctx.Err() == nil {
			p.c.Log.WarnContext(ctx, "a pool could not be filled", "template", name, "account", account, "err", err)
		}
	})
}

// refillPause is how long refilling waits after each sandbox it makes: claims come first.
const refillPause = 10 * time.Millisecond

// fill makes pooled sandboxes of a template until there are enough, and removes those that are too many or outdated.
func (p *pool) fill(ctx context.Context, name string) error {
	for {
		tpl, err := p.c.Templates().template(ctx, name)
		if caisson.KindOf(err) == caisson.NotFound {
			return nil
		}
		if err != nil {
			return err
		}
		sb, from, hold, err := p.c.Sandboxes().prepare(ctx, &caisson.CreateRequest{Template: name})
		if err != nil {
			return err
		}
		ready, err := p.ready(ctx, tpl)
		if err != nil {
			hold()
			return err
		}
		fit := 0
		for _, r := range ready {
			if fit < tpl.Pool && r.Spec.Digest == sb.Spec.Digest && r.Spec.Resources == sb.Spec.Resources && r.Build == p.c.Build {
				fit++
				continue
			}
			if err := p.discard(ctx, r.ID); err != nil {
				hold()
				return err
			}
		}
		if fit >= tpl.Pool {
			hold()
			return nil
		}
		sb.Pooled = true
		sb.Spec.TTL, sb.Spec.HardTTL = 0, 0 // they count from the claim
		_, err = p.c.Sandboxes().create(ctx, sb, from, &caisson.CreateRequest{})
		hold()
		if err != nil {
			return err
		}
		select {
		case <-time.After(refillPause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// discard removes a pooled sandbox unless it has been claimed meanwhile.
func (p *pool) discard(ctx context.Context, id caisson.ID) error {
	release, err := p.c.locks.acquire(ctx, id)
	if err != nil {
		return err
	}
	defer release()
	_, err = p.c.setState(ctx, id, caisson.Removing, func(s *caisson.Sandbox) error {
		if !s.Pooled {
			return errUnchanged
		}
		return nil
	})
	if errors.Is(err, errUnchanged) || caisson.KindOf(err) == caisson.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	return p.c.Sandboxes().remove(ctx, id, "no longer needed in the pool")
}

// drain removes the pooled sandboxes of a template that is gone.
func (p *pool) drain(ctx context.Context, account, name string) error {
	ready, err := p.ready(ctx, &caisson.Template{Account: account, Name: name})
	for _, sb := range ready {
		err = errors.Join(err, p.discard(ctx, sb.ID))
	}
	return err
}
