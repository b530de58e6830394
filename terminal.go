package caisson

import (
	"context"
	"time"
)

// Limits of terminals.
const (
	MaxTerminals       = 32 // maximum number of terminals in one sandbox
	MaxTerminalViewers = 16 // maximum number of viewers of one terminal
)

// A Terminal is a program in a sandbox that runs at a terminal of its own, which clients attach to and detach from. Program and
// terminal are inside the sandbox: they need no viewers, continue after suspend and wake, pause and resume, and a restart of the
// daemon, and each fork has its own copy. All fields come from the sandbox and are untrusted.
type Terminal struct {
	ID        ID          `json:"id"`
	Command   []string    `json:"command" nullable:"false" doc:"The beginning of the program and its arguments"`
	PID       int         `json:"pid"`
	Rows      uint16      `json:"rows"`
	Cols      uint16      `json:"cols"`
	Viewers   int         `json:"viewers" doc:"How many are attached"`
	StartedAt time.Time   `json:"startedAt" doc:"By the sandbox's clock"`
	Exit      *ExitStatus `json:"exit,omitempty" doc:"How its program has ended. The terminal stays for ten minutes, or until a client that attaches to it has received this"`
}

// A TerminalRequest is the input of [Terminals.CreateTerminal].
type TerminalRequest struct {
	Command []string          `json:"command" minItems:"1" doc:"Program and arguments; the program is looked up in PATH inside the sandbox"`
	Env     map[string]string `json:"env,omitempty" doc:"Added to the sandbox's"`
	Workdir string            `json:"workdir,omitempty"`
	User    string            `json:"user,omitempty" doc:"name, uid or uid:gid; default the sandbox's"`
	Rows    uint16            `json:"rows,omitempty" doc:"Default 24"`
	Cols    uint16            `json:"cols,omitempty" doc:"Default 80"`
	// Keep keeps the terminal after its program's end until it is removed. Only the daemon sets it, for the terminals of runs.
	Keep bool `json:"-"`
}

// An AttachRequest is the input of [Terminals.AttachTerminal].
type AttachRequest struct {
	Rows     uint16 `json:"rows,omitempty" doc:"Size of the client's terminal; 0 leaves the size as it is"`
	Cols     uint16 `json:"cols,omitempty"`
	ReadOnly bool   `json:"readOnly,omitempty" doc:"Only view"`
}

// Terminals is the service that manages the terminals in sandboxes. ref is a sandbox's ID or name. Conflict unless it runs.
type Terminals interface {
	// CreateTerminal starts a program at a new terminal. Exhausted if the sandbox has [MaxTerminals] terminals.
	CreateTerminal(ctx context.Context, ref string, req TerminalRequest) (*Terminal, error)
	// ListTerminals lists the sandbox's terminals, oldest first.
	ListTerminals(ctx context.Context, ref string) ([]Terminal, error)
	// AttachTerminal attaches a viewer to a terminal and returns it as a Process. Stdout begins with the end of the earlier output,
	// at most 256 KiB. A viewer that reads slowly misses output; Stderr has one line of text for each gap. Input, size and signals
	// are accepted only from the viewer that attached last without ReadOnly. Close detaches; the program keeps running.
	AttachTerminal(ctx context.Context, ref string, id ID, req AttachRequest) (Process, error)
	// RemoveTerminal kills the program and removes its terminal.
	RemoveTerminal(ctx context.Context, ref string, id ID) error
}
