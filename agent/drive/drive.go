// Package drive speaks with agents, inside the sandbox: it starts an agent's program, gives it the prompt, and turns what it says into
// one stream of events. Nothing of it runs on the host.
package drive

import (
	"context"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/agent/task"
)

// A Driver knows one way of speaking with agents.
type Driver interface {
	// Run gives t's prompt to the agent and says to out what the agent says, until it has ended its turn or ctx ends, for the reason that
	// context.Cause gives. It leaves no process of its own behind. What goes wrong with the agent is in the End; the error is for faults of
	// the driver's own.
	Run(ctx context.Context, t *task.Task, out Out) (End, error)
}

// An End is how a turn ended.
type End struct {
	Exit  *caisson.ExitStatus // of the agent's program; nil if it was there before and stays
	Error *caisson.RunError   // nil: the agent says that it has done what it could
	Agent string              // version that the program says it has; "" if it does not
}

// Out takes what an agent says. Its methods are safe for concurrent use, bound and clean what they are given, and block while the reader is
// slow. They report nothing: a reader that is gone ends the context of Run.
type Out interface {
	// Text is the next part of the answer. Parts are put together as they are.
	Text(s string)
	// Separate puts an empty line before the next Text, if there was one before.
	Separate()
	Status(phase, label string)
	ToolStart(id, name string, args any)
	ToolResult(id, result string, isError bool)
	Usage(u caisson.RunUsage) // what the agent itself says it used; the ledger knows better
	Log(stream string, data []byte)
	Mark(mark string)
}
