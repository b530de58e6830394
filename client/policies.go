package client

import (
	"context"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// policies implements [caisson.Policies] by requests to a daemon.
type policies struct{ c *requester }

// GetPolicy implements [caisson.Policies].
func (p policies) GetPolicy(ctx context.Context, ref string) (*caisson.Policy, error) {
	return call[*caisson.Policy](ctx, p.c, get("sandboxes", ref, "policy"))
}

// SetPolicy implements [caisson.Policies].
func (p policies) SetPolicy(ctx context.Context, ref string, policy caisson.Policy) (*caisson.Policy, error) {
	return call[*caisson.Policy](ctx, p.c, put(policy, "sandboxes", ref, "policy"))
}

// ExplainPolicy implements [caisson.Policies].
func (p policies) ExplainPolicy(ctx context.Context, ref, target string) (*caisson.Explanation, error) {
	return call[*caisson.Explanation](ctx, p.c, get("sandboxes", ref, "policy", "explain").withParam("target", target))
}

// TestPolicy implements [caisson.Policies].
func (p policies) TestPolicy(ctx context.Context, policy caisson.Policy, targets []string) ([]caisson.Explanation, error) {
	return callList[caisson.Explanation](ctx, p.c, post(protocol.PolicyTest{Policy: policy, Targets: targets}, "policy", "test"))
}

// Presets implements [caisson.Policies].
func (p policies) Presets(ctx context.Context) ([]caisson.Preset, error) {
	return callList[caisson.Preset](ctx, p.c, get("policy", "presets"))
}
