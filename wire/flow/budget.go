package flow

import "sync"

// ProcessLimits bound the flows of all forwarders of a process. When three quarters of them are in use, a forwarder gets more
// only while it has fewer than its equal share of the last quarter, so a few sandboxes cannot take all. Safe for concurrent use.
type ProcessLimits struct {
	mu         sync.Mutex
	forwarders int      // number of Forwarders that share the limits; guarded by mu
	flows      capacity // all flows; guarded by mu
	wide       capacity // flows with large buffers; guarded by mu
}

// A capacity is a maximum number of units (flows, or flows with large buffers), and the number of units in use.
type capacity struct{ max, used int }

// NewProcessLimits returns limits of the given number of flows, of which wide may have large buffers; see [Limits].
func NewProcessLimits(flows, wide int) *ProcessLimits {
	return &ProcessLimits{flows: capacity{max: flows}, wide: capacity{max: wide}}
}

// acquire takes one unit for a forwarder. has is the number of units that the forwarder already holds, and forwarders the number
// of forwarders that share the capacity. It returns false if the forwarder may not have more.
func (p *capacity) acquire(has, forwarders int) bool {
	rest := p.max / 4
	if p.used >= p.max || p.used >= p.max-rest && has >= max(1, rest/max(1, forwarders)) {
		return false
	}
	p.used++
	return true
}

// addForwarder counts a forwarder that shares the limits; removeForwarder removes it. Every method accepts a nil *ProcessLimits,
// which has no limits.
func (b *ProcessLimits) addForwarder() { b.add(1) }

func (b *ProcessLimits) removeForwarder() { b.add(-1) }

// add changes the number of forwarders by n.
func (b *ProcessLimits) add(n int) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.forwarders += n
}

// acquireFlow counts a new flow of a forwarder. has is how many it already has; false means that it may have no more.
func (b *ProcessLimits) acquireFlow(has int) bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.flows.acquire(has, b.forwarders)
}

// acquireWide counts a flow with large buffers. has is how many its forwarder already has; false means that it may have no more.
func (b *ProcessLimits) acquireWide(has int) bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.wide.acquire(has, b.forwarders)
}

// release returns a flow to the limits, and its large buffers if it is wide.
func (b *ProcessLimits) release(wide bool) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.flows.used--
	if wide {
		b.wide.used--
	}
}
