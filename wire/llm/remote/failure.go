package remote

import (
	"encoding/json"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/caisson-dev/caisson/internal/lru"
	"github.com/caisson-dev/caisson/internal/reach"
)

const (
	maxFailures  = 20              // refused requests of one source before it receives 429
	failureDecay = 3 * time.Second // time after which one refused request is no longer counted
	maxSources   = 4096            // sources whose failures are counted at a time
)

// failureLimiter counts refused requests by source: an IPv4 address, or an IPv6 /64 network.
type failureLimiter struct {
	now func() time.Time

	mu      sync.Mutex
	sources *lru.Map[netip.Prefix, *failureCount] // guarded by mu
}

// failureCount is the number of refused requests of a source, reduced by one per failureDecay.
type failureCount struct {
	count int       // refused requests that are counted against the source
	since time.Time // time from which count is reduced
}

func newFailureLimiter() *failureLimiter {
	return &failureLimiter{now: time.Now, sources: lru.New[netip.Prefix, *failureCount](maxSources)}
}

// add counts a refused request. It returns the seconds that its source should wait; 0 if the source is within the limit.
func (f *failureLimiter) add(remoteAddr string) (wait int) {
	source := reach.Source(remoteAddr)
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	d, ok := f.sources.Get(source)
	if !ok {
		d = &failureCount{since: now}
		f.sources.Put(source, d)
	}
	if forgotten := int(now.Sub(d.since) / failureDecay); forgotten >= d.count {
		*d = failureCount{since: now}
	} else if forgotten > 0 {
		d.count -= forgotten
		d.since = d.since.Add(time.Duration(forgotten) * failureDecay)
	}
	if d.count >= maxFailures {
		return int(failureDecay / time.Second)
	}
	d.count++
	return 0
}

// errorTypes maps statuses to the error types of OpenAI and Anthropic.
var errorTypes = map[int]string{
	http.StatusUnauthorized:       "authentication_error",
	http.StatusForbidden:          "permission_error",
	http.StatusTooManyRequests:    "rate_limit_error",
	http.StatusServiceUnavailable: "api_error",
	http.StatusBadGateway:         "api_error",
	http.StatusBadRequest:         "invalid_request_error",
}

// writeError responds with an error in a format that clients of both OpenAI's and Anthropic's API understand.
func writeError(w http.ResponseWriter, status int, message string) {
	type detail struct {
		Type    string `json:"type"`
		Message string `json:"message"`
	}
	b, _ := json.Marshal(struct {
		Type  string `json:"type"`
		Error detail `json:"error"`
	}{"error", detail{errorTypes[status], message}}) // encoding strings cannot fail
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(append(b, '\n'))
}
