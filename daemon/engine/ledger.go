package engine

import (
	"net/netip"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/reach"
	"github.com/caisson-dev/caisson/ledger"
	"github.com/caisson-dev/caisson/wire/egress"
)

// journals adapts [ledger.Book], which leases budgets and reads the journals, to the interface [wire.Ledger].
type journals struct{ *ledger.Book }

// JournalGrew implements [wire.Ledger]. It does nothing: the book reads the journals periodically, and before every query.
func (journals) JournalGrew() {}

// policies implements [sandboxes.Egress] with package egress.
type policies struct{ host reach.Host } // host tells which addresses are those of this machine

// Check implements [sandboxes.Egress]: it returns p in its normal form, or an error if it cannot be compiled.
func (policies) Check(p caisson.Policy) (caisson.Policy, error) {
	c, err := egress.Compile(p)
	if err != nil {
		return p, err
	}
	return c.Source(), nil
}

// Explain implements [sandboxes.Egress].
func (policies) Explain(p caisson.Policy, target string) (*caisson.Explanation, error) {
	c, err := egress.Compile(p)
	if err != nil {
		return nil, err
	}
	return c.Explain(target)
}

// InternalRule implements [sandboxes.Egress]: it finds the first rule that allows access to the host or its networks. It uses the
// present addresses of the host; a rule may allow an address that the host gets later.
func (p policies) InternalRule(policy caisson.Policy) (int, bool) {
	return egress.InternalRule(policy, func(a netip.Addr) bool {
		own, err := p.host.IsOwn(a)
		return own || err != nil && !reach.NoRoute(err)
	})
}

// Presets implements [sandboxes.Egress].
func (policies) Presets() []caisson.Preset { return egress.Presets() }
