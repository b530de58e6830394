package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// policies implements [caisson.Policies] by requests to a daemon.
type policies struct{ c *requester }

// GetPolicy implements [caisson.Policies].
func (p policies) GetPolicy(ctx context.Context, ref string) (*caisson.Policy, error) {
	return call[*caisson.Policy](ctx, p.c, request{method: http.MethodGet, path: []string{"sandboxes", ref, "policy"}})
}

// SetPolicy implements [caisson.Policies].
func (p policies) SetPolicy(ctx context.Context, ref string, policy caisson.Policy) (*caisson.Policy, error) {
	return call[*caisson.Policy](ctx, p.c, request{method: http.MethodPut, path: []string{"sandboxes", ref, "policy"}, jsonBody: policy})
}

// ExplainPolicy implements [caisson.Policies].
func (p policies) ExplainPolicy(ctx context.Context, ref, target string) (*caisson.Explanation, error) {
	q := url.Values{}
	if target != "" {
		q.Set("target", target)
	}
	return call[*caisson.Explanation](ctx, p.c, request{method: http.MethodGet, path: []string{"sandboxes", ref, "policy", "explain"}, query: q})
}

// TestPolicy implements [caisson.Policies].
func (p policies) TestPolicy(ctx context.Context, policy caisson.Policy, targets []string) ([]caisson.Explanation, error) {
	page, err := call[protocol.Page[caisson.Explanation]](ctx, p.c, request{
		method: http.MethodPost, path: []string{"policy", "test"}, jsonBody: protocol.PolicyTest{Policy: policy, Targets: targets},
	})
	return page.Items, err
}

// Presets implements [caisson.Policies].
func (p policies) Presets(ctx context.Context) ([]caisson.Preset, error) {
	return callList[caisson.Preset](ctx, p.c, request{method: http.MethodGet, path: []string{"policy", "presets"}})
}
