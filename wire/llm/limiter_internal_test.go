package llm

import "testing"

// TestMemoryOfAccounts checks that bodies of one account, in any number of sandboxes, leave memory for those of others.
func TestMemoryOfAccounts(t *testing.T) {
	var m bodyMemory
	fill := func(account string) (n int64) {
		for m.reserve(account, 1<<20) {
			n += 1 << 20
		}
		return n
	}
	for account, want := range []int64{maxBodies / 2, maxBodies / 4, maxBodies / 8} {
		if got := fill(string(rune('a' + account))); got != want {
			t.Errorf("account %d has %d MiB; want %d", account, got>>20, want>>20)
		}
	}
	m.reserve("a", -maxBodies/2)
	m.reserve("b", -maxBodies/4)
	m.reserve("c", -maxBodies/8)
	if m.total != 0 || len(m.held) != 0 {
		t.Errorf("%d bytes of %v are left", m.total, m.held)
	}
}

// TestPooledBodiesCount tests that a body with a large buffer from the pool counts all bytes of the buffer except the first ones towards
// the limits, and that it gets a small buffer if these bytes exceed the limit.
func TestPooledBodiesCount(t *testing.T) {
	t.Parallel()
	g, l := &Gateway{}, &limiter{}
	for range 100 { // sync.Pool may drop buffers
		large := g.newBody(l, "a")
		if err := large.grow(maxPooledBody); err != nil {
			t.Fatal(err)
		}
		large.free()
		next := g.newBody(l, "a")
		if uncounted := int64(cap(*next.buf)) - next.held; uncounted != initialBody || l.bytes != next.held || g.bodyMemory.total != next.held {
			t.Fatalf("a buffer of %d bytes counts %d; the sandbox has %d, all have %d", cap(*next.buf), next.held, l.bytes, g.bodyMemory.total)
		}
		next.free()
		l.bytes = maxSandboxBodies
		if small := g.newBody(l, "a"); cap(*small.buf) != initialBody || small.held != 0 {
			t.Fatalf("over the limit a buffer of %d bytes counts %d", cap(*small.buf), small.held)
		}
		l.bytes = 0
	}
}
