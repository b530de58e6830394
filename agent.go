package caisson

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"
)

// The drivers of agents, by the protocol that the agent's program speaks.
const (
	DriverExec     = "exec"     // a program that takes a prompt and prints an answer
	DriverJSONL    = "jsonl"    // a program that prints one JSON value per line
	DriverACP      = "acp"      // a program that implements the Agent Client Protocol on its standard streams
	DriverCodex    = "codex"    // a program that implements the protocol of Codex's app server on its standard streams
	DriverOpenClaw = "openclaw" // OpenClaw: its gateway in the sandbox, or its command line
)

// Ways to pass the prompt to a program, for [DriverExec] and [DriverJSONL].
const (
	PromptArgument = "argument" // the prompt is the program's last argument
	PromptStdin    = "stdin"    // the prompt is the program's standard input
	PromptFile     = "file"     // the prompt is in a file, whose path replaces "{prompt}" in the command
)

// An Agent is an entry of the catalog: the template that it starts from, the protocol of its program, and its limits.
type Agent struct {
	ID          string `json:"id" yaml:"id" doc:"1 to 63 of a-z, 0-9 and -, beginning with a letter; unique in the account"`
	Account     string `json:"account,omitempty" yaml:"-" doc:"Empty for built-in agents, which all accounts see"`
	Name        string `json:"name" yaml:"name"`
	Description string `json:"description,omitempty" yaml:"description"`
	Version     string `json:"version,omitempty" yaml:"version" doc:"Version of the agent's program; recorded in every run"`

	// Template is the name of the template that the agent starts from. If it is empty, Image and Setup define the template.
	Template string      `json:"template,omitempty" yaml:"template" doc:"Name of a template; if empty, image and setup define one"`
	Image    string      `json:"image,omitempty" yaml:"image" doc:"host, an OCI reference, dir:PATH or tar:PATH"`
	Setup    []SetupStep `json:"setup,omitempty" yaml:"setup" doc:"Steps that install it, as root; their changes are stored as a layer"`
	// BuildPolicy is the egress policy of the set-up steps. Policy is the egress policy of runs, which can also reach the model
	// gateway.
	BuildPolicy Policy            `json:"buildPolicy,omitzero" yaml:"buildPolicy"`
	Policy      Policy            `json:"policy,omitzero" yaml:"policy"`
	Env         map[string]string `json:"env,omitempty" yaml:"env"`
	Workdir     string            `json:"workdir,omitempty" yaml:"workdir" doc:"The workspace; default /workspace"`
	User        string            `json:"user,omitempty" yaml:"user"`

	Driver  string   `json:"driver" yaml:"driver" enum:"exec,jsonl,acp,codex,openclaw"`
	Command []string `json:"command,omitempty" yaml:"command" doc:"What is started for a run; {model}, {prompt}, {session}, {workspace}, {persona} stand for the run's"`
	Prompt  string   `json:"prompt,omitempty" yaml:"prompt" enum:"argument,stdin,file," doc:"How the program gets its prompt; default argument"`
	// Interactive is the command of the agent's own interface for people. Interactive runs start it at a terminal.
	Interactive []string `json:"interactive,omitempty" yaml:"interactive" doc:"What is started at a terminal for an interactive run; placeholders as in command, without {prompt}"`
	// Events defines, for jsonl, how lines of output become events of the run. It contains either the key "dialect" with the name of
	// a built-in output format, or, under the keys "text", "final", "error", "tool", "result" and "usage", paths of JSON fields in a
	// line, with conditions such as "text.when". Empty means the first built-in format that accepts a line.
	Events map[string]string `json:"events,omitempty" yaml:"events" doc:"For jsonl: the dialect (codex, claude, opencode, caisson), or the paths of text, final, error, tool, result and usage in a line, and conditions"`
	// Service is a program that runs in the sandbox from the start, before and between runs (OpenClaw's gateway). Ready is a URL of
	// that program, which is polled until it answers with 200.
	Service    []string   `json:"service,omitempty" yaml:"service"`
	ServiceDir string     `json:"serviceDir,omitempty" yaml:"serviceDir" doc:"Where the service runs; default the workspace"`
	Ready      string     `json:"ready,omitempty" yaml:"ready" doc:"http://127.0.0.1:PORT/PATH that answers with 200 once the service is ready"`
	Files      []SeedFile `json:"files,omitempty" yaml:"files" doc:"Files that are there when it starts"`
	// Memory means that the agent keeps conversations itself; for others, a session's earlier messages are put into the workspace.
	Memory     bool       `json:"memory,omitempty" yaml:"memory"`
	Background []string   `json:"background,omitempty" yaml:"background" doc:"Names of programs that may run on when a run has ended"`
	Models     []string   `json:"models,omitempty" yaml:"models" doc:"Aliases it may use, the first by default; empty means all, - alone means none"`
	APIs       []string   `json:"apis,omitempty" yaml:"apis" enum:"openai,anthropic,gemini" doc:"APIs in which its program calls models; empty means that it is not known. Driver openclaw speaks openai only"`
	Gateway    GatewayUse `json:"gateway,omitzero" yaml:"gateway" doc:"How it may use the model gateway"`
	Tools      ToolRule   `json:"tools,omitzero" yaml:"tools"`
	Skills     []string   `json:"skills,omitempty" yaml:"skills" doc:"Directories of skills inside the template"`
	SubAgents  []string   `json:"subAgents,omitempty" yaml:"subAgents" doc:"Agents that it may start runs of; * means all"`
	Personas   []Persona  `json:"personas,omitempty" yaml:"personas" doc:"For openclaw: the agents in its configuration in addition to main"`

	Limits AgentLimits `json:"limits,omitzero" yaml:"limits"`
	Warm   *Warm       `json:"warm,omitempty" yaml:"warm" doc:"How its warm snapshot is made; absent: runs start cold"`

	// Status is the state of the agent's template and warm snapshot. It is not part of the agent's YAML file.
	Status    AgentStatus `json:"status,omitzero" yaml:"-"`
	CreatedAt time.Time   `json:"createdAt,omitzero" yaml:"-"`
}

// SupportsAPI reports whether the agent's program can call models in api, one of the API constants; "" means a model that can be
// called in every API. If the agent does not list its APIs, SupportsAPI returns true; for OpenClaw, only for APIOpenAI and "".
func (a *Agent) SupportsAPI(api string) bool {
	if a.Driver == DriverOpenClaw { // Caisson generates OpenClaw's configuration, which has one API for all models
		return api == "" || api == APIOpenAI
	}
	return api == "" || len(a.APIs) == 0 || slices.Contains(a.APIs, api)
}

// AgentLimits bounds a run of an agent. Fields that are nil or zero mean the default of [DefaultAgentLimits]; a pointer to 0
// allows nothing. JSON and YAML with 0 in a field that is not a pointer are rejected: see [AgentLimits.UnmarshalJSON]. Memory,
// CPUs, Disk and PIDs are those of [Resources]; Cost, Tokens and Calls limit all model calls of a run and its sub-runs together.
type AgentLimits struct {
	Time   Duration `json:"time,omitempty" yaml:"time" doc:"Time limit of a run; the agent has a tenth less"`
	Memory Size     `json:"memory,omitempty" yaml:"memory"`
	CPUs   float64  `json:"cpus,omitempty" yaml:"cpus"`
	Disk   Size     `json:"disk,omitempty" yaml:"disk"`
	PIDs   int      `json:"pids,omitempty" yaml:"pids"`
	Output Size     `json:"output,omitempty" yaml:"output" doc:"Maximum bytes of its output that are kept"`
	Cost   *USD     `json:"cost,omitempty" yaml:"cost" doc:"0 lets it make no call that costs anything"`
	Tokens *int64   `json:"tokens,omitempty" yaml:"tokens"`
	Calls  *int64   `json:"calls,omitempty" yaml:"calls" doc:"Maximum number of model calls; 0 allows none"`
	Runs   *int64   `json:"runs,omitempty" yaml:"runs" doc:"Maximum number of sub-runs, at any depth"`
}

// DefaultAgentLimits returns the limits of an agent that specifies none.
func DefaultAgentLimits() AgentLimits {
	return AgentLimits{
		Time: Duration(10 * time.Minute), Memory: 2 << 30, CPUs: 2, Disk: 10 << 30, PIDs: 1024, Output: 8 << 20,
		Calls: new(int64(200)), Runs: new(int64(8)),
	}
}

// UnmarshalJSON returns an Invalid error for an explicit 0 in a field in which 0 means the default.
func (l *AgentLimits) UnmarshalJSON(b []byte) error {
	return l.unmarshal(func(v any) error { return json.Unmarshal(b, v) })
}

// UnmarshalYAML is [AgentLimits.UnmarshalJSON] for YAML.
func (l *AgentLimits) UnmarshalYAML(decode func(any) error) error { return l.unmarshal(decode) }

// unmarshal decodes l with decode, for the formats JSON and YAML, and rejects an explicit 0 where 0 means the default.
func (l *AgentLimits) unmarshal(decode func(any) error) error {
	type plain AgentLimits // has no UnmarshalJSON and UnmarshalYAML, which would call unmarshal again
	if err := decode((*plain)(l)); err != nil {
		return err
	}
	return rejectZero(decode, map[string]bool{
		"time": l.Time == 0, "memory": l.Memory == 0, "cpus": l.CPUs == 0, "disk": l.Disk == 0, "pids": l.PIDs == 0, "output": l.Output == 0,
	})
}

// rejectZero returns Invalid if the JSON or YAML object that decode reads has an explicit 0 in one of the fields that zero lists.
// The value in zero is whether the decoded field is 0. A missing field, which is decoded as 0 too, means the default; with an
// explicit 0, nothing could run.
func rejectZero(decode func(any) error, zero map[string]bool) error {
	var given map[string]any
	if err := decode(&given); err != nil {
		return err
	}
	for name, value := range given {
		for field := range zero {
			if strings.EqualFold(name, field) && value != nil && zero[field] { // names match in any case, as in encoding/json
				return Invalidf(field, "must be greater than 0; omit it for the default")
			}
		}
	}
	return nil
}

// StartableRuns returns the maximum number of sub-runs of a run, at any depth.
func (l AgentLimits) StartableRuns() int64 {
	if l.Runs == nil {
		return 0
	}
	return *l.Runs
}

// WithBudget returns l with the limits on cost, tokens and calls replaced by those that budget sets.
func (l AgentLimits) WithBudget(budget Limits) AgentLimits {
	l.Cost, l.Tokens, l.Calls = cmp.Or(budget.USD, l.Cost), cmp.Or(budget.Tokens, l.Tokens), cmp.Or(budget.Calls, l.Calls)
	return l
}

// A ToolRule restricts the tools that an agent offers to its model.
type ToolRule struct {
	Allow []string `json:"allow,omitempty" yaml:"allow" doc:"Empty means all that are not denied"`
	Deny  []string `json:"deny,omitempty" yaml:"deny"`
}

// A Persona is one of several agents that one program implements.
type Persona struct {
	ID           string   `json:"id" yaml:"id"`
	Model        string   `json:"model,omitempty" yaml:"model"` // alias; "" means the model of the run
	Deny         []string `json:"deny,omitempty" yaml:"deny" doc:"Tools that it does not have"`
	Instructions string   `json:"instructions,omitempty" yaml:"instructions"`
}

// A SeedFile is a small file that is written into a sandbox before a program that needs it is started.
type SeedFile struct {
	Path string `json:"path" yaml:"path" doc:"Absolute path inside the sandbox"`
	Mode uint32 `json:"mode,omitempty" yaml:"mode" doc:"Default 0644"`
	Data string `json:"data" yaml:"data"`
}

// Warm configures how a warm snapshot is made.
type Warm struct {
	Prompt string `json:"prompt,omitempty" yaml:"prompt" doc:"Prompt of the warm-up before the snapshot, answered by a scripted model"`
	Rounds int    `json:"rounds,omitempty" yaml:"rounds" doc:"Number of warm-up turns, each in a new conversation; default 1"`
	// Randomness names the mechanism by which forks of the snapshot draw different random numbers. Without one, the snapshot
	// cannot be forked.
	Randomness string `json:"randomness" yaml:"randomness" enum:"kernel,openssl" doc:"kernel: nothing that draws randomness runs in the snapshot; openssl: what runs re-seeds in each fork, which a test shows"`
	Pool       int    `json:"pool,omitempty" yaml:"pool" doc:"How many sandboxes are kept ready, each for one run: of an agent with a service, forks of its warm snapshot"`
}

// AgentStatus is the state of an agent's template and warm snapshot for an account.
type AgentStatus struct {
	Built    bool      `json:"built,omitempty"` // the root file system is ready to use
	Digest   string    `json:"digest,omitempty" doc:"Of the root file system"`
	Snapshot ID        `json:"snapshot,omitempty" doc:"The warm snapshot that runs fork"`
	WarmedAt time.Time `json:"warmedAt,omitzero"` // when the warm snapshot was made
	Size     Size      `json:"size,omitempty" doc:"Bytes of the warm snapshot on disk"`
	Pool     int       `json:"pool,omitempty" doc:"How many forks of the warm snapshot are kept ready"`
	Problem  string    `json:"problem,omitempty" doc:"Why there is no warm snapshot although one is configured"`
	// Setup contains the commands of the set-up steps that the driver adds if the agent defines no set-up steps.
	Setup [][]string `json:"setup,omitempty" doc:"The commands of the set-up that the driver adds"`
}

// AgentCheck is the result of one check of an agent's requirements.
type AgentCheck struct {
	Subject string `json:"subject" doc:"The skill, program or setting"`
	Status  string `json:"status" enum:"ok,warning,failed"`
	Detail  string `json:"detail"`
	Remedy  string `json:"remedy,omitempty" doc:"How to fix it"`
}

// Agents is the service that manages the catalog of agents. Errors: NotFound for an unknown id, Invalid for a malformed entry.
type Agents interface {
	// ListAgents returns the built-in agents, the administrator's, and those of the caller's account, all sorted by id.
	ListAgents(ctx context.Context) ([]*Agent, error)
	GetAgent(ctx context.Context, id string) (*Agent, error)
	// PutAgent stores an agent for the caller's account. Returns Denied for ids of built-in agents and of the administrator's.
	PutAgent(ctx context.Context, a Agent) (*Agent, error)
	RemoveAgent(ctx context.Context, id string) error
	// BuildAgent builds the root file system that the agent starts from. progress may be nil.
	BuildAgent(ctx context.Context, id string, progress func(Progress)) (*Agent, error)
	// WarmAgent makes a new warm snapshot of the agent, after building the template if necessary. Returns Invalid for an agent whose
	// catalog entry configures no warm snapshot.
	WarmAgent(ctx context.Context, id string, progress func(Progress)) (*Agent, error)
	// SetAgentPool sets how many forks of the agent's warm snapshot are kept ready for runs without a directory of the host, until
	// the agent is changed. Returns Conflict if it has no warm snapshot.
	SetAgentPool(ctx context.Context, id string, size int) (*Agent, error)
	// CheckAgent returns which requirements of the agent, and of each of its skills, are met.
	CheckAgent(ctx context.Context, id string) ([]AgentCheck, error)
}
