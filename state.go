package caisson

import (
	"slices"
	"strings"
)

// State is the state of a sandbox.
type State string

// The states of sandboxes. Those ending in -ing, except running, are transient: a change is in progress, and after a crash
// reconcile determines its outcome from the objects on the host.
const (
	Creating   State = "creating" // the plan is stored; objects on the host are being created
	Created    State = "created"  // the root file system exists; no process was started yet
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
	Failed     State = "failed" // the sandbox can only be removed; Sandbox.Reason contains the cause
)

// States lists all states that a sandbox can have.
func States() []State {
	return []State{Creating, Created, Starting, Running, Pausing, Paused, Resuming, Suspending, Suspended, Waking, Stopping, Stopped, Removing, Failed}
}

// A Verb is an operation on a sandbox that its state must allow: a change of the state, or an access, such as exec, that changes
// no state.
type Verb string

// The verbs. Their values are parts of error messages: "cannot see programs in a paused sandbox".
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
	VerbPrograms Verb = "see programs in" // list processes, or send signals to them
	VerbConnect  Verb = "connect to"
	VerbFiles    Verb = "use files of"
	VerbStats    Verb = "measure"
	VerbRemove   Verb = "remove"
)

// A transition describes the change of a sandbox's state by a verb.
type transition struct {
	From []State // states in which the verb is allowed
	Via  State   // state while the verb is in progress; "" if the verb changes no state
	To   State   // state after the verb; "" if the verb changes no state, or removes the sandbox
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

// hints has the next steps that errors suggest, by the state of the sandbox.
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

// Transition returns the state of a sandbox while v is in progress, and the state afterwards. Both are "" if v changes no state;
// to is also "" for VerbRemove.
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
