package ingress

import (
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
)

// A reporter records reports of use.
type reporter struct {
	mu   sync.Mutex
	list []caisson.IngressUse // guarded by mu
}

func (r *reporter) report(list []caisson.IngressUse) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, list...)
}

// take returns the reports since the last call, and waits until there are some.
func (r *reporter) take(t *testing.T) (list []caisson.IngressUse) {
	t.Helper()
	poll.Until(t, limit, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		list, r.list = r.list, nil
		return len(list) > 0
	})
	return list
}

// TestUsage tests that a sandbox is reported at once when it is used, again while a request is in progress, though nothing is sent, and
// once when none is: not because of its connection, which is kept.
func TestUsage(t *testing.T) {
	held, hold := make(chan struct{}), make(chan struct{})
	r := &reporter{}
	w := newWorld(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		http.NewResponseController(w).Flush()
		held <- struct{}{}
		<-hold
	}), func(c *Config) { c.Used = r.report })
	w.usage.interval = 20 * time.Millisecond
	w.configure(caisson.RouteSpec{Host: "a"}, caisson.RouteSpec{Host: "private", Auth: caisson.RouteAuth{Kind: caisson.RouteAuthSigned}})
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.get("a", "/")
	}()
	<-held
	for range 3 {
		for _, u := range r.take(t) {
			if u != (caisson.IngressUse{Sandbox: sandboxID, Active: true}) {
				t.Errorf("in progress: %+v", u)
			}
		}
	}
	close(hold)
	<-done
	poll.Until(t, limit, func() bool {
		list := r.take(t)
		return list[len(list)-1] == caisson.IngressUse{Sandbox: sandboxID}
	})
	w.get("private", "/") // is refused
	w.usage.mu.Lock()
	defer w.usage.mu.Unlock()
	if len(w.usage.active) > 0 || w.usage.later != nil || w.usage.soon != nil {
		t.Errorf("%v is still reported", w.usage.active)
	}
}

// TestUsageRate tests that many short requests are reported twice in an interval.
func TestUsageRate(t *testing.T) {
	r := &reporter{}
	u := newUsage(r.report)
	u.interval = time.Hour
	defer u.close()
	for range 1000 {
		u.begin("sb-a")()
		u.begin("sb-b")()
	}
	if list := r.take(t); len(list) > 2 {
		t.Errorf("%d reports", len(list))
	}
	u.reportAll()
	if list := r.take(t); len(list) > 3 {
		t.Errorf("%d reports", len(list))
	}
	if len(u.active) > 0 {
		t.Errorf("%v is remembered", u.active)
	}
}
