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
