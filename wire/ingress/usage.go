package ingress

import (
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
)

// usageInterval is the time between two reports of the use of a sandbox while requests are in progress.
const usageInterval = 2 * time.Second

// usage reports which sandboxes are used by requests: at once when the first request of a sandbox begins, then at intervals until
// none is in progress. Safe for concurrent use.
type usage struct {
	report   func(list []caisson.IngressUse) // passes on a report; nil: nothing is reported
	interval time.Duration                   // time between two reports
	sending  sync.Mutex                      // held while a report is made and sent; locked before mu

	mu     sync.Mutex
	active map[caisson.ID]int   // requests in progress by sandbox; 0 until reported as no longer active; guarded by mu
	begun  []caisson.IngressUse // sandboxes whose first requests have begun, not yet reported; guarded by mu
	// soon reports the sandboxes in begun at once, later those in active after interval; nil if not scheduled; guarded by mu
	soon, later *time.Timer
	closed      bool // close was called; guarded by mu
}

func newUsage(report func(list []caisson.IngressUse)) *usage {
	return &usage{report: report, interval: usageInterval, active: map[caisson.ID]int{}}
}

// begin counts a request that is passed to a sandbox, until end is called.
func (u *usage) begin(id caisson.ID) (end func()) {
	if u.report == nil {
		return func() {}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	n, reported := u.active[id]
	u.active[id] = n + 1
	if !reported && !u.closed {
		u.begun = append(u.begun, caisson.IngressUse{Sandbox: id, Active: true})
		if u.soon == nil {
			u.soon = time.AfterFunc(0, u.reportBegun)
		}
		if u.later == nil {
			u.later = time.AfterFunc(u.interval, u.reportAll)
		}
	}
	return func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.active[id]--
	}
}

// reportBegun reports the sandboxes whose first requests have begun.
func (u *usage) reportBegun() {
	u.send(func() (list []caisson.IngressUse) {
		list, u.begun, u.soon = u.begun, nil, nil
		return list
	})
}

// reportAll reports all sandboxes in active, and then removes those without requests in progress.
func (u *usage) reportAll() {
	u.send(func() (list []caisson.IngressUse) {
		for id, n := range u.active {
			list = append(list, caisson.IngressUse{Sandbox: id, Active: n > 0})
			if n == 0 {
				delete(u.active, id)
			}
		}
		u.later = nil
		if len(u.active) > 0 && !u.closed {
			u.later = time.AfterFunc(u.interval, u.reportAll)
		}
		return list
	})
}

// send sends the report that list returns. It calls list with mu held. Reports are sent in the order in which they were made.
func (u *usage) send(list func() []caisson.IngressUse) {
	u.sending.Lock()
	defer u.sending.Unlock()
	u.mu.Lock()
	l := list()
	u.mu.Unlock()
	if len(l) > 0 {
		u.report(l)
	}
}

// close stops the timers of the reports. A report that has already begun is still sent.
func (u *usage) close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.closed = true
	for _, t := range []*time.Timer{u.soon, u.later} {
		if t != nil {
			t.Stop()
		}
	}
}
