package sandboxes_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/sandboxes"
	"github.com/caisson-dev/caisson/wire/egress"
)

// policies adapts package egress to the core.
type policies struct{}

func (policies) Check(p caisson.Policy) (caisson.Policy, error) {
	c, err := egress.Compile(p)
	if err != nil {
		return p, err
	}
	return c.Source(), nil
}

func (policies) Presets() []caisson.Preset                 { return egress.Presets() }
func (policies) InternalRule(p caisson.Policy) (int, bool) { return egress.InternalRule(p, nil) }
func (policies) Explain(p caisson.Policy, target string) (*caisson.Explanation, error) {
	c, err := egress.Compile(p)
	if err != nil {
		return nil, err
	}
	return c.Explain(target)
}

// gateway has one model.
type gateway struct{}

func (gateway) Check(_ context.Context, g *caisson.ModelGrant) error {
	for _, m := range g.Models {
		if m != "small" {
			return caisson.Invalidf("models", "there is no model %q", m)
		}
	}
	return nil
}

func (gateway) Network(context.Context, caisson.ID) (*caisson.NetworkStats, error) {
	return &caisson.NetworkStats{Denied: 3}, nil
}

func (gateway) Recent(context.Context, caisson.ID) ([]caisson.Decision, error) {
	return []caisson.Decision{{Kind: "name", Name: "example.org", Reason: "no rule allows it"}}, nil
}

// online returns a world with wires, policies and models.
func online(t *testing.T) *world {
	w := plan{wires: true, limits: limitsWithBudget()}.world(t)
	must(t, w.Close())
	w.config.Network.Egress, w.config.Network.Gateway, w.config.Network.Traffic = policies{}, gateway{}, gateway{}
	w.boot()
	return w
}

func allowOnly(hosts ...string) *caisson.Policy {
	p := &caisson.Policy{}
	for _, h := range hosts {
		p.Rules = append(p.Rules, caisson.Rule{Action: caisson.Allow, Host: h})
	}
	return p
}

func (w *world) budgets() map[string]caisson.Limits {
	w.t.Helper()
	list, err := w.store.Ledger().ListBudgets(w.t.Context(), caisson.AllAccounts())
	must(w.t, err)
	all := map[string]caisson.Limits{}
	for _, b := range list {
		all[b.Key] = b.Limits
	}
	return all
}

func TestWireIsWhatWasAskedFor(t *testing.T) {
	t.Parallel()
	w := online(t)
	sb := w.create(caisson.CreateRequest{Policy: allowOnly("example.com"), Models: &caisson.ModelGrant{Models: []string{"small"}}})
	spec := w.wires.spec(sb.ID)
	if spec.Guest != (caisson.Guest{Sandbox: sb.ID, Account: sb.Account, Run: string(sb.ID)}) || len(spec.Policy.Rules) != 1 || spec.Models == nil {
		t.Errorf("its wire is %+v", spec)
	}
	if b := w.budgets()["sandbox/"+string(sb.ID)]; b.USD == nil || *b.USD != 10*caisson.Dollar {
		t.Errorf("its budget is %+v, want the default", b)
	}
	w.restart()
	if again := w.wires.spec(sb.ID); len(again.Policy.Rules) != 1 || again.Models == nil {
		t.Errorf("after a restart its wire is %+v", again)
	}
	must(t, w.Sandboxes().Remove(w.ctx(), string(sb.ID)))
	if b := w.budgets(); len(b) != 0 {
		t.Errorf("budgets remain: %v", b)
	}
	for field, req := range map[string]caisson.CreateRequest{
		"policy.rules[0].host": {Policy: allowOnly("not a host")},
		"models.models":        {Models: &caisson.ModelGrant{Models: []string{"large"}}},
	} {
		_, err := w.Sandboxes().Create(w.ctx(), req)
		if caisson.KindOf(err) != caisson.Invalid || caisson.FieldOf(err) != field {
			t.Errorf("%v (field %q), want Invalid for %s", err, caisson.FieldOf(err), field)
		}
	}
}

func TestSetPolicy(t *testing.T) {
	t.Parallel()
	w := online(t)
	sb := w.create(caisson.CreateRequest{})
	ref := string(sb.ID)
	p := got(w.Policies().SetPolicy(w.ctx(), ref, *allowOnly("example.com")))(t)
	if len(p.Rules) != 1 || len(w.wires.spec(sb.ID).Policy.Rules) != 1 {
		t.Errorf("policy %+v, wire %+v", p, w.wires.spec(sb.ID))
	}
	e := got(w.Policies().ExplainPolicy(w.ctx(), ref, "example.org:443"))(t)
	if e.Verdict.Allowed || e.Suggest == nil || len(e.Recent) != 1 {
		t.Errorf("explanation %+v", e)
	}
	if st := got(w.Processes().Stats(w.ctx(), ref))(t); st.Network == nil || st.Network.Denied != 3 {
		t.Errorf("stats %+v", st)
	}
	// The policy is the whole request: its fields have no prefix.
	_, err := w.Policies().SetPolicy(w.ctx(), ref, *allowOnly("not a host"))
	if caisson.KindOf(err) != caisson.Invalid || caisson.FieldOf(err) != "rules[0].host" {
		t.Errorf("%v (field %q), want Invalid for rules[0].host", err, caisson.FieldOf(err))
	}
	// If the wire returns an error, both store and wire keep the old policy.
	w.wires.failNext(errors.New("no"))
	if _, err := w.Policies().SetPolicy(w.ctx(), ref, *allowOnly("example.net")); err == nil {
		t.Error("set on a wire that refuses")
	}
	p = got(w.Policies().GetPolicy(w.ctx(), ref))(t)
	if p.Rules[0].Host != "example.com" || w.wires.spec(sb.ID).Policy.Rules[0].Host != "example.com" {
		t.Errorf("policy %+v, wire %+v", p, w.wires.spec(sb.ID))
	}
	// The policy can be set in every state, and is in force when the sandbox runs again.
	got(w.Sandboxes().Pause(w.ctx(), ref))(t)
	got(w.Policies().SetPolicy(w.ctx(), ref, *allowOnly("example.net", "example.org")))(t)
	got(w.Sandboxes().Resume(w.ctx(), ref))(t)
	if n := len(w.wires.spec(sb.ID).Policy.Rules); n != 2 {
		t.Errorf("%d rules after resume", n)
	}
	// Access that only the host can grant.
	inward := caisson.CreateRequest{Policy: allowOnly("example.com", "10.0.0.0/8")}
	for name, ctx := range map[string]context.Context{"a token": w.as("other"), "own work": w.ownWork()} {
		if _, err := w.Sandboxes().Create(ctx, inward); caisson.KindOf(err) != caisson.Denied {
			t.Errorf("a policy of %s that leads inward: %v", name, err)
		}
	}
	_, err = w.Sandboxes().Create(w.hostWork(), inward)
	must(t, err)
	_, err = w.Policies().SetPolicy(w.as("other"), ref, caisson.Policy{})
	if caisson.KindOf(err) != caisson.NotFound {
		t.Errorf("another account: %v", err)
	}
}

// A fork has its origin's policy, but no model grant unless it is requested.
func TestPromise6ForkHoldsOnlyItsGrants(t *testing.T) {
	t.Parallel()
	w := online(t)
	sb := w.create(caisson.CreateRequest{Policy: allowOnly("example.com"), Models: &caisson.ModelGrant{Models: []string{"small"}}})
	for _, f := range got(w.Snapshots().Fork(w.ctx(), string(sb.ID), caisson.ForkRequest{Count: 2}))(t) {
		if spec := w.wires.spec(f.ID); spec.Models != nil || len(spec.Policy.Rules) != 1 || spec.Guest.Sandbox != f.ID {
			t.Errorf("a fork's wire is %+v", spec)
		}
	}
	f := got(w.Snapshots().Fork(w.ctx(), string(sb.ID), caisson.ForkRequest{Policy: &caisson.Policy{}, Models: &caisson.ModelGrant{Models: []string{"small"}}}))(t)[0]
	if spec := w.wires.spec(f.ID); spec.Models == nil || len(spec.Policy.Rules) != 0 {
		t.Errorf("a fork's wire is %+v", spec)
	}
	if b := w.budgets(); len(b) != 2 {
		t.Errorf("budgets %v, want the origin's and one fork's", b)
	}
}

// A pooled sandbox is not in use and has no network access.
func TestPooledReachesNothing(t *testing.T) {
	t.Parallel()
	w := online(t)
	got(w.Templates().PutTemplate(w.ctx(), caisson.Template{
		Name: "tpl", Image: "debian:12", Pool: 1, Policy: *allowOnly("example.com"), Models: &caisson.ModelGrant{Models: []string{"small"}},
	}))(t)
	ready := w.filled(1)
	if spec := w.wires.spec(ready[0]); spec.Models != nil || len(spec.Policy.Rules) != 0 {
		t.Errorf("in the pool its wire is %+v", spec)
	}
	sb := w.create(caisson.CreateRequest{Template: "tpl"})
	if spec := w.wires.spec(sb.ID); sb.ID != ready[0] || spec.Models == nil || len(spec.Policy.Rules) != 1 {
		t.Errorf("claimed %s, its wire is %+v", sb.ID, spec)
	}
	w.filled(1)
}

func TestDecisionsAreEvents(t *testing.T) {
	t.Parallel()
	w := online(t)
	sb := w.create(caisson.CreateRequest{})
	w.RecordDecisions(caisson.Guest{Sandbox: sb.ID, Account: sb.Account}, []caisson.Decision{
		{Kind: "flow", Rule: -1, Reason: "no rule allows it", Address: "192.0.2.1:443", Protocol: "tcp", Count: 3},
		{Kind: "flow", Allowed: true, Rule: 0, Name: "example.com", BytesIn: 5},
	})
	var found []caisson.Event
	waitFor(t, func() bool {
		list, err := w.store.Events().After(t.Context(), caisson.In(sb.Account), string(sb.ID), 0, 100)
		must(t, err)
		found = nil
		for _, e := range list {
			if e.Type == "egress.denied" || e.Type == "egress.allowed" {
				found = append(found, e)
			}
		}
		return len(found) == 2
	})
	for _, e := range found {
		for _, k := range []string{"run", "attempt", "agent", "trace"} {
			if v, ok := e.Data[k]; ok {
				t.Errorf("%s of a sandbox without a run is %q", k, v)
			}
		}
	}
	if e := found[0]; e.Data["address"] != "192.0.2.1:443" || e.Data["count"] != "3" || e.Actor != string(sb.ID) {
		t.Errorf("event %+v", e)
	}
}

// TestDecisionsOfRuns: decisions of a run's wire are recorded with the run.
func TestDecisionsOfRuns(t *testing.T) {
	t.Parallel()
	w := online(t)
	sb := w.create(caisson.CreateRequest{Assigned: assignment()})
	w.RecordDecisions(w.wires.spec(sb.ID).Guest, []caisson.Decision{{Kind: "flow", Rule: -1, Reason: "no rule allows it"}})
	want := map[string]string{"run": "rn-cccccccccccccccc", "attempt": "2", "agent": "openclaw", "trace": assignment().Trace, "kind": "flow"}
	waitFor(t, func() bool {
		for _, e := range w.record(string(sb.ID)) {
			if e.Type != "egress.denied" {
				continue
			}
			for k, v := range want {
				if e.Data[k] != v {
					t.Errorf("%s is %q, want %q", k, e.Data[k], v)
				}
			}
			return true
		}
		return false
	})
	for k, v := range want {
		if !strings.Contains(w.logs.String(), " "+k+"="+v) {
			t.Errorf("the log does not say %s=%s", k, v)
		}
	}
}

// TestDecisionsOfOthers: an account with more decisions than can be recorded does not affect the decisions of others.
func TestDecisionsOfOthers(t *testing.T) {
	t.Parallel()
	w := online(t)
	sb := w.create(caisson.CreateRequest{})
	list := []caisson.Decision{{Kind: "flow", Rule: -1, Reason: "no rule allows it", Address: "192.0.2.1:443"}}
	for range 5000 {
		w.RecordDecisions(caisson.Guest{Sandbox: "sb-aaaaaaaaaaaaaaaa", Account: "noisy"}, list)
	}
	w.RecordDecisions(caisson.Guest{Sandbox: sb.ID, Account: sb.Account}, list)
	waitFor(t, func() bool {
		for _, e := range w.record(string(sb.ID)) {
			if e.Type == "egress.denied" {
				return true
			}
		}
		return false
	})
}

func limitsWithBudget() sandboxes.Limits {
	usd := 10 * caisson.Dollar
	return sandboxes.Limits{Budget: caisson.Limits{USD: &usd}}
}
