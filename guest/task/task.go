// Package task defines the protocol between the engine and the program in a sandbox that drives an agent: one [Task] as input,
// lines of events as output.
//
// The output of agents is parsed inside the sandbox, by a program that has no more rights than the agent. Only the lines of
// this package cross to the engine, which treats each line as hostile: bounded, strictly decoded, and displayed as plain text.
package task

import "github.com/caisson-dev/caisson"

// Program is the path of the program that runs tasks. It is mounted read-only in every sandbox: "Program drive" reads a Task
// from its standard input and writes lines to its standard output. "Program code" is the built-in agent.
const Program = "/.caisson/agent"

// A Task is one turn of an agent.
type Task struct {
	Driver     string            `json:"driver"`
	Command    []string          `json:"command,omitempty"` // program and arguments, with all placeholders filled in except {prompt}
	Prompt     string            `json:"prompt"`
	PromptMode string            `json:"by,omitempty"`     // how Command gets the prompt: argument, stdin or file
	Events     map[string]string `json:"events,omitempty"` // for the driver jsonl: the dialect, or paths of fields in the lines
	Env        map[string]string `json:"env,omitempty"`    // added to the environment of the agent's program
	Workdir    string            `json:"workdir"`
	Model      string            `json:"model,omitempty"` // alias
	// Substitute stands for Model where the configuration of the agent's program lacks it; nil means that it never does.
	Substitute *Substitute `json:"substitute,omitempty"`
	// Session is the id of the conversation, for agents that have a memory. Continue means that the conversation has earlier
	// turns in this sandbox.
	Session  string            `json:"session,omitempty"`
	Continue bool              `json:"continue,omitempty"`
	History  []caisson.Message `json:"history,omitempty"` // earlier messages, for agents without a memory
	Persona  string            `json:"persona,omitempty"`
	// Remove and Files are removed and written before the agent starts, in this order.
	Remove []string           `json:"remove,omitempty"`
	Files  []caisson.SeedFile `json:"files,omitempty"`
	// Ready is a URL that must answer before the agent gets the prompt, within ReadyTime.
	Ready     string           `json:"ready,omitempty"`
	ReadyTime caisson.Duration `json:"readyTime,omitempty"`
	// Time is the agent's time limit. When it expires the agent gets SIGTERM and, after Grace, SIGKILL.
	Time   caisson.Duration `json:"time"`
	Grace  caisson.Duration `json:"grace"`
	Output caisson.Size     `json:"output"`         // limit for events, and for each log, in bytes
	Tools  caisson.ToolRule `json:"tools,omitzero"` // tools that the agent may call
	// Background are the names of programs that may keep running after the task; all other processes that it started are
	// killed.
	Background []string `json:"background,omitempty"`
	// Track is a directory whose changes are reported at the end; "" means none.
	Track string `json:"track,omitempty"`
	// Port and Secret belong to the gateway of an agent of driver openclaw in the sandbox.
	Port   int    `json:"port,omitempty"`
	Secret string `json:"secret,omitempty"` // is valid in this sandbox only
}

// A Substitute is a model that the configuration of an agent's program has, in place of one that it may lack because the model was
// added, or its context window changed, after the program was started.
type Substitute struct {
	Config  string `json:"config"`  // path of the configuration
	Context int64  `json:"context"` // context window of the model, in tokens
	Model   string `json:"model"`   // alias in the configuration
}

// The types of lines in addition to those of [caisson.RunEvent].
const (
	LineLog     = "log"     // Stream, Data: raw output of the agent's program
	LineMark    = "mark"    // Mark: a point in time, for the phases of a run
	LineChanges = "changes" // Changes, Patch
	LineEnd     = "end"     // Exit, Error: the last line
)

// The values of Mark.
const (
	MarkStarted = "started" // the files are written, and the agent's program was started or connected to
	MarkPrompt  = "prompt"  // the agent has the prompt
	MarkAnswer  = "answer"  // the agent has finished its answer
)

// A Line is one line of output: a RunEvent without Seq, At and Attempt, or one of the types above. The type done does not
// occur; assistant_final occurs at most once and without Content, because its content is the concatenation of all text_delta;
// an error occurs only as a field of [LineEnd].
type Line struct {
	caisson.RunEvent
	Stream  string               `json:"stream,omitempty"`
	Data    []byte               `json:"data,omitempty"`
	Mark    string               `json:"mark,omitempty"`
	Changes []caisson.FileChange `json:"changes,omitempty"`
	Patch   string               `json:"patch,omitempty"`
	Cut     bool                 `json:"cut,omitempty"` // on the end line: the output was truncated
	Exit    *caisson.ExitStatus  `json:"exit,omitempty"`
	// Agent is the version that the agent's program reports, or ""; of end.
	Agent string `json:"agentVersion,omitempty"`
}

// MaxTask is the maximum length of an encoded Task, MaxLine that of an encoded line, both in bytes.
const (
	MaxTask = 16 << 20
	MaxLine = 2 << 20
)

// Limits on the fields of lines, in bytes.
const (
	MaxArgs   = 8 << 10
	MaxResult = 32 << 10
	MaxDelta  = 64 << 10 // longer text is split into several deltas
	MaxData   = 32 << 10 // of a log line
	MaxPatch  = 512 << 10
	MaxLabel  = 200
)
