package routes

import (
	"slices"
	"sync"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/lru"
	"github.com/caisson-dev/caisson/internal/safetext"
)

// Limits on the logs of requests, which are in memory.
const (
	maxLogs    = 500 // maximum number of routes that have a log
	maxEntries = 200 // maximum number of requests in the log of one route
	maxField   = 256 // maximum size in bytes of each text in the entry of a request, before it is escaped
)

// Requests keeps recent requests of routes. It is safe for concurrent use.
type Requests struct {
	mu   sync.Mutex
	logs *lru.Map[caisson.ID, []caisson.RouteRequest] // requests by route, newest last; guarded by mu
}

// newRequests returns a Requests without logs.
func newRequests() *Requests {
	return &Requests{logs: lru.New[caisson.ID, []caisson.RouteRequest](maxLogs)}
}

// Add adds a request to the log of a route. e comes from the wire process and contains untrusted values from clients.
func (l *Requests) Add(route caisson.ID, e caisson.RouteRequest) {
	if _, err := caisson.ParseID(caisson.RoutePrefix, string(route)); err != nil {
		return
	}
	for _, field := range []*string{&e.Client, &e.Method, &e.Path} {
		*field = safetext.Escape((*field)[:min(len(*field), maxField)])
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	list, _ := l.logs.Get(route)
	if len(list) >= maxEntries {
		list = slices.Delete(list, 0, len(list)-maxEntries+1)
	}
	l.logs.Put(route, append(list, e))
}

// list returns the requests of a route, the newest last.
func (l *Requests) list(route caisson.ID) []caisson.RouteRequest {
	l.mu.Lock()
	defer l.mu.Unlock()
	list, _ := l.logs.Get(route)
	return slices.Clone(list)
}

// forget removes the log of a route.
func (l *Requests) forget(route caisson.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.logs.Put(route, nil)
}
