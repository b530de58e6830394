package sandboxes

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/timing"
)

// Egress validates and explains policies for the core.
type Egress interface {
	// Check validates p and returns it in its normal form.
	Check(p caisson.Policy) (caisson.Policy, error)
	// Explain returns which rule of p decides about connections to target.
	Explain(p caisson.Policy, target string) (*caisson.Explanation, error)
	// Presets returns the presets: the named lists of hosts that rules may name.
	Presets() []caisson.Preset
	// InternalRule returns the first rule that allows access to the host or its networks, if there is one.
	InternalRule(p caisson.Policy) (rule int, ok bool)
}

// Gateway validates model grants for the core.
type Gateway interface {
	// Check returns an error if the grant contains unknown models or invalid limits.
	Check(ctx context.Context, g *caisson.ModelGrant) error
}

// Traffic returns the traffic counters and recent refusals of wires.
type Traffic interface {
	// Network returns the traffic counters of the sandbox's wire.
	Network(ctx context.Context, id caisson.ID) (*caisson.NetworkStats, error)
	// Recent returns the recent decisions of the sandbox's wire that refused a connection or the lookup of a name.
	Recent(ctx context.Context, id caisson.ID) ([]caisson.Decision, error)
}

// network manages what sandboxes can reach: the specs of their wires, and the budgets of their model calls.
type network struct {
	wires   caisson.Wires       // attaches wires; nil: sandboxes have a loopback device only
	egress  Egress              // validates policies; nil without wires
	gateway Gateway             // validates model grants; nil: no sandbox can be granted models
	ledger  caisson.LedgerStore // stores budgets
	budget  caisson.Limits      // default budget of a sandbox whose model grant has none
}

// check validates the policy and the model grant of a request or template, and replaces the policy by its normal form.
// prefix is prepended to the names of fields in errors.
func (n network) check(ctx context.Context, prefix string, p *caisson.Policy, g *caisson.ModelGrant) error {
	if err := n.checkPolicy(ctx, prefix+"policy", p); err != nil {
		return err
	}
	if g == nil {
		return nil
	}
	if n.gateway == nil {
		return caisson.Invalidf(prefix+"models", "this daemon has no model gateway")
	}
	if err := n.gateway.Check(ctx, g); err != nil {
		return prefixField(prefix+"models", err)
	}
	return nil
}

// checkPolicy validates a policy and replaces it by its normal form. field is the name of the policy's field in the
// request, for errors; "" means that the request consists of the policy only.
func (n network) checkPolicy(ctx context.Context, field string, p *caisson.Policy) error {
	if p == nil || len(p.Rules) == 0 {
		return nil
	}
	if n.egress == nil {
		return caisson.Invalidf(field, "this daemon has no wires, so sandboxes have no network access")
	}
	normal, err := n.egress.Check(*p)
	if err != nil {
		return prefixField(field, err)
	}
	*p = normal
	// Like host paths, access to the host's networks can be granted only over the unix socket of the API.
	if caller, err := caisson.CallerOf(ctx); err != nil || !caller.MayUseHost() {
		if i, ok := n.egress.InternalRule(*p); ok {
			return caisson.Errorf(caisson.Denied, "rule %d leads to the host's own networks (%s), which only a policy that is set over the unix socket may", i, p.Rules[i].Host)
		}
	}
	return nil
}

// prefixField prepends prefix, unless that is "", to the field of an Invalid error; other errors are returned unchanged.
func prefixField(prefix string, err error) error {
	if caisson.KindOf(err) != caisson.Invalid || prefix == "" {
		return err
	}
	msg := caisson.MessageOf(err)
	if field := caisson.FieldOf(err); field != "" {
		prefix += "." + field
		msg = msg[len(field)+len(": "):]
	}
	return caisson.Invalidf(prefix, "%s", msg)
}

// wireSpec returns the spec of the sandbox's wire. A pooled sandbox is not in use yet and has no network access.
func (n network) wireSpec(sb *caisson.Sandbox) caisson.WireSpec {
	spec := caisson.WireSpec{Guest: caisson.Guest{Sandbox: sb.ID, Account: sb.Account, Run: string(sb.ID)}}
	if sb.Pooled {
		return spec
	}
	spec.Policy, spec.Models = sb.Spec.Policy, sb.Spec.Models
	if a := sb.Assigned; a != nil {
		spec.Guest, spec.Models, spec.Tools = runGuest(sb, a), a.Models, a.Tools
	}
	return spec
}

// createBudget creates the budget of a sandbox that has a model grant, unless neither the grant nor the default limits anything.
// It must be called before the sandbox can make its first call.
func (n network) createBudget(ctx context.Context, sb *caisson.Sandbox) error {
	if sb.Spec.Models == nil {
		return nil
	}
	limits := cmp.Or(sb.Spec.Models.Budget, n.budget)
	if limits.IsZero() {
		return nil
	}
	_, err := n.ledger.PutBudget(ctx, caisson.In(sb.Account), &caisson.Budget{
		Key: budgetKey(sb.ID), Account: sb.Account, Limits: limits, CreatedAt: now(),
	})
	return err
}

// deleteBudget deletes the budget of a removed sandbox. The calls that were charged to it stay in the ledger.
func (n network) deleteBudget(ctx context.Context, sb *caisson.Sandbox) error {
	if sb.Spec.Models == nil {
		return nil
	}
	return caisson.IgnoreNotFound(n.ledger.DeleteBudget(ctx, caisson.In(sb.Account), budgetKey(sb.ID)))
}

// budgetKey returns the key of the budget of a sandbox.
func budgetKey(id caisson.ID) string { return "sandbox/" + string(id) }

// hasWire reports whether a sandbox is in a state in which it has a wire: running or suspended. It returns false during a change
// of the state.
func hasWire(sb *caisson.Sandbox) bool {
	return sb.State == caisson.Running || sb.State == caisson.Suspended
}

// configure applies the current wire spec to a sandbox's wire.
func (n network) configure(ctx context.Context, sb *caisson.Sandbox) error {
	if n.wires == nil {
		return nil
	}
	return n.wires.Configure(ctx, sb.ID, n.wireSpec(sb))
}

// attach attaches a sandbox's wire and returns its network namespace; nil if the daemon has no wires.
func (n network) attach(ctx context.Context, sb *caisson.Sandbox) (*os.File, error) {
	if n.wires == nil {
		return nil, nil
	}
	began := time.Now()
	netns, err := n.wires.Attach(ctx, sb.ID, n.wireSpec(sb))
	timing.RecordTime(ctx, "wire", began)
	if err != nil {
		return nil, fmt.Errorf("attach wire: %w", err)
	}
	return netns, nil
}

// reattach attaches the wire of a sandbox that has been running since before the start of this daemon. netns opens the sandbox's
// network namespace.
func (n network) reattach(ctx context.Context, sb *caisson.Sandbox, netns func(caisson.ID) (*os.File, error)) error {
	if n.wires == nil {
		return nil
	}
	ns, err := netns(sb.ID)
	if err != nil {
		return err
	}
	defer ns.Close()
	return n.wires.Reattach(ctx, sb.ID, ns, n.wireSpec(sb))
}

// detach detaches the wire of a sandbox.
func (n network) detach(ctx context.Context, id caisson.ID) error {
	if n.wires == nil {
		return nil
	}
	return n.wires.Detach(ctx, id)
}

// PolicyService implements [caisson.Policies].
type PolicyService struct {
	finder  finder       // finds sandboxes of the caller's account
	states  states       // stored records of sandboxes
	wires   *wireChanges // stores policies and applies them to wires
	network network      // configures wires and creates budgets
	egress  Egress       // explains policies; nil without wires
	traffic Traffic      // returns recent refusals of wires; nil: explanations contain none
}

var _ caisson.Policies = (*PolicyService)(nil)

// GetPolicy implements [caisson.Policies].
func (s *PolicyService) GetPolicy(ctx context.Context, ref string) (*caisson.Policy, error) {
	sb, err := s.finder.find(ctx, ref)
	if err != nil {
		return nil, err
	}
	return &sb.Spec.Policy, nil
}

// SetPolicy implements [caisson.Policies].
func (s *PolicyService) SetPolicy(ctx context.Context, ref string, p caisson.Policy) (*caisson.Policy, error) {
	if err := s.network.checkPolicy(ctx, "", &p); err != nil {
		return nil, err
	}
	changed, err := s.wires.change(ctx, ref, func(sb *caisson.Sandbox) (undo func(*caisson.Sandbox), err error) {
		if sb.Pooled {
			return nil, caisson.Errorf(caisson.Conflict, "this sandbox is in a pool and has not been claimed yet")
		}
		old := sb.Spec.Policy
		sb.Spec.Policy = p
		return func(sb *caisson.Sandbox) { sb.Spec.Policy = old }, nil
	})
	if err != nil {
		return nil, err
	}
	s.states.event(ctx, changed, "policy.set", map[string]string{"rules": strconv.Itoa(len(p.Rules))})
	return &changed.Spec.Policy, nil
}

// ExplainPolicy implements [caisson.Policies].
func (s *PolicyService) ExplainPolicy(ctx context.Context, ref, target string) (*caisson.Explanation, error) {
	sb, err := s.finder.find(ctx, ref)
	if err != nil {
		return nil, err
	}
	e := &caisson.Explanation{}
	if target != "" {
		if s.egress == nil {
			return nil, caisson.Errorf(caisson.Conflict, "this daemon has no wires, so sandboxes have no network access")
		}
		if e, err = s.egress.Explain(sb.Spec.Policy, target); err != nil {
			return nil, err
		}
	}
	if !hasWire(sb) || s.traffic == nil {
		return e, nil
	}
	e.Recent, err = s.traffic.Recent(ctx, sb.ID)
	return e, caisson.IgnoreNotFound(err)
}

// TestPolicy implements [caisson.Policies].
func (s *PolicyService) TestPolicy(ctx context.Context, p caisson.Policy, targets []string) ([]caisson.Explanation, error) {
	if err := s.network.checkPolicy(ctx, "policy", &p); err != nil {
		return nil, err
	}
	if len(targets) > 1000 {
		return nil, caisson.Invalidf("targets", "%d targets are more than 1000", len(targets))
	}
	list := []caisson.Explanation{}
	for _, t := range targets {
		e, err := s.egress.Explain(p, t)
		if err != nil {
			return nil, err
		}
		list = append(list, *e)
	}
	return list, nil
}

// Presets implements [caisson.Policies].
func (s *PolicyService) Presets(context.Context) ([]caisson.Preset, error) {
	if s.egress == nil {
		return []caisson.Preset{}, nil
	}
	return s.egress.Presets(), nil
}
