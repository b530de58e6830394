package caisson

import (
	"context"
	"fmt"
	"io"
	"time"
)

// An ExitStatus says how a process ended.
type ExitStatus struct {
	Code int `json:"code" doc:"Exit code; 128 plus the signal's number if a signal ended it"`
	// Signal is the number of the signal that ended the process, 0 if it exited by itself.
	Signal int `json:"signal,omitempty"`
	// Unknown is true if nobody was there to see the end; Code is then -1.
	Unknown bool `json:"unknown,omitempty"`
	// Reason says what ended the process if Caisson did or the kernel had to: "time limit", or why its sandbox ended.
	Reason string `json:"reason,omitempty"`
}

// Success reports whether the process exited with code 0.
func (e ExitStatus) Success() bool { return e.Code == 0 && e.Signal == 0 && !e.Unknown }

// String describes the end in a few words.
func (e ExitStatus) String() string {
	s := fmt.Sprintf("exited with %d", e.Code)
	switch {
	case e.Unknown:
		s = "ended unobserved"
	case e.Signal != 0:
		s = fmt.Sprintf("ended by signal %d", e.Signal)
	}
	if e.Reason != "" {
		s += " (" + e.Reason + ")"
	}
	return s
}

// An ExecRequest asks for a process in a running sandbox.
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
	// Detach leaves the process to itself: closing the session does not end it. Invalid with TTY or Stdin.
	Detach bool `json:"detach,omitempty" doc:"The process outlives its session, and what it writes is dropped"`
}

// A Process is one exec session. Its ends must be used by at most one goroutine each; Signal, Resize and Wait may be
// called at any time by any goroutine.
type Process interface {
	// PID is the process id inside the sandbox.
	PID() int
	// Stdin is the process's standard input, nil if none was asked for. Closing it is end of file; with a TTY that is ^D.
	Stdin() io.WriteCloser
	// Stdout and Stderr end with io.EOF when no process holds them any longer. With a TTY Stderr is empty.
	Stdout() io.Reader
	Stderr() io.Reader
	// Resize sets the terminal's size; Conflict without a TTY.
	Resize(rows, cols uint16) error
	// Signal sends a signal to the process; with a TTY to its foreground process group. It is NotFound, or nothing, after
	// the process has ended.
	Signal(ctx context.Context, signal int) error
	// Wait returns how the process ended; any number of callers.
	Wait(ctx context.Context) (ExitStatus, error)
	// Close abandons the session: the process is killed if it still runs.
	Close() error
}

// ProcessInfo is one line of a process listing.
type ProcessInfo struct {
	PID     int    `json:"pid"`
	PPID    int    `json:"ppid"`
	UID     int    `json:"uid"`
	Command string `json:"command" doc:"Short name of the program"`
	CPUTime string `json:"cpuTime"`
	Threads int    `json:"threads"`
}

// Stats is a measurement of a running sandbox.
type Stats struct {
	At        time.Time `json:"at"`
	CPUNanos  int64     `json:"cpuNanos" doc:"Processor time used since start"`
	Memory    Size      `json:"memory" doc:"Bytes of memory in use, Caisson's own share for this sandbox included"`
	MemoryMax Size      `json:"memoryMax" doc:"The limit"`
	PIDs      int       `json:"pids"`
	// Network is nil if the sandbox has no wire at present.
	Network *NetworkStats `json:"network,omitempty"`
}

// NetworkStats counts what passed a sandbox's wire since Caisson's process at its other end took it up.
type NetworkStats struct {
	BytesOut int64 `json:"bytesOut" doc:"Sent by the sandbox, all of it, headers included"`
	BytesIn  int64 `json:"bytesIn"`
	Dropped  int64 `json:"dropped" doc:"Frames of the sandbox that were not even looked at"`
	Allowed  int64 `json:"allowed" doc:"Names, connections and requests that policy allowed"`
	Denied   int64 `json:"denied" doc:"Those that it did not"`
	Limited  int64 `json:"limited" doc:"Connections refused because there were too many"`
	Open     int   `json:"open" doc:"Connections now"`
}

// Processes is the use of processes in sandboxes. References and errors are as for [Sandboxes].
type Processes interface {
	// Exec starts a process and returns at once.
	Exec(ctx context.Context, ref string, req ExecRequest) (Process, error)
	// Processes lists what runs in the sandbox.
	Processes(ctx context.Context, ref string) ([]ProcessInfo, error)
	// Kill sends a signal to one process (pid as seen inside), or to every process for pid -1.
	Kill(ctx context.Context, ref string, pid, signal int) error
	Stats(ctx context.Context, ref string) (*Stats, error)
	// Logs returns what the sandbox's command wrote (stdout and stderr interleaved). It is bounded: of a long log only
	// the newest part is kept. With follow it ends when the sandbox stops or ctx ends.
	Logs(ctx context.Context, ref string, follow bool) (io.ReadCloser, error)
}
