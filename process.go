package caisson

import (
	"context"
	"fmt"
	"io"
	"time"
)

// An ExitStatus describes how a process ended.
type ExitStatus struct {
	Code int `json:"code" doc:"Exit code; 128 plus the signal's number if a signal ended it"`
	// Signal is the number of the signal that ended the process, 0 if it exited by itself.
	Signal int `json:"signal,omitempty"`
	// Unknown is true if Caisson could not observe how the process ended; Code is then -1.
	Unknown bool `json:"unknown,omitempty"`
	// Reason describes why Caisson or the kernel ended the process, for example "time limit", or why the sandbox ended.
	Reason string `json:"reason,omitempty"`
}

// Success reports whether the process exited with code 0.
func (e ExitStatus) Success() bool { return e.Code == 0 && e.Signal == 0 && !e.Unknown }

// String returns a short description of how the process ended.
func (e ExitStatus) String() string {
	s := fmt.Sprintf("exited with %d", e.Code)
	switch {
	case e.Unknown:
		s = "ended with an unknown status"
	case e.Signal != 0:
		s = fmt.Sprintf("ended by signal %d", e.Signal)
	}
	if e.Reason != "" {
		s += " (" + e.Reason + ")"
	}
	return s
}

// An ExecRequest is the input of [Processes.Exec].
type ExecRequest struct {
	Command []string          `json:"command" minItems:"1" doc:"Program and arguments; the program is looked up in PATH inside the sandbox"`
	Env     map[string]string `json:"env,omitempty" doc:"Added to the sandbox's"`
	Workdir string            `json:"workdir,omitempty"`
	User    string            `json:"user,omitempty" doc:"name, uid or uid:gid; default the sandbox's"`
	TTY     bool              `json:"tty,omitempty"`
	Rows    uint16            `json:"rows,omitempty"`
	Cols    uint16            `json:"cols,omitempty"`
	Stdin   bool              `json:"stdin,omitempty" doc:"The process has a standard input; else it is empty"`
	Timeout Duration          `json:"timeout,omitempty" doc:"SIGKILL after this long; 0 is never"`
	// Detach lets the process outlive the exec session: closing the session does not kill it. Invalid with TTY or Stdin.
	Detach bool `json:"detach,omitempty" doc:"The process outlives its session, and its output is discarded"`
}

// A Process is one exec session, or a viewer of a terminal. Stdin, Stdout and Stderr must each be used by at most one goroutine
// at a time; Signal, Resize and Wait are safe for concurrent use.
type Process interface {
	// PID is the process id inside the sandbox.
	PID() int
	// Stdin is the process's standard input, nil if none was requested. Closing it signals end of file; with a TTY it sends ^D.
	Stdin() io.WriteCloser
	// Reads of Stdout and of Stderr return io.EOF when no process has that output open any longer. With a TTY, Stderr is empty.
	Stdout() io.Reader
	Stderr() io.Reader
	// Resize sets the terminal's size; Conflict without a TTY.
	Resize(rows, cols uint16) error
	// Signal sends a signal to the process; with a TTY to the foreground process group of the terminal. After the process has ended,
	// Signal returns NotFound or nil.
	Signal(ctx context.Context, signal int) error
	// Wait returns how the process ended. It may be called by any number of callers.
	Wait(ctx context.Context) (ExitStatus, error)
	// Close ends the session: the process is killed if it still runs.
	Close() error
}

// ProcessInfo is one line of a process listing. The ids are those inside the sandbox.
type ProcessInfo struct {
	PID     int    `json:"pid"`
	PPID    int    `json:"ppid"`
	UID     int    `json:"uid"`
	Command string `json:"command" doc:"Short name of the program"`
	CPUTime string `json:"cpuTime"` // CPU time as text with a unit: "120ms"
	Threads int    `json:"threads"`
}

// Stats is a measurement of a running sandbox.
type Stats struct {
	At        time.Time `json:"at"`
	CPUNanos  int64     `json:"cpuNanos" doc:"Processor time used since start"`
	Memory    Size      `json:"memory" doc:"Bytes of memory in use, Caisson's own share for this sandbox included"`
	MemoryMax Size      `json:"memoryMax" doc:"Limit of memory, in bytes"`
	PIDs      int       `json:"pids"` // number of processes
	// Network is nil if the sandbox has no wire at present.
	Network *NetworkStats `json:"network,omitempty"`
}

// NetworkStats counts the traffic of a sandbox's wire since the wire process attached it.
type NetworkStats struct {
	BytesOut int64 `json:"bytesOut" doc:"Sent by the sandbox, all of it, headers included"`
	BytesIn  int64 `json:"bytesIn"` // sent to the sandbox, headers included
	Dropped  int64 `json:"dropped" doc:"Frames of the sandbox that were dropped without processing"`
	Allowed  int64 `json:"allowed" doc:"Names, connections and requests that policy allowed"`
	Denied   int64 `json:"denied" doc:"Names, connections and requests that the policy denied"`
	Limited  int64 `json:"limited" doc:"Connections refused because there were too many"`
	Open     int   `json:"open" doc:"Connections now"`
}

// Processes is the service for the processes in sandboxes. ref is a sandbox's ID or name. Conflict unless it runs (not for Logs).
type Processes interface {
	// Exec starts a process and returns at once.
	Exec(ctx context.Context, ref string, req ExecRequest) (Process, error)
	// ListProcesses lists the processes in the sandbox.
	ListProcesses(ctx context.Context, ref string) ([]ProcessInfo, error)
	// Kill sends a signal to one process (pid as seen in the sandbox), or to every process if pid is -1.
	Kill(ctx context.Context, ref string, pid, signal int) error
	Stats(ctx context.Context, ref string) (*Stats, error)
	// Logs returns the output of the sandbox's command (stdout and stderr interleaved). Only the newest part of a long log is kept.
	// With follow, the stream ends when the sandbox stops or ctx ends.
	Logs(ctx context.Context, ref string, follow bool) (io.ReadCloser, error)
}
