package apitest

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/caisson-dev/caisson"
)

func testPolicies(t *testing.T, ctx context.Context, c Cores) {
	first := caisson.Policy{Rules: []caisson.Rule{{Action: caisson.Allow, Preset: "npm"}}}
	sb := createSandbox(t, ctx, c, caisson.CreateRequest{Name: "web", Policy: &first})
	same := func(what string, want caisson.Policy, got *caisson.Policy) {
		t.Helper()
		if diff := cmp.Diff(want, *got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
	}
	same("created", first, must(c.Policies.GetPolicy(ctx, string(sb.ID)))(t))
	second := caisson.Policy{Rules: []caisson.Rule{
		{Action: caisson.Deny, Host: "10.0.0.0/8", Note: "the office"},
		{Action: caisson.Allow, Host: "*.example.com", Ports: []caisson.PortRange{{First: 443, Last: 443}, {First: 8000, Last: 8010}}},
		{Action: caisson.Allow, Host: "192.0.2.1", Protocol: "udp"},
	}}
	same("set", second, must(c.Policies.SetPolicy(ctx, "web", second))(t))
	same("read", second, must(c.Policies.GetPolicy(ctx, "web"))(t))
	same("in the sandbox", second, &must(c.Sandboxes.Get(ctx, "web"))(t).Spec.Policy)
	_, err := c.Policies.SetPolicy(ctx, "web", caisson.Policy{Rules: []caisson.Rule{second.Rules[0], {Action: caisson.Allow, Host: "10.0.0.1/8"}}})
	Fails(t, err, caisson.Invalid, "rules[1].host")
	same("after a fault", second, must(c.Policies.GetPolicy(ctx, "web"))(t))

	e := must(c.Policies.ExplainPolicy(ctx, "web", "a.example.com:22"))(t)
	if e.Target != "a.example.com:22" || e.Verdict.Allowed || e.Verdict.Rule != -1 || e.Suggest == nil || e.Suggest.Host != "a.example.com" || e.At != 3 {
		t.Errorf("explained %+v", e)
	}
	if e := must(c.Policies.ExplainPolicy(ctx, "web", "[2001:db8::1]:53/udp"))(t); e.Target != "[2001:db8::1]:53/udp" {
		t.Errorf("explained %+v", e)
	}
	if e := must(c.Policies.ExplainPolicy(ctx, "web", ""))(t); e.Target != "" || len(e.Recent) == 0 {
		t.Errorf("explained nothing as %+v", e)
	}
	_, err = c.Policies.ExplainPolicy(ctx, "web", "http://a?b=c&d#e")
	Fails(t, err, caisson.Invalid, "target")

	tested := must(c.Policies.TestPolicy(ctx, second, []string{"a.example.com", "10.1.1.1", "a.example.com:80"}))(t)
	if len(tested) != 3 || !tested[0].Verdict.Allowed || tested[1].Verdict.Allowed || tested[1].Verdict.Rule != 0 || !strings.Contains(tested[1].Verdict.Reason, "the office") {
		t.Errorf("tested %+v", tested)
	}
	if got := must(c.Policies.TestPolicy(ctx, caisson.Policy{}, []string{"a.example.com"}))(t); len(got) != 1 || got[0].Verdict.Allowed {
		t.Errorf("the empty policy: %+v", got)
	}
	presets := must(c.Policies.Presets(ctx))(t)
	if !slices.ContainsFunc(presets, func(p caisson.Preset) bool { return p.Name == "npm" && len(p.Hosts) > 0 && len(p.Ports) > 0 }) {
		t.Errorf("presets %+v", presets)
	}

	same("emptied", caisson.Policy{}, must(c.Policies.SetPolicy(ctx, "web", caisson.Policy{}))(t))
	for _, do := range []func() error{
		func() error { _, err := c.Policies.GetPolicy(ctx, "nobody"); return err },
		func() error { _, err := c.Policies.SetPolicy(ctx, "nobody", first); return err },
		func() error { _, err := c.Policies.ExplainPolicy(ctx, "nobody", "a.example"); return err },
	} {
		Fails(t, do(), caisson.NotFound, "")
	}
}
