package sandboxes

import (
	"slices"
	"time"

	"github.com/caisson-dev/caisson"
)

// A step is an action that is to be taken on a sandbox at a certain time.
type step struct {
	act   act
	at    time.Time
	until time.Time        // when the TTL ends; zero for the other steps
	limit caisson.Duration // the TTL, or how long the sandbox has not been used
}

// An act is the kind of a step.
type act int

const (
	actRemove   act = iota // the hard TTL has ended
	actAnnounce            // a TTL will end soon
	actExpire              // the TTL has ended: pause
	actWake                // wake or resume
	actStop                // not used: stop, pause or suspend
	actPause
	actSuspend
)

// steps returns the steps of a sandbox, in order of precedence: of the steps that are due, the first one in the list is executed.
func (a *activity) steps(sb *caisson.Sandbox) (list []step) {
	if sb.RemoveAt != nil {
		list = append(list, step{act: actRemove, at: *sb.RemoveAt, until: *sb.RemoveAt, limit: sb.Spec.HardTTL})
		list = appendAnnouncement(list, sb, *sb.RemoveAt, sb.Spec.HardTTL)
	}
	if sb.PauseAt != nil && sb.State.Live() {
		list = appendAnnouncement(list, sb, *sb.PauseAt, sb.Spec.TTL)
		list = append(list, step{act: actExpire, at: *sb.PauseAt, until: *sb.PauseAt, limit: sb.Spec.TTL})
	}
	if sb.WakeAt != nil {
		list = append(list, step{act: actWake, at: *sb.WakeAt})
	}
	return append(list, a.idleSteps(sb)...)
}

// announceBefore returns how long before its end a TTL is announced.
func announceBefore(ttl caisson.Duration) time.Duration {
	return min(time.Minute, time.Duration(ttl)/10)
}

// appendAnnouncement appends the announcement of a TTL that ends at a time, unless it was announced already or has ended.
func appendAnnouncement(list []step, sb *caisson.Sandbox, end time.Time, ttl caisson.Duration) []step {
	if ttl == 0 || !now().Before(end) || isAnnounced(sb, end) {
		return list
	}
	return append(list, step{act: actAnnounce, at: end.Add(-announceBefore(ttl)), until: end, limit: ttl})
}

// isAnnounced reports whether the end of a TTL at the time end was already announced.
func isAnnounced(sb *caisson.Sandbox, end time.Time) bool {
	return slices.ContainsFunc(sb.Announced, end.Equal)
}

// minCheck is the minimum time between two checks of a sandbox that is in use.
const minCheck = time.Second

// idleSteps returns the steps that suspend, pause or stop a sandbox after times without use, as its AutoPause requests.
func (a *activity) idleSteps(sb *caisson.Sandbox) (list []step) {
	p := sb.Spec.AutoPause
	switch {
	case p == (caisson.AutoPause{}) || sb.Pooled:
		return nil
	case sb.State == caisson.Running:
	case sb.State == caisson.Suspended:
		p.Suspend = 0
	case sb.State == caisson.Paused:
		p.Suspend, p.Pause = 0, 0
	default:
		return nil
	}
	if hasWire(sb) && !a.programs.Supports(sb.Build) { // It can only be stopped.
		p.Suspend, p.Pause = 0, 0
	}
	if sb.WakeAt != nil { // A stopped sandbox cannot be woken.
		p.Stop = 0
	}
	last, inUse := a.last(sb)
	for _, s := range []step{{act: actStop, limit: p.Stop}, {act: actPause, limit: p.Pause}, {act: actSuspend, limit: p.Suspend}} {
		if s.limit == 0 {
			continue
		}
		after := time.Duration(s.limit)
		if inUse {
			after = max(after, minCheck)
		}
		s.at = last.Add(after)
		list = append(list, s)
	}
	return list
}

// isDue reports whether the time of a step has come.
func (s step) isDue() bool { return !now().Before(s.at) }
