package flow

import "sync"

// A Budget bounds what all the forwarders of a process have at once. From three quarters of it on, a forwarder gets more only
// up to its share of the rest, so that one sandbox, or a few, cannot take what another needs. Safe for concurrent use.
type Budget struct {
	mu         sync.Mutex
	forwarders int  // guarded by mu
	flows      pile // guarded by mu
	wide       pile // guarded by mu
}

// A pile is so many of something, of which some are taken.
type pile struct{ most, taken int }

// NewBudget returns a Budget of so many flows, of which so many have large buffers; see [Limits].
func NewBudget(flows, wide int) *Budget {
	return &Budget{flows: pile{most: flows}, wide: pile{most: wide}}
}

// take takes one for somebody who has so many already.
func (p *pile) take(has, forwarders int) bool {
	rest := p.most / 4
	if p.taken >= p.most || p.taken >= p.most-rest && has >= max(1, rest/max(1, forwarders)) {
		return false
	}
	p.taken++
	return true
}

// join counts a forwarder in, and leave out. A nil Budget, here and below, has room for everything.
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

// takeFlow takes a flow for a forwarder that has so many.
func (b *Budget) takeFlow(has int) bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.flows.take(has, b.forwarders)
}

// takeWide makes a flow a wide one, for a forwarder that has so many.
func (b *Budget) takeWide(has int) bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.wide.take(has, b.forwarders)
}

// give gives a flow back.
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
