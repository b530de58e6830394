// Package task is what the engine and the program in a sandbox that speaks with an agent say to each other: one [Task] in, lines
// of events out.
//
// What agents say is read inside the sandbox, by a program that has no more rights than the agent has. Only this small language crosses
// to the engine, which takes every line as hostile: bounded, strictly decoded, and shown to people as nothing but text.
package task

import "github.com/caisson-dev/caisson"

// Program is where the program that takes tasks is in every sandbox, read-only: "Program drive" reads a Task from its standard input and writes
// lines to its standard output. "Program code" is the built-in agent.
const Program = "/.caisson/agent"

// A Task is one turn of an agent.
type Task struct {
	Driver  string            `json:"driver"`
	Command []string          `json:"command,omitempty"` // program and arguments, placeholders filled in but for {prompt}
	Prompt  string            `json:"prompt"`
	By      string            `json:"by,omitempty"` // how Command gets the prompt: argument, stdin, file
	Events  map[string]string `json:"events,omitempty"`
	Env     map[string]string `json:"env,omitempty"` // added to the environment of the program itself
	Workdir string            `json:"workdir"`
	Model   string            `json:"model,omitempty"` // alias
	// Session names the conversation for an agent that remembers; Continue says that it has been here before.
	Session  string            `json:"session,omitempty"`
	Continue bool              `json:"continue,omitempty"`
	History  []caisson.Message `json:"history,omitempty"` // what was said before, for an agent that does not
	Persona  string            `json:"persona,omitempty"`
	// Remove and Files are done first, in this order.
	Remove []string           `json:"remove,omitempty"`
	Files  []caisson.SeedFile `json:"files,omitempty"`
	// Ready is waited for before the prompt is given, for at most ReadyTime.
	Ready     string           `json:"ready,omitempty"`
	ReadyTime caisson.Duration `json:"readyTime,omitempty"`
	// Time is what the agent has; then it gets SIGTERM and, Grace later, SIGKILL.
	Time   caisson.Duration `json:"time"`
	Grace  caisson.Duration `json:"grace"`
	Output caisson.Size     `json:"output"` // bytes of events and of each log that are passed on
	Tools  caisson.ToolRule `json:"tools,omitzero"`
	// Background are the names of programs that may run on when the task has ended; all else that was started is killed.
	Background []string `json:"background,omitempty"`
	// Track is a directory whose changes are reported at the end; "" for none.
	Track string `json:"track,omitempty"`
	// Port and Secret are of the gateway that an agent of driver openclaw has in the sandbox.
	Port   int    `json:"port,omitempty"`
	Secret string `json:"secret,omitempty"` // means something in this sandbox only
}

// The types of lines besides those of [caisson.RunEvent].
const (
	LineLog     = "log"     // Stream, Data: what the agent's program wrote, as it is
	LineMark    = "mark"    // Mark: a moment, for the phases of a run
	LineChanges = "changes" // Changes, Patch
	LineEnd     = "end"     // Exit, Error: nothing follows
)

// The moments of LineMark.
const (
	MarkStarted = "started" // files are written; the agent's program has been started or asked
	MarkPrompt  = "prompt"  // the agent has the prompt
	MarkAnswer  = "answer"  // the agent has said its last
)

// A Line is what the program says: a RunEvent without Seq, At and Attempt, or one of the types above. It never says done;
// assistant_final at most once and without Content, because that is all text_delta put together; and error only as part of [LineEnd].
type Line struct {
	caisson.RunEvent
	Stream  string               `json:"stream,omitempty"`
	Data    []byte               `json:"data,omitempty"`
	Mark    string               `json:"mark,omitempty"`
	Changes []caisson.FileChange `json:"changes,omitempty"`
	Patch   string               `json:"patch,omitempty"`
	Cut     bool                 `json:"cut,omitempty"` // of end: more was said than was passed on
	Exit    *caisson.ExitStatus  `json:"exit,omitempty"`
	// Agent is the version that the agent's program says it has, if it does; of end.
	Agent string `json:"agentVersion,omitempty"`
}

// MaxTask bounds an encoded Task, MaxLine an encoded line, both in bytes.
const (
	MaxTask = 16 << 20
	MaxLine = 2 << 20
)

// Bounds of what lines contain, in bytes.
const (
	MaxArgs   = 8 << 10
	MaxResult = 32 << 10
	MaxDelta  = 64 << 10 // longer text is several deltas
	MaxData   = 32 << 10 // of a log line
	MaxPatch  = 512 << 10
	MaxLabel  = 200
)
