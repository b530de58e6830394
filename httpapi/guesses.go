package httpapi

import (
	"net/netip"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/lru"
)

// Bounds of [guesses].
const (
	guessBurst   = 30 // wrong tokens of one source after a rest
	guessRate    = 5  // wrong tokens of one source in a second
	maxSources   = 4096
	maxConfirmed = 4096 // tokens with the source that they came from
)

// guesses limits the wrong tokens that a source may try. A source that has used up its share is told to try again later, and its tokens
// are not looked up, so that it learns nothing. It has a new try every fifth of a second, against tokens of 130 random bits.
//
// Others may be behind the same address. So a token that has been valid from there before is looked up in any case: those who use the
// daemon are not locked out by somebody else's guesses. That helps nobody guess: such a token has 130 random bits as well. A valid token that
// comes from there for the first time needs one of the tries that are left, which somebody who goes on guessing also wants.
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

// failures is a bucket of wrong tokens that drains by guessRate.
type failures struct {
	level float64
	at    time.Time
}

func newGuesses() *guesses {
	return &guesses{now: time.Now, sources: lru.New[netip.Prefix, *failures](maxSources), confirmed: lru.New[tokenFrom, struct{}](maxConfirmed)}
}

// try is nil if a token may be looked up, else Exhausted. counted says that it is taken for a failure until [guesses.result].
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

// result says what has become of a try: a token that is valid does not count as a failure, nor does one that could not be looked up.
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
