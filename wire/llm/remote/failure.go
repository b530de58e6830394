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
	maxFailures  = 20              // number of refused requests at which a client address receives status 429
	failureDecay = 3 * time.Second // interval at which the number of an address is reduced by one
	maxSources   = 4096            // maximum number of client addresses whose refused requests are counted
)

// failureLimiter counts refused requests by source: the IPv4 address, or the IPv6 /64 network, of the client.
type failureLimiter struct {
	now func() time.Time // the clock

	mu      sync.Mutex                            // guards sources
	sources *lru.Map[netip.Prefix, *failureCount] // counts of the sources whose requests were refused last
}

// failureCount is the number of refused requests of a source, reduced by one per failureDecay.
type failureCount struct {
	count int       // number of refused requests, less one per failureDecay until since
	since time.Time // time to which count has been reduced
}

// newFailureLimiter returns a limiter that has not counted any requests.
func newFailureLimiter() *failureLimiter {
	return &failureLimiter{now: time.Now, sources: lru.New[netip.Prefix, *failureCount](maxSources)}
}

// add counts a refused request from remoteAddr, HOST:PORT. If its source is at the limit, add returns how many seconds it should
// wait, and counts nothing; otherwise it returns 0.
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

// errorTypes has the field "type" of an error in the APIs of OpenAI and Anthropic, by HTTP status.
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
