package httpapi

import (
	"context"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// policyRoutes serves the egress policies of sandboxes.
type policyRoutes struct{ core caisson.Policies }

func (h policyRoutes) register(rt *router) {
	const tag = "policies"
	registerRoute(rt, getOp("/sandboxes/{ref}/policy", "get-policy", tag, "Get the policy of a sandbox"),
		withAnswer(byRef[RefParam](h.core.GetPolicy), policyAnswer))
	registerRoute(rt, putOp("/sandboxes/{ref}/policy", "set-policy", tag,
		"Replace the policy of a sandbox; when the request returns, it applies to existing connections too"), withAnswer(h.set, policyAnswer))
	registerRoute(rt, getOp("/sandboxes/{ref}/policy/explain", "explain-policy", tag,
		"Evaluate a sandbox's policy for a destination, and list recent refusals"), h.explain)
	registerListRoute(rt, postOp("/policy/test", "test-policy", tag, "Evaluate a policy for destinations, without a sandbox"), h.test)
	registerListRoute(rt, getOp("/policy/presets", "list-policy-presets", tag, "List the presets that rules may use, with their destinations"),
		withoutInput(h.core.Presets))
}

func (h policyRoutes) set(ctx context.Context, in *struct {
	RefParam
	Body caisson.Policy
},
) (*caisson.Policy, error) {
	return h.core.SetPolicy(ctx, in.Ref, in.Body)
}

func (h policyRoutes) explain(ctx context.Context, in *struct {
	RefParam
	Target string `query:"target" maxLength:"512" doc:"HOST, HOST:PORT or ADDRESS:PORT, with /udp at the end for udp; without it only what was refused lately is answered"`
},
) (*caisson.Explanation, error) {
	return h.core.ExplainPolicy(ctx, in.Ref, in.Target)
}

func (h policyRoutes) test(ctx context.Context, in *body[protocol.PolicyTest]) ([]caisson.Explanation, error) {
	return h.core.TestPolicy(ctx, in.Body.Policy, in.Body.Targets)
}
