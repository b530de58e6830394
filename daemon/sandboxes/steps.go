package sandboxes

import (
	"slices"
	"time"

	"github.com/caisson-dev/caisson"
)

// A step is an action that is to be taken on a sandbox at a certain time.
type step struct {
	kind  act              // what is done to the sandbox
	at    time.Time        // time at which the step is due
	until time.Time        // time at which the TTL ends; zero for steps without a TTL
	limit caisson.Duration // the TTL, or the time without use after which the step is due
}

// An act is the kind of a step.
type act int

const (
	actRemove   act = iota // the hard TTL has ended: remove
	actAnnounce            // a TTL will end soon: publish an event
	actExpire              // the TTL has ended: pause
	actWake                // WakeAt has come: wake or resume
	actStop                // the sandbox is not in use: stop
	actPause               // the sandbox is not in use: pause
	actSuspend             // the sandbox is not in use: suspend
)

// steps returns the future and the due steps of a sandbox, in order of precedence: the first step in the list that is due is
// executed.
func (a *activity) steps(sb *caisson.Sandbox) (list []step) {
	if sb.RemoveAt != nil {
		list = append(list, step{kind: actRemove, at: *sb.RemoveAt, until: *sb.RemoveAt, limit: sb.Spec.HardTTL})
		list = appendAnnouncement(list, sb, *sb.RemoveAt, sb.Spec.HardTTL)
	}
	if sb.PauseAt != nil && sb.State.Live() {
		list = appendAnnouncement(list, sb, *sb.PauseAt, sb.Spec.TTL)
		list = append(list, step{kind: actExpire, at: *sb.PauseAt, until: *sb.PauseAt, limit: sb.Spec.TTL})
	}
	if sb.WakeAt != nil {
		list = append(list, step{kind: actWake, at: *sb.WakeAt})
	}
	return append(list, a.idleSteps(sb)...)
}

// announceBefore returns how long before its end a TTL is announced: a tenth of the TTL, but at most one minute.
func announceBefore(ttl caisson.Duration) time.Duration {
	return min(time.Minute, time.Duration(ttl)/10)
}

// appendAnnouncement appends the step that announces the end of a TTL to list, unless the end was announced already or has
// passed.
func appendAnnouncement(list []step, sb *caisson.Sandbox, end time.Time, ttl caisson.Duration) []step {
	if ttl == 0 || !now().Before(end) || isAnnounced(sb, end) {
		return list
	}
	return append(list, step{kind: actAnnounce, at: end.Add(-announceBefore(ttl)), until: end, limit: ttl})
}

// isAnnounced reports whether an event has already announced that a TTL of the sandbox ends at the time end.
func isAnnounced(sb *caisson.Sandbox, end time.Time) bool {
	return slices.ContainsFunc(sb.Announced, end.Equal)
}

// minRecheck is the minimum time until a sandbox that is in use is checked again.
const minRecheck = time.Second

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
	if hasWire(sb) && !a.programs.Supports(sb.Build) { // A sandbox with unsupported programs can only be stopped.
		p.Suspend, p.Pause = 0, 0
	}
	if sb.WakeAt != nil { // A stopped sandbox cannot be woken.
		p.Stop = 0
	}
	last, inUse := a.last(sb)
	for _, s := range []step{{kind: actStop, limit: p.Stop}, {kind: actPause, limit: p.Pause}, {kind: actSuspend, limit: p.Suspend}} {
		if s.limit == 0 {
			continue
		}
		after := time.Duration(s.limit)
		if inUse {
			after = max(after, minRecheck)
		}
		s.at = last.Add(after)
		list = append(list, s)
	}
	return list
}

// isDue reports whether the time of a step has come.
func (s step) isDue() bool { return !now().Before(s.at) }
