package llm

// Held returns what calls hold: limiters, bytes of bodies, and places for parsing.
func (g *Gateway) Held() (calls int, bytes int64, parses int) {
	g.limiters.mu.Lock()
	for _, t := range g.limiters.all {
		t.mu.Lock()
		calls += t.calls + t.settledCalls
		bytes += t.bytes
		t.mu.Unlock()
	}
	g.limiters.mu.Unlock()
	g.bodyMemory.mu.Lock()
	defer g.bodyMemory.mu.Unlock()
	return calls, bytes + g.bodyMemory.total, len(g.parseSlots)
}
