package caisson

import (
	"slices"
	"strings"
)

// State is the state of a sandbox.
type State string

// The states. Those ending in -ing are transient: a change is in progress, and after a crash reconcile determines its
// outcome from the objects on the host.
const (
	Creating   State = "creating" // intent is stored; host objects are being created
	Created    State = "created"  // has a root file system, runs nothing yet
	Starting   State = "starting"
	Running    State = "running"
	Pausing    State = "pausing"
	Paused     State = "paused" // memory and files are on disk; uses no memory and survives a reboot
	Resuming   State = "resuming"
	Suspending State = "suspending"
	Suspended  State = "suspended" // frozen in memory; continues at once
	Waking     State = "waking"
	Stopping   State = "stopping"
	Stopped    State = "stopped" // files are on disk, memory was discarded
	Removing   State = "removing"
	Failed     State = "failed" // Reason contains the cause; can only be removed
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
	VerbPrograms Verb = "see programs in"
	VerbConnect  Verb = "connect to"
	VerbFiles    Verb = "use files of"
	VerbStats    Verb = "measure"
	VerbRemove   Verb = "remove"
)

// transition is the transition of a verb: from one of From, through Via while it is in progress (empty for uses, which
// change nothing), to To.
type transition struct {
	From []State
	Via  State
	To   State
}

// transitions is the table of all allowed transitions; every verb is checked against it.
var transitions = map[Verb]transition{
	VerbStart:    {From: []State{Created, Stopped}, Via: Starting, To: Running},
	VerbStop:     {From: []State{Running, Paused, Suspended}, Via: Stopping, To: Stopped},
	VerbSuspend:  {From: []State{Running}, Via: Suspending, To: Suspended},
	VerbWake:     {From: []State{Suspended}, Via: Waking, To: Running},
	VerbPause:    {From: []State{Running, Suspended}, Via: Pausing, To: Paused},
	VerbResume:   {From: []State{Paused}, Via: Resuming, To: Running},
	VerbSnapshot: {From: []State{Running, Paused, Stopped}},
	VerbFork:     {From: []State{Running, Paused, Stopped}},
	VerbExec:     {From: []State{Running}},
	VerbPrograms: {From: []State{Running}},
	VerbConnect:  {From: []State{Running}},
	VerbFiles:    {From: []State{Running, Paused, Stopped}},
	VerbStats:    {From: []State{Running}},
	VerbRemove:   {From: States(), Via: Removing},
}

// hints are the possible next steps by state, for errors.
var hints = map[State]string{
	Created:   "start it first",
	Paused:    "resume it first",
	Suspended: "wake it first",
	Stopped:   "start it first",
	Failed:    "it can only be removed",
	Removing:  "it is being removed",
}

// Allow returns nil if v is allowed in state s, and otherwise a Conflict error with the possible next step.
func (s State) Allow(v Verb) error {
	p := transitions[v]
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

// Transition returns the state of a sandbox while v is in progress, and the final one. Both are empty for uses.
func (v Verb) Transition() (via, to State) {
	p := transitions[v]
	return p.Via, p.To
}

// Transient reports whether a change is in progress in s.
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
