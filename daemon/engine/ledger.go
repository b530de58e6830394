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

// Grew does nothing: the book reads the journals periodically, and before every query.
func (journals) Grew() {}

// policies implements [sandboxes.Egress] with package egress.
type policies struct{ host reach.Host }

func (policies) Check(p caisson.Policy) (caisson.Policy, error) {
	c, err := egress.Compile(p)
	if err != nil {
		return p, err
	}
	return c.Source(), nil
}

func (policies) Explain(p caisson.Policy, target string) (*caisson.Explanation, error) {
	c, err := egress.Compile(p)
	if err != nil {
		return nil, err
	}
	return c.Explain(target)
}

// Inward implements [sandboxes.Egress]. It compares with the current addresses of the host: a rule that allows exactly an address
// which the host gets later will then lead to the host.
func (p policies) Inward(policy caisson.Policy) (int, bool) {
	return egress.InternalRule(policy, func(a netip.Addr) bool {
		own, err := p.host.IsOwn(a)
		return own || err != nil && !reach.NoRoute(err)
	})
}

func (policies) Presets() []caisson.Preset { return egress.Presets() }
