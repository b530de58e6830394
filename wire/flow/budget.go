package flow

import "sync"

// A Budget bounds the flows of all forwarders of a process together. When three quarters of it are in use, a forwarder gets more
// only up to its equal share of the rest, so that a few sandboxes cannot exhaust it. Safe for concurrent use.
type Budget struct {
	mu         sync.Mutex
	forwarders int  // guarded by mu
	flows      pile // guarded by mu
	wide       pile // guarded by mu
}

// A pile is a capacity and how much of it is in use.
type pile struct{ most, taken int }

// NewBudget returns a Budget of the given number of flows, of which wide may have large buffers; see [Limits].
func NewBudget(flows, wide int) *Budget {
	return &Budget{flows: pile{most: flows}, wide: pile{most: wide}}
}

// take takes one unit for a forwarder that holds has units. It returns false if the forwarder may not have more.
func (p *pile) take(has, forwarders int) bool {
	rest := p.most / 4
	if p.taken >= p.most || p.taken >= p.most-rest && has >= max(1, rest/max(1, forwarders)) {
		return false
	}
	p.taken++
	return true
}

// join counts a forwarder that shares the budget; leave removes it. A nil Budget has no limits, here and below.
func (b *Budget) join() { b.add(1) }

func (b *Budget) leave() { b.add(-1) }

func (b *Budget) add(n int) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.forwarders += n
}

// takeFlow takes a flow for a forwarder that has that many flows.
func (b *Budget) takeFlow(has int) bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.flows.take(has, b.forwarders)
}

// takeWide takes large buffers for a flow of a forwarder that has that many wide flows.
func (b *Budget) takeWide(has int) bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.wide.take(has, b.forwarders)
}

// give returns a flow to the budget.
func (b *Budget) give(wide bool) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.flows.taken--
	if wide {
		b.wide.taken--
	}
}
