package httpapi

import (
	"net/netip"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/lru"
)

// Limits of [tokenLimiter].
const (
	maxFailures  = 30   // wrong tokens that a source may send at once
	failureRate  = 5    // wrong tokens of one source per second, in the long run
	maxSources   = 4096 // sources whose failures are counted; the least recently used one is evicted first
	maxConfirmed = 4096 // pairs of a valid token and a source that are stored; the least recently used one is evicted first
)

// tokenLimiter limits the wrong tokens that a source may send. When a source has reached the limit, its requests get Exhausted
// and its tokens are not looked up, so that the responses reveal nothing about the tokens. The source gets a new try every fifth
// of a second, which is not enough to guess a token, because tokens have 130 random bits.
//
// Several clients may share one address. Therefore a token that has been valid from a source before is looked up in any case, so
// that wrong tokens of another client do not lock out existing users. This does not make guessing easier, because such a token
// has 130 random bits as well. A valid token that comes from the source for the first time needs one of the remaining tries, for
// which it competes with the wrong tokens.
type tokenLimiter struct {
	now func() time.Time // time.Now, except in tests

	mu        sync.Mutex
	sources   *lru.Map[netip.Prefix, *failureBucket] // failures of each source; guarded by mu
	confirmed *lru.Map[tokenSource, struct{}]        // tokens that were valid, with their sources; guarded by mu
}

// tokenSource is a token and the source that has sent it.
type tokenSource struct {
	source netip.Prefix // the sender's IPv4 address, or /64 of IPv6
	hash   [32]byte     // SHA-256 of the token
}

// failureBucket is a leaky bucket of wrong tokens that drains at failureRate.
type failureBucket struct {
	level   float64   // number of wrong tokens and of lookups in progress at the time updated; falls at a constant rate
	updated time.Time // time until which draining is included in level
}

func newTokenLimiter() *tokenLimiter {
	return &tokenLimiter{now: time.Now, sources: lru.New[netip.Prefix, *failureBucket](maxSources), confirmed: lru.New[tokenSource, struct{}](maxConfirmed)}
}

// allow returns nil if a token may be looked up, otherwise Exhausted. counted reports whether the token counts as a failure until
// [tokenLimiter.record] is called with counted, so that lookups in progress cannot exceed the limit.
func (g *tokenLimiter) allow(source netip.Prefix, hash [32]byte) (counted bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, ok := g.confirmed.Get(tokenSource{source, hash}); ok {
		return false, nil
	}
	f, _ := g.sources.Get(source)
	if f == nil {
		f = &failureBucket{}
		g.sources.Put(source, f)
	}
	if now := g.now(); now.After(f.updated) {
		f.level, f.updated = max(0, f.level-now.Sub(f.updated).Seconds()*failureRate), now
	}
	if f.level+1 > maxFailures {
		return false, caisson.Errorf(caisson.Exhausted, "too many wrong tokens have come from your address; try again in a second")
	}
	f.level++
	return true, nil
}

// record records err, the outcome of a lookup, which is Unauthed for a wrong token. counted means that allow has counted the
// token as a failure; this is undone for a valid token, and for a token that could not be looked up.
func (g *tokenLimiter) record(source netip.Prefix, hash [32]byte, counted bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err != nil && caisson.KindOf(err) == caisson.Unauthed {
		g.confirmed.Delete(tokenSource{source, hash})
		return
	}
	if f, _ := g.sources.Get(source); f != nil && counted {
		f.level = max(0, f.level-1)
	}
	if err == nil {
		g.confirmed.Put(tokenSource{source, hash}, struct{}{})
	}
}
