package httpapi

import (
	"context"
	"net/http"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// policyRoutes serves the egress policies of sandboxes.
type policyRoutes struct{ core caisson.Policies }

// policyBody is a response with a policy.
type policyBody = body[*caisson.Policy]

func (h policyRoutes) register(rt *router) {
	const tag = "policies"
	registerRoute(rt, newOperation(http.MethodGet, "/sandboxes/{ref}/policy", "get-policy", tag, "Get the policy of a sandbox"), h.get)
	registerRoute(rt, newOperation(http.MethodPut, "/sandboxes/{ref}/policy", "set-policy", tag,
		"Replace what a sandbox may reach; in force, for connections that exist too, when it is answered"), h.set)
	registerRoute(rt, newOperation(http.MethodGet, "/sandboxes/{ref}/policy/explain", "explain-policy", tag,
		"Say what a sandbox's policy does with a destination, and what was refused lately"), h.explain)
	registerRoute(rt, newOperation(http.MethodPost, "/policy/test", "test-policy", tag, "Evaluate a policy for destinations, without a sandbox"), h.test)
	registerRoute(rt, newOperation(http.MethodGet, "/policy/presets", "list-policy-presets", tag, "List the presets that rules may use, with their destinations"), h.presets)
}

func (h policyRoutes) get(ctx context.Context, in *RefParam) (*policyBody, error) {
	p, err := h.core.GetPolicy(ctx, in.Ref)
	if err != nil {
		return nil, err
	}
	return &policyBody{policyAnswer(p)}, nil
}

func (h policyRoutes) set(ctx context.Context, in *struct {
	RefParam
	Body caisson.Policy
},
) (*policyBody, error) {
	p, err := h.core.SetPolicy(ctx, in.Ref, in.Body)
	if err != nil {
		return nil, err
	}
	return &policyBody{policyAnswer(p)}, nil
}

func (h policyRoutes) explain(ctx context.Context, in *struct {
	RefParam
	Target string `query:"target" maxLength:"512" doc:"HOST, HOST:PORT or ADDRESS:PORT, with /udp at the end for udp; without it only what was refused lately is answered"`
},
) (*body[*caisson.Explanation], error) {
	e, err := h.core.ExplainPolicy(ctx, in.Ref, in.Target)
	if err != nil {
		return nil, err
	}
	return &body[*caisson.Explanation]{e}, nil
}

func (h policyRoutes) test(ctx context.Context, in *body[protocol.PolicyTest]) (*body[protocol.Page[caisson.Explanation]], error) {
	list, err := h.core.TestPolicy(ctx, in.Body.Policy, in.Body.Targets)
	if err != nil {
		return nil, err
	}
	return wholeList(list), nil
}

func (h policyRoutes) presets(ctx context.Context, _ *struct{}) (*body[protocol.Page[caisson.Preset]], error) {
	list, err := h.core.Presets(ctx)
	if err != nil {
		return nil, err
	}
	return wholeList(list), nil
}
