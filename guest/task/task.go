// Package task defines the protocol between the engine on the host and the program in a sandbox that drives an agent. The input
// of the program is one [Task], and its output consists of lines of JSON, each a [Line].
//
// The output of agents is parsed inside the sandbox, by a program that has no more rights than the agent. Only lines leave the
// sandbox. The engine treats each line as hostile: it limits the length, decodes it strictly, and shows texts as plain text.
package task

import "github.com/caisson-dev/caisson"

// ProgramPath is the path of the program that runs tasks. It is mounted read-only in every sandbox. With the argument "drive" it
// reads a Task from standard input and writes lines to standard output. With the argument "code" it is the built-in agent.
const ProgramPath = "/.caisson/agent"

// A Task is one turn of an agent.
type Task struct {
	Driver     string            `json:"driver"`            // name of the driver that runs the agent
	Command    []string          `json:"command,omitempty"` // program and arguments; {prompt} is the only placeholder in them
	Prompt     string            `json:"prompt"`            // text that the agent gets
	PromptMode string            `json:"by,omitempty"`      // how Command gets the prompt: argument, stdin or file
	Events     map[string]string `json:"events,omitempty"`  // for the driver jsonl: the format of the lines of the agent's output
	Env        map[string]string `json:"env,omitempty"`     // variables that are added to the environment of the agent's program
	Workdir    string            `json:"workdir"`           // working directory of the agent's program
	Model      string            `json:"model,omitempty"`   // alias of the model
	// Substitute replaces Model if the configuration of the agent's program lacks Model; nil means that Model is always used.
	Substitute *Substitute       `json:"substitute,omitempty"`
	Session    string            `json:"session,omitempty"`  // id of the conversation, for agents that store conversations
	Continue   bool              `json:"continue,omitempty"` // the conversation has had earlier turns in this sandbox
	History    []caisson.Message `json:"history,omitempty"`  // earlier messages, for agents that do not store conversations
	Persona    string            `json:"persona,omitempty"`  // id of the persona, for agents that have several
	// Before the agent starts, the paths in Remove are removed, and then Files are written.
	Remove []string           `json:"remove,omitempty"`
	Files  []caisson.SeedFile `json:"files,omitempty"` // files to write before the agent starts
	// Ready is the URL of a service of the agent that must answer with status 200 before the agent gets the prompt. The task
	// fails if it does not do so within ReadyTime.
	Ready     string           `json:"ready,omitempty"`
	ReadyTime caisson.Duration `json:"readyTime,omitempty"` // time within which the service must be ready
	// Time is the agent's time limit. When it expires the agent gets SIGTERM and, after Grace, SIGKILL.
	Time   caisson.Duration `json:"time"`
	Grace  caisson.Duration `json:"grace"`          // time between SIGTERM and SIGKILL
	Output caisson.Size     `json:"output"`         // limit on the size of all events, and on the size of each log, in bytes
	Tools  caisson.ToolRule `json:"tools,omitzero"` // tools that the agent may call
	// Background has the names of programs that may keep running after the task. All other processes that the task has started are
	// killed.
	Background []string `json:"background,omitempty"`
	// Track is a directory whose changes during the task are reported at the end. "" means that no changes are reported.
	Track string `json:"track,omitempty"`
	// Port is the port of OpenClaw's gateway in the sandbox. Port and Secret are set only for the driver openclaw.
	Port   int    `json:"port,omitempty"`
	Secret string `json:"secret,omitempty"` // token of OpenClaw's gateway, valid only in this sandbox
}

// A Substitute is a model that is used instead of another one if the configuration of the agent's program lacks the other one,
// because that was added, or its context window was changed, after the program was started.
type Substitute struct {
	Config  string `json:"config"`  // path of the configuration of the agent's program
	Context int64  `json:"context"` // context window of the model that may be missing, in tokens
	Model   string `json:"model"`   // alias of the substitute, which the configuration has
}

// The types of lines that this package adds to those of [caisson.RunEvent].
const (
	LineLog     = "log"     // contains raw output of the agent's program in the fields Stream and Data
	LineMark    = "mark"    // reports, in Mark, a point in time, from which the durations of a run's phases are measured
	LineChanges = "changes" // contains the changes of the tracked directory in the fields Changes and Patch
	LineEnd     = "end"     // is the last line, with the result in the fields Error, Exit, Agent and Cut
)

// The values of the field Mark of a [Line]: points in time that a task reaches.
const (
	MarkStarted = "started" // the files of the task are written, and the agent's program was started or connected to
	MarkPrompt  = "prompt"  // the agent has received the prompt
	MarkAnswer  = "answer"  // the agent has finished its answer
)

// A Line is one line of the output of a task: a RunEvent without Seq, At and Attempt, or a line of a type that this package adds,
// such as [LineEnd]. The type done does not occur; assistant_final occurs at most once and without Content, because its content
// is the concatenation of all text_delta; an error occurs only as a field of [LineEnd].
type Line struct {
	caisson.RunEvent
	Stream  string               `json:"stream,omitempty"`  // of a log line: the log, caisson.LogStdout or caisson.LogStderr
	Data    []byte               `json:"data,omitempty"`    // of a log line: raw output
	Mark    string               `json:"mark,omitempty"`    // of a mark line: the point in time, such as MarkStarted
	Changes []caisson.FileChange `json:"changes,omitempty"` // of the changes line: the changed files
	Patch   string               `json:"patch,omitempty"`   // of the changes line: the changes in git's format
	Cut     bool                 `json:"cut,omitempty"`     // of the end line: output was dropped because of a limit
	Exit    *caisson.ExitStatus  `json:"exit,omitempty"`    // of the end line: exit status of the program; nil if it keeps running
	// Agent, of the end line, is the version that the agent's program reports; "" if it reports none.
	Agent string `json:"agentVersion,omitempty"`
}

// MaxTask is the maximum length of an encoded Task, and MaxLine the maximum length of an encoded Line, in bytes.
const (
	MaxTask = 16 << 20 // maximum length of an encoded Task
	MaxLine = 2 << 20  // maximum length of an encoded Line
)

// Limits on the sizes of fields of a [Line], in bytes.
const (
	MaxArgs   = 8 << 10   // maximum size of the arguments of a tool call
	MaxResult = 32 << 10  // maximum size of the result of a tool call
	MaxDelta  = 64 << 10  // maximum size of the text in a text_delta; longer text is split into several lines
	MaxData   = 32 << 10  // maximum size of the data in a log line
	MaxPatch  = 512 << 10 // maximum size of the patch in the changes line
	MaxLabel  = 200       // maximum size of a label or another short text
)
