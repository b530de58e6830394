package sandboxes

import (
	"context"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
)

// activity records which sandboxes are in use from outside, and when the last use of each one ended. The records are in memory
// only: when the daemon starts, running sandboxes count as just used.
type activity struct {
	start    time.Time        // time at which the daemon started
	programs caisson.Programs // sets of programs that this daemon supports

	mu   sync.Mutex
	uses map[caisson.ID]*useRecord // records of uses by sandbox; guarded by mu
}

// useRecord is the record of the uses of one sandbox. It is guarded by activity.mu.
type useRecord struct {
	n     int       // number of uses in progress
	until time.Time // requests of the ingress count as a use in progress until this time
	last  time.Time // end of the last use, or time of the last report about requests
}

// newActivity returns an activity without records, for a daemon that starts now.
func newActivity(programs caisson.Programs) *activity {
	return &activity{start: now(), programs: programs, uses: map[caisson.ID]*useRecord{}}
}

// begin records that a use of a sandbox is in progress until end is called.
func (a *activity) begin(id caisson.ID) (end func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	u := a.entry(id)
	u.n++
	return sync.OnceFunc(func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		u.n--
		u.last = now()
	})
}

// recordUse records a use of a sandbox that begins and ends now.
func (a *activity) recordUse(id caisson.ID) { a.begin(id)() }

// requestLease is how long a request of the ingress to a sandbox counts as a use in progress after the wire process has reported
// it. While the request lasts, the wire process repeats the report more often than that.
const requestLease = 10 * time.Second

// recordRequests records a report of the wire process about requests of the ingress to a sandbox. active reports whether any of
// the requests is in progress.
func (a *activity) recordRequests(id caisson.ID, active bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	u := a.entry(id)
	u.last, u.until = now(), time.Time{}
	if active {
		u.until = u.last.Add(requestLease)
	}
}

// entry returns the record of the uses of a sandbox, and creates it if there is none. The caller must hold a.mu.
func (a *activity) entry(id caisson.ID) *useRecord {
	u := a.uses[id]
	if u == nil {
		u = &useRecord{}
		a.uses[id] = u
	}
	return u
}

// last returns the time of the last use of a sandbox, and whether the sandbox is in use. A sandbox that serves a run is in use.
// The time is the current one if the sandbox is in use, and that of the daemon's start if no use is known.
func (a *activity) last(sb *caisson.Sandbox) (at time.Time, inUse bool) {
	current := now()
	a.mu.Lock()
	defer a.mu.Unlock()
	u := a.uses[sb.ID]
	if sb.Assigned != nil || u.inUse(current) {
		return current, true
	}
	at = a.start
	if sb.IdleSince != nil {
		at = *sb.IdleSince
	}
	if u != nil {
		for _, t := range []time.Time{u.last, u.until} {
			if t.After(at) {
				at = t
			}
		}
	}
	return at, false
}

// inUse reports whether a use of a sandbox is in progress. A run that the sandbox serves does not count.
func (a *activity) inUse(id caisson.ID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.uses[id].inUse(now())
}

// inUse reports whether a use is in progress at the given time. u may be nil.
func (u *useRecord) inUse(at time.Time) bool { return u != nil && (u.n > 0 || at.Before(u.until)) }

// forget deletes the record of the uses of a sandbox that is being removed.
func (a *activity) forget(id caisson.ID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.uses, id)
}

// use records that a sandbox of the caller's account is in use until end is called. Until then, the sandbox is not suspended,
// paused or stopped by its autoPause. Returns an error if the sandbox's state does not allow the verb v.
func (a *activity) use(ctx context.Context, f finder, ref string, v caisson.Verb) (sb *caisson.Sandbox, end func(), err error) {
	for {
		if sb, err = f.findFor(ctx, ref, v); err != nil {
			return nil, nil, err
		}
		end = a.begin(sb.ID)
		if sb.Spec.AutoPause == (caisson.AutoPause{}) {
			return sb, end, nil
		}
		// Read the state again, because expiry may be suspending the sandbox: expiry stores the new state before it checks
		// whether the sandbox is in use.
		again, err := f.findFor(ctx, ref, v)
		if err == nil && again.ID == sb.ID {
			return again, end, nil
		}
		end()
		if err != nil {
			return nil, nil, err
		}
	}
}
