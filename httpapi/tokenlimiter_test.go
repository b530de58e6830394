package httpapi

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/reach"
)

func wrong(n int) (hash [32]byte) {
	binary.LittleEndian.PutUint64(hash[8:], uint64(n)+1)
	return hash
}

// guess tries wrong tokens until one is refused without being looked up, and returns how many were looked up, at most most.
func (g *tokenLimiter) guess(source netip.Prefix, most int) int {
	for n := range most {
		counted, err := g.allow(source, wrong(n))
		if err != nil {
			return n
		}
		g.record(source, wrong(n), counted, caisson.Errorf(caisson.Unauthed, "no"))
	}
	return most
}

func TestGuesses(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_000_000, 0)
	g := newTokenLimiter()
	g.now = func() time.Time { return now }
	a, b := reach.Source("192.0.2.1:1000"), reach.Source("[2001:db8:0:1::5]:1000")
	used, first := [32]byte{0: 1}, [32]byte{0: 2}
	valid := func(hash [32]byte) error {
		counted, err := g.allow(a, hash)
		if err == nil {
			g.record(a, hash, counted, nil)
		}
		return err
	}
	if err := valid(used); err != nil {
		t.Fatal(err)
	}
	if n := g.guess(a, 1000); n != maxFailures {
		t.Errorf("%d wrong tokens were looked up at once", n)
	}
	if n := g.guess(b, 10); n != 10 {
		t.Errorf("another source had %d tries", n)
	}
	for range 100 {
		if err := valid(used); err != nil {
			t.Fatalf("a token in use is locked out by somebody else's guesses: %v", err)
		}
	}
	if n := g.guess(a, 1000); n != 0 {
		t.Errorf("valid tokens gave a guesser %d more tries", n)
	}
	if err := valid(first); caisson.KindOf(err) != caisson.Exhausted {
		t.Errorf("a token that has never come from there: %v", err)
	}
	now = now.Add(time.Second)
	if err := valid(first); err != nil {
		t.Errorf("a second later: %v", err)
	}
	if n := g.guess(a, 1000); n != failureRate {
		t.Errorf("%d wrong tokens were looked up in a second", n)
	}
	// A token that is no longer valid is a wrong one, and what cannot be looked up is none.
	now = now.Add(time.Hour)
	counted, err := g.allow(a, used)
	if err != nil {
		t.Fatal(err)
	}
	g.record(a, used, counted, caisson.Errorf(caisson.Unauthed, "removed"))
	for range 100 {
		counted, err := g.allow(a, wrong(0))
		if err != nil {
			t.Fatal(err)
		}
		g.record(a, wrong(0), counted, caisson.Errorf(caisson.Internal, "the store is broken"))
	}
	if n := g.guess(a, 1000); n != maxFailures {
		t.Errorf("%d tries after an hour", n)
	}
	if err := valid(used); caisson.KindOf(err) != caisson.Exhausted {
		t.Errorf("a token that was removed is still looked up: %v", err)
	}
	for i := range 2 * maxSources {
		g.guess(netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 32), 1)
	}
	if g.sources.Len() > maxSources {
		t.Errorf("%d sources are remembered", g.sources.Len())
	}
}

func TestSourceOf(t *testing.T) {
	t.Parallel()
	for remote, want := range map[string]string{
		"192.0.2.1:5": "192.0.2.1/32", "[::ffff:192.0.2.1]:5": "192.0.2.1/32", "[2001:db8:1:2:3:4:5:6]:7": "2001:db8:1:2::/64",
		"[fe80::1%eth0]:7": "fe80::/64", "@": "invalid Prefix", "": "invalid Prefix",
	} {
		if got := reach.Source(remote).String(); got != want {
			t.Errorf("%q: %s, want %s", remote, got, want)
		}
	}
}
