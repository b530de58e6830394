package llm

// Held returns what calls hold: limiters, bytes of bodies, and places for parsing.
func (g *Gateway) Held() (calls int, bytes int64, parses int) {
	g.seats.mu.Lock()
	for _, t := range g.seats.all {
		t.mu.Lock()
		calls += t.calls + t.ending
		bytes += t.bytes
		t.mu.Unlock()
	}
	g.seats.mu.Unlock()
	g.memory.mu.Lock()
	defer g.memory.mu.Unlock()
	return calls, bytes + g.memory.total, len(g.parses)
}
