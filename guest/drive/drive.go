// Package drive runs agents inside the sandbox: it starts an agent's program, gives it the prompt, and converts its output to
// one stream of events. It does not run on the host.
package drive

import (
	"context"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/task"
)

// A Driver implements one of the protocols with which agents' programs are used.
type Driver interface {
	// Run gives t's prompt to the agent and writes the agent's output to out until the turn has ended or ctx is done, for the reason
	// in context.Cause. It ends all processes that it has started. The TurnResult has the agent's failures, the error the driver's.
	Run(ctx context.Context, t *task.Task, out Out) (TurnResult, error)
}

// A TurnResult is the result of a turn.
type TurnResult struct {
	Exit  *caisson.ExitStatus // exit status of the agent's program; nil if the program keeps running between turns
	Error *caisson.RunError   // error of the turn; nil means success
	Agent string              // version that the agent's program reports; "" if it reports none
}

// Out receives the output of an agent. Its methods are safe for concurrent use. They truncate arguments that are too long, remove
// control characters, and block while the reader of the stream is slow. They return no errors: if the reader has closed the
// stream, the context of Run is cancelled.
type Out interface {
	// Text adds s to the text of the answer.
	Text(s string)
	// Separate puts an empty line before the next text, unless there was no text yet.
	Separate()
	Status(phase, label string)                 // reports a phase of the task; label is a short text about it
	ToolStart(id, name string, args any)        // reports the start of a tool call with this id, of the tool called name
	ToolResult(id, result string, isError bool) // reports the end of a tool call; isError means that it has failed
	Usage(u caisson.RunUsage)                   // reports the usage as the agent counts it; the ledger is more accurate
	Log(stream string, data []byte)             // appends raw output of the agent's program to the log called stream
	Mark(mark string)                           // reports a point in time that the task has reached, such as task.MarkStarted
}
