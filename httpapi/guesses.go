package httpapi

import (
	"net/netip"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/lru"
)

// Limits of [guesses].
const (
	guessBurst   = 30 // wrong tokens that a source may send at once
	guessRate    = 5  // wrong tokens of one source per second, in the long run
	maxSources   = 4096
	maxConfirmed = 4096 // pairs of a valid token and its source
)

// guesses limits the wrong tokens that a source may send. When a source has reached the limit, its requests get Exhausted and
// its tokens are not looked up, so that it learns nothing about them. It gets a new try every fifth of a second, against tokens
// of 130 random bits.
//
// Several clients may share one address. Therefore a token that has been valid from a source before is looked up in any case,
// so that wrong tokens of another client do not lock out existing users. This does not make guessing easier, because such a
// token has 130 random bits as well. A valid token that comes from the source for the first time needs one of the remaining
// tries, for which it competes with the wrong tokens.
type guesses struct {
	now func() time.Time

	mu        sync.Mutex
	sources   *lru.Map[netip.Prefix, *failures] // guarded by mu
	confirmed *lru.Map[tokenFrom, struct{}]     // guarded by mu
}

type tokenFrom struct {
	source netip.Prefix
	hash   [32]byte
}

// failures is a leaky bucket of wrong tokens that drains at guessRate.
type failures struct {
	level float64
	at    time.Time
}

func newGuesses() *guesses {
	return &guesses{now: time.Now, sources: lru.New[netip.Prefix, *failures](maxSources), confirmed: lru.New[tokenFrom, struct{}](maxConfirmed)}
}

// try returns nil if a token may be looked up, else Exhausted. counted reports that the token counts as a failure until
// [guesses.result] is called.
func (g *guesses) try(source netip.Prefix, hash [32]byte) (counted bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, ok := g.confirmed.Get(tokenFrom{source, hash}); ok {
		return false, nil
	}
	f, _ := g.sources.Get(source)
	if f == nil {
		f = &failures{}
		g.sources.Put(source, f)
	}
	if now := g.now(); now.After(f.at) {
		f.level, f.at = max(0, f.level-now.Sub(f.at).Seconds()*guessRate), now
	}
	if f.level+1 > guessBurst {
		return false, caisson.Errorf(caisson.Exhausted, "too many wrong tokens have come from your address; try again in a second")
	}
	f.level++
	return true, nil
}

// result records the outcome of a try: a valid token does not count as a failure, nor does one that could not be looked up.
func (g *guesses) result(source netip.Prefix, hash [32]byte, counted bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err != nil && caisson.KindOf(err) == caisson.Unauthed {
		g.confirmed.Delete(tokenFrom{source, hash})
		return
	}
	if f, _ := g.sources.Get(source); f != nil && counted {
		f.level = max(0, f.level-1)
	}
	if err == nil {
		g.confirmed.Put(tokenFrom{source, hash}, struct{}{})
	}
}
