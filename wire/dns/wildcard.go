package dns

import (
	"math"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/lru"
)

const (
	maxKnownNames = 1024 // capacity of wildcards.known: a repeated lookup of one of these names discloses nothing new
	maxKnownZones = 256  // capacity of wildcards.zones: zones whose rates of new names are limited
)

// wildcards limits the data that a guest can send in names that rules such as *.example.com allow. Safe for concurrent use.
type wildcards struct {
	limits Limits
	now    func() time.Time

	mu    sync.Mutex
	known *lru.Map[string, struct{}]      // names requested recently; guarded by mu
	zones *lru.Map[string, *rate.Limiter] // limiters of the rate of new names, by the zone of the rule; guarded by mu
}

// newWildcards returns the limits on the names that rules such as *.example.com allow to one guest. now returns the time.
func newWildcards(l Limits, now func() time.Time) *wildcards {
	return &wildcards{limits: l, now: now, known: lru.New[string, struct{}](maxKnownNames), zones: lru.New[string, *rate.Limiter](maxKnownZones)}
}

// check returns a denial and false if name, which *.zone allows, exceeds the limits; otherwise ok is true.
func (w *wildcards) check(name, zone string) (v caisson.Verdict, ok bool) {
	guest := strings.TrimSuffix(strings.TrimSuffix(name, zone), ".")
	if n := len(guest); n > w.limits.GuestLength {
		return refusal("%d characters below *.%s, more than %d: too long for the name of a host", n, zone, w.limits.GuestLength), false
	}
	if bits := entropy(guest); bits > float64(w.limits.GuestBits) {
		return refusal("about %.0f bits below *.%s, more than %d: this looks like encoded data; if it is a name, allow it by its full name",
			bits, zone, w.limits.GuestBits), false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.known.Get(name); ok {
		return v, true
	}
	newNames, ok := w.zones.Get(zone)
	if !ok {
		newNames = rate.NewLimiter(rate.Limit(float64(w.limits.NewNames)/time.Minute.Seconds()), w.limits.NewNames)
		w.zones.Put(zone, newNames)
	}
	if !newNames.AllowN(w.now(), 1) {
		return refusal("more than %d new names below *.%s in a minute; try again later", w.limits.NewNames, zone), false
	}
	w.known.Put(name, struct{}{})
	return v, true
}

// entropy returns the Shannon entropy of the characters of s, times their number, in bits. It underestimates the data in short
// strings that are words of a code book; the limit of new names bounds that data.
func entropy(s string) (bits float64) {
	var count [256]int
	for i := range len(s) {
		count[s[i]]++
	}
	for _, n := range count {
		if n > 0 {
			bits -= float64(n) * math.Log2(float64(n)/float64(len(s)))
		}
	}
	return bits
}
