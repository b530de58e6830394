package apitest

import (
	"context"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/egress"
)

// policyCore compiles and explains for real; only what a wire would have refused is made up.
type policyCore struct{ m *Memory }

func (c policyCore) GetPolicy(ctx context.Context, ref string) (*caisson.Policy, error) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	b, err := c.m.find(ctx, ref)
	if err != nil {
		return nil, err
	}
	p := b.Spec.Policy
	return &p, nil
}

func (c policyCore) SetPolicy(ctx context.Context, ref string, p caisson.Policy) (*caisson.Policy, error) {
	compiled, err := egress.Compile(p)
	if err != nil {
		return nil, err
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	b, err := c.m.find(ctx, ref)
	if err != nil {
		return nil, err
	}
	b.Spec.Policy = compiled.Source()
	c.m.event(b.Account, "sandbox.policy", string(b.ID))
	return &b.Spec.Policy, nil
}

func (c policyCore) ExplainPolicy(ctx context.Context, ref, target string) (*caisson.Explanation, error) {
	p, err := c.GetPolicy(ctx, ref)
	if err != nil {
		return nil, err
	}
	e := &caisson.Explanation{}
	if target != "" {
		compiled, err := egress.Compile(*p)
		if err != nil {
			return nil, err
		}
		if e, err = compiled.Explain(target); err != nil {
			return nil, err
		}
	}
	e.Recent = []caisson.Decision{{
		At: time.Now().UTC(), Kind: "name", Rule: -1, Reason: "no rule allows it", Name: "evil.example\x1b[31m", Count: 3,
	}}
	return e, nil
}

func (c policyCore) TestPolicy(_ context.Context, p caisson.Policy, targets []string) ([]caisson.Explanation, error) {
	compiled, err := egress.Compile(p)
	if err != nil {
		return nil, err
	}
	var out []caisson.Explanation
	for _, target := range targets {
		e, err := compiled.Explain(target)
		if err != nil {
			return nil, err
		}
		out = append(out, *e)
	}
	return out, nil
}

func (c policyCore) Presets(context.Context) ([]caisson.Preset, error) { return egress.Presets(), nil }
