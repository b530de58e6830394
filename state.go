package caisson

import (
	"slices"
	"strings"
)

// State is where a sandbox is in its life.
type State string

// The states. Those ending in -ing are passages: a change is under way, and after a crash reconcile decides from what
// exists on the host how it ended.
const (
	Creating   State = "creating" // intent is stored; host objects are being made
	Created    State = "created"  // has a root file system, runs nothing yet
	Starting   State = "starting"
	Running    State = "running"
	Pausing    State = "pausing"
	Paused     State = "paused" // memory and files are on disk; uses no memory and survives a reboot
	Resuming   State = "resuming"
	Suspending State = "suspending"
	Suspended  State = "suspended" // stands still, in memory; continues at once
	Waking     State = "waking"
	Stopping   State = "stopping"
	Stopped    State = "stopped" // files are on disk, memory is gone
	Removing   State = "removing"
	Failed     State = "failed" // Reason says why; can only be removed
)

// States lists all states.
func States() []State {
	return []State{Creating, Created, Starting, Running, Pausing, Paused, Resuming, Suspending, Suspended, Waking, Stopping, Stopped, Removing, Failed}
}

// A Verb is a change, or a use, of a sandbox.
type Verb string

// The verbs.
const (
	VerbStart    Verb = "start"
	VerbStop     Verb = "stop"
	VerbPause    Verb = "pause"
	VerbResume   Verb = "resume"
	VerbSuspend  Verb = "suspend"
	VerbWake     Verb = "wake"
	VerbSnapshot Verb = "snapshot"
	VerbFork     Verb = "fork"
	VerbExec     Verb = "exec"
	VerbFiles    Verb = "use files of"
	VerbStats    Verb = "measure"
	VerbRemove   Verb = "remove"
)

// passage is the way a verb takes a sandbox: from one of From, through Via while it is under way (empty for uses, which
// change nothing), to To.
type passage struct {
	From []State
	Via  State
	To   State
}

// passages is the one table of allowed changes; every verb consults it.
var passages = map[Verb]passage{
	VerbStart:    {From: []State{Created, Stopped}, Via: Starting, To: Running},
	VerbStop:     {From: []State{Running, Paused, Suspended}, Via: Stopping, To: Stopped},
	VerbSuspend:  {From: []State{Running}, Via: Suspending, To: Suspended},
	VerbWake:     {From: []State{Suspended}, Via: Waking, To: Running},
	VerbPause:    {From: []State{Running, Suspended}, Via: Pausing, To: Paused},
	VerbResume:   {From: []State{Paused}, Via: Resuming, To: Running},
	VerbSnapshot: {From: []State{Running, Paused, Stopped}},
	VerbFork:     {From: []State{Running, Paused, Stopped}},
	VerbExec:     {From: []State{Running}},
	VerbFiles:    {From: []State{Running, Paused, Stopped}},
	VerbStats:    {From: []State{Running}},
	VerbRemove:   {From: States(), Via: Removing},
}

// hints says what to do instead, by state.
var hints = map[State]string{
	Created:   "start it first",
	Paused:    "resume it first",
	Suspended: "wake it first",
	Stopped:   "start it first",
	Failed:    "it can only be removed",
	Removing:  "it is being removed",
}

// Allow reports whether v may be done to a sandbox in state s, as nil or a Conflict that says what is possible instead.
func (s State) Allow(v Verb) error {
	p := passages[v]
	if slices.Contains(p.From, s) {
		return nil
	}
	if hint := hints[s]; hint != "" && v != VerbStop {
		return Errorf(Conflict, "cannot %s a %s sandbox; %s", v, s, hint)
	}
	from := make([]string, len(p.From))
	for i, f := range p.From {
		from[i] = string(f)
	}
	return Errorf(Conflict, "cannot %s a %s sandbox; it must be %s", v, s, strings.Join(from, " or "))
}

// Passage returns the state a sandbox is in while v is under way, and the one it ends in. Both are empty for uses.
func (v Verb) Passage() (via, to State) {
	p := passages[v]
	return p.Via, p.To
}

// Transient reports whether a change is under way in s.
func (s State) Transient() bool {
	switch s {
	case Creating, Starting, Pausing, Resuming, Suspending, Waking, Stopping, Removing:
		return true
	}
	return false
}

// Live reports whether a sandbox in s has processes on its host.
func (s State) Live() bool {
	switch s {
	case Starting, Running, Pausing, Resuming, Suspending, Suspended, Waking, Stopping:
		return true
	}
	return false
}
