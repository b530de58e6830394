package caisson

import (
	"context"
	"encoding/json"
	"io"
	"time"
)

// RunState is the state of a run.
type RunState string

// The states of runs.
const (
	RunQueued    RunState = "queued"    // waits until the limits on runs in progress allow another one
	RunStarting  RunState = "starting"  // the run's sandbox is being created, forked or resumed
	RunRunning   RunState = "running"   // the run's sandbox is running
	RunSucceeded RunState = "succeeded" // the last attempt has ended without an error
	RunFailed    RunState = "failed"    // Result.Error contains the reason; includes cancelled runs
)

// Ended reports whether a run in the state s has ended.
func (s RunState) Ended() bool { return s == RunSucceeded || s == RunFailed }

// The codes of a run's error.
const (
	RunInvalid    = "invalid_request"      // the request is invalid, not allowed, or in conflict with the state of an object
	RunNotFound   = "not_found"            // an object that the run needs does not exist
	RunTimeout    = "timeout"              // the run, or the build of its agent, took longer than its time limit
	RunAborted    = "aborted"              // the run was cancelled
	RunRateLimit  = "rate_limit"           // a rate limit of model calls, or another limit that is not a budget, was reached
	RunNoCredits  = "insufficient_credits" // a budget that pays for the run is used up
	RunAgentError = "agent_error"          // the agent's program failed, or ended without an answer
	RunProvider   = "provider"             // a model provider refused its credential, failed, or could not be reached
	RunInternal   = "internal"             // any other error: a fault of Caisson or its host, or a remote service is unavailable
)

// A RunError is the reason why a run failed.
type RunError struct {
	Code    string `json:"code" enum:"invalid_request,not_found,timeout,aborted,rate_limit,insufficient_credits,agent_error,provider,internal"`
	Message string `json:"message"`
}

// Error returns code and message.
func (e *RunError) Error() string { return e.Code + ": " + e.Message }

// A Message is one message of a conversation.
type Message struct {
	Role    string `json:"role" enum:"user,assistant"`
	Content string `json:"content"`
}

// A RunRequest is the input of [Runs.StartRun]. Zero fields mean the agent's value.
type RunRequest struct {
	Agent   string            `json:"agent" doc:"Id in the catalog"`
	Persona string            `json:"persona,omitempty"`
	Prompt  string            `json:"prompt,omitempty" maxLength:"1048576" doc:"Required unless the run is interactive"`
	History []Message         `json:"history,omitempty" doc:"Messages before the prompt, if there is no session"`
	Model   string            `json:"model,omitempty" doc:"Alias; must be one that the agent may use"`
	Image   string            `json:"image,omitempty" doc:"Image instead of the agent's; the run then starts cold"`
	Session string            `json:"session,omitempty" maxLength:"512" pattern:"^[A-Za-z0-9._:-]*$" doc:"Key of the conversation to begin or continue"`
	User    string            `json:"user,omitempty" maxLength:"256" doc:"The account's name for the person on whose behalf the run is made"`
	Env     map[string]string `json:"env,omitempty"`
	Limits  AgentLimits       `json:"limits,omitzero" doc:"Instead of the agent's; wider limits only over the unix socket"`
	Policy  *Policy           `json:"policy,omitempty" doc:"Instead of the agent's"`
	Gateway *GatewayUse       `json:"gateway,omitempty" doc:"How it may use the model gateway, in addition to the agent's settings: a rate can only be lower, and more can be allowed only over the unix socket"`
	Keep    bool              `json:"keep,omitempty" doc:"Keep the sandbox when the run has ended"`
	// Interactive starts the agent's own interface at a terminal in the sandbox instead of giving the agent a prompt. The run
	// ends when the program of the interface ends.
	Interactive bool              `json:"interactive,omitempty" doc:"Instead of giving it a prompt, start the agent's own interface at a terminal, to which clients attach; the run ends with that program, and has no time limit unless one is given"`
	Labels      map[string]string `json:"labels,omitempty"`
	// Source is the caller's path of the directory that becomes the workspace; Directory is its descriptor, opened by
	// the client, and only over the unix socket. The callee owns and closes it.
	Source    string        `json:"source,omitempty"`
	Directory Handle        `json:"-"`
	Kind      WorkspaceKind `json:"kind,omitempty" enum:"overlay,copy,direct,volume," doc:"How the directory becomes the workspace; default overlay. Of a copy nothing can be applied to the directory. With volume, source is a volume's name"`
	Sync      SyncMode      `json:"sync,omitempty" enum:"secure,yolo,yolo-unsafe," doc:"How changes get to the directory; default secure"`
	Show      []string      `json:"show,omitempty" maxItems:"100" doc:"Patterns of names that look like secrets and are not hidden from the sandbox"`
	// Hidden lists files that the client has left out of Workspace. It is recorded in the run.
	Hidden []string `json:"hidden,omitempty" maxItems:"100" doc:"Secret-looking files that the client has not put into the archive of the workspace"`
	// HiddenCount is the number of files that the client has left out of Workspace, if Hidden does not list all of them.
	HiddenCount int          `json:"hiddenCount,omitempty" minimum:"0" maximum:"5000000" doc:"Number of hidden names, if they are more than hidden has"`
	Repo        *RepoRequest `json:"repo,omitempty" doc:"Repository that is cloned into the workspace, and to which commits are delivered"`
	// Workspace is a tar archive that is unpacked into the workspace, instead of Directory; nil for none.
	Workspace io.Reader `json:"-"`
}

// A Run is one task given to an agent. It has a stream of events and one result.
type Run struct {
	ID      ID         `json:"id"`
	Account string     `json:"account"`
	Agent   string     `json:"agent"`
	Request RunRequest `json:"request"`
	State   RunState   `json:"state"`
	Attempt int        `json:"attempt" doc:"From 1"`
	Session ID         `json:"session,omitempty"`
	Sandbox ID         `json:"sandbox,omitempty" doc:"Of this attempt; gone when the run has ended, unless it is kept"`
	// Terminal is the id of the terminal of an interactive run; empty until the terminal is created.
	Terminal ID `json:"terminal,omitempty" doc:"Of an interactive run: the terminal in its sandbox"`
	// Workspace is the id of the workspace with this attempt's changes to the directory that the run was given.
	Workspace ID     `json:"workspace,omitempty"`
	Parent    ID     `json:"parent,omitempty" doc:"The run whose agent started this one"`
	Lineage   []ID   `json:"lineage,omitempty" doc:"Parent runs, outermost first"`
	Trace     string `json:"trace" doc:"Trace id of all records of this attempt: 32 hexadecimal digits (W3C trace-id)"`
	// Limits are the limits of the run, resolved from its request, its agent and, for a sub-run, its parent.
	Limits       AgentLimits `json:"limits"`
	Model        string      `json:"model,omitempty" doc:"Alias of the model that is used"`
	HasWorkspace bool        `json:"hasWorkspace,omitempty" doc:"Whether files were given for its workspace"`
	Hidden       []string    `json:"hidden,omitempty" doc:"Secret-looking files that were left out of the copy that its workspace was made of; at most 200 are listed. The workspace lists those of a mounted directory"`
	HiddenCount  int         `json:"hiddenCount,omitempty"` // number of all paths left out of that copy, in Hidden or not
	Local        bool        `json:"local,omitempty" doc:"Whether it was requested over the unix socket"`
	Result       *RunResult  `json:"result,omitempty" doc:"Of the last attempt that ended"`
	// Previous has the results of the attempts before the one of Result, oldest first.
	Previous  []RunResult `json:"previous,omitempty" doc:"Of the attempts before, oldest first"`
	Usage     RunUsage    `json:"usage,omitzero" doc:"Of all attempts together, as of the end of the last one that has ended"`
	CreatedAt time.Time   `json:"createdAt"`
	StartedAt time.Time   `json:"startedAt,omitzero"` // when the sandbox of the last attempt was ready
	EndedAt   time.Time   `json:"endedAt,omitzero"`   // when the last attempt ended
	Deadline  time.Time   `json:"deadline,omitzero"`  // when the last attempt must have ended
	// Children is the number of sub-runs that were started, at any depth.
	Children int64    `json:"children,omitempty" doc:"Runs that were started from within, at any depth"`
	Plan     *RunPlan `json:"-"` // nil in a run that an older build stored
}

// A RunPlan contains the settings to which the request of a run was resolved when the run was created, except its limits and its
// model. Each attempt checks whether the plan is still allowed, and then executes it. It is stored, but never in responses.
type RunPlan struct {
	Version int               `json:"version"`           // version of the fields' meaning; other builds may have other versions
	Agent   string            `json:"agent"`             // hash of the parts of the catalog entry from which the plan was made
	Models  []string          `json:"models,omitempty"`  // aliases of the models that the run may call; none if empty
	Gateway GatewayUse        `json:"gateway,omitzero"`  // how the run may use the model gateway: rates, features, recording
	Policy  Policy            `json:"policy"`            // egress policy
	Env     map[string]string `json:"env,omitempty"`     // environment variables of the agent
	Command []string          `json:"command,omitempty"` // command of the agent, with all placeholders filled in except {prompt}
}

// A RunResult is the outcome of an attempt.
type RunResult struct {
	Attempt int    `json:"attempt"`
	Trace   string `json:"trace"` // trace id of all records of the attempt
	// Sandbox is the sandbox of the attempt, which may have been removed since.
	Sandbox  ID                `json:"sandbox,omitempty" doc:"Where it was, whether it is still there or not"`
	Answer   string            `json:"answer"`
	Error    *RunError         `json:"error,omitempty" doc:"Absent if the run succeeded"`
	Usage    RunUsage          `json:"usage"`
	Provider string            `json:"provider,omitempty" doc:"What went wrong at a provider of models last, with the provider's status and message; absent if nothing did"`
	Phases   []Phase           `json:"phases,omitempty" doc:"Time spent in each phase"`
	Warm     bool              `json:"warm" doc:"Whether it began as a fork of the warm snapshot"`
	Versions map[string]string `json:"versions,omitempty" doc:"agent, digest, caisson, driver"` // digest: of the root file system
	Changes  []FileChange      `json:"changes,omitempty" doc:"Changes in its workspace; at most 1000"`
	// Patch contains the changes of small text files as a unified diff.
	Patch  string      `json:"patch,omitempty" doc:"The changes as a unified diff, as far as they are small text"`
	Exit   *ExitStatus `json:"exit,omitempty" doc:"Of the agent's program"`
	Stdout Size        `json:"stdout,omitempty" doc:"Bytes of the program's output that were kept"`
	Stderr Size        `json:"stderr,omitempty"` // bytes of the standard error that were kept
	// Cut means that a part of the program's output was not kept, because the output was too long.
	Cut      bool         `json:"cut,omitempty" doc:"Whether it reported more than was kept"`
	Delivery *RunDelivery `json:"delivery,omitempty" doc:"Delivery of its commits"`
}

// A RunDelivery is the delivery of a run's commits to a repository, as the result of the run reports it.
type RunDelivery struct {
	ID     ID            `json:"id,omitempty"` // id of the delivery
	Repo   string        `json:"repo"`         // name of the repository
	State  DeliveryState `json:"state,omitempty" enum:"held,waiting,sending,delivered,failed,dropped," doc:"Empty: there was nothing to deliver"`
	Branch string        `json:"branch,omitempty"` // branch of the remote that the commits are pushed to
	Commit string        `json:"commit,omitempty"` // last commit as it is sent to the remote: rewritten as the Repo requires
	URL    string        `json:"url,omitempty" doc:"Of the pull request, or else of the branch"`
	Error  string        `json:"error,omitempty"` // why the commits could not be fetched, or else Delivery.Error
	// Left is the reason why a part of the agent's changes was not delivered, while the rest was; "" if there is no such part.
	Left string `json:"left,omitempty" doc:"Why some of what the agent has done was not taken, although the rest was; it is in the run's sandbox"`
}

// RunUsage is the usage of a run, or of one of its attempts, in the ledger.
type RunUsage struct {
	Calls     int64      `json:"calls"`
	Failed    int64      `json:"failed,omitempty"` // number of calls with a status other than 2xx
	Tokens    TokenCount `json:"tokens"`
	Cost      USD        `json:"cost"`
	Estimated bool       `json:"estimated,omitempty"` // the usage of at least one call is an estimate, or calls could not be read
	// MaxCost is set while calls of the run are in progress; those calls are not included in the other fields.
	MaxCost USD `json:"most,omitempty" doc:"Upper bound of the cost including calls that are not in the ledger yet; absent if there are none"`
}

// A Phase is a part of a run's time: queue, fork (or create), wire, workspace, prompt (until the agent has it), model
// (model calls), agent (the rest of the agent's time), deliver, teardown.
type Phase struct {
	Name string   `json:"name" enum:"queue,fork,create,resume,wire,workspace,prompt,model,agent,deliver,teardown"`
	Time Duration `json:"time"`
}

// A FileChange is one difference between the workspace before and after the run.
type FileChange struct {
	Path    string `json:"path"`
	Kind    string `json:"kind" enum:"added,modified,removed"`
	Added   int    `json:"added,omitempty" doc:"Lines"`
	Removed int    `json:"removed,omitempty"` // number of removed lines
}

// The types of a run's events.
const (
	EventStatus     = "status"           // what the run does now, or a sub-run that it has started
	EventTextDelta  = "text_delta"       // a piece of the agent's answer
	EventToolStart  = "tool_call_start"  // the agent has called a tool
	EventToolResult = "tool_call_result" // a tool has returned a result, or has failed
	EventUsage      = "usage_report"     // the usage of the attempt
	EventFinal      = "assistant_final"  // the attempt has succeeded
	EventError      = "error"            // the attempt has failed
	EventDone       = "done"             // the attempt has ended
)

// A RunEvent is one event of a run. Every attempt has exactly one event of type done, which is its last; the event
// before it is either assistant_final, whose Content is the concatenation of all text_delta, or error.
type RunEvent struct {
	Seq     int64     `json:"seq" doc:"From 1 in each run; the cursor for replay"`
	At      time.Time `json:"at"`
	Type    string    `json:"type" enum:"status,text_delta,tool_call_start,tool_call_result,usage_report,assistant_final,error,done"`
	Attempt int       `json:"attempt,omitempty"`

	Phase  string `json:"phase,omitempty" doc:"Of status: queued, starting, running, thinking, tool_use, compacting, warning, ending, interactive (the terminal can be used)"`
	Label  string `json:"label,omitempty" doc:"Of status: at most the name of a tool or a sentence of Caisson's own"`
	Delta  string `json:"delta,omitempty"`      // of text_delta: the piece of text
	CallID string `json:"toolCallId,omitempty"` // of tool_call_start and tool_call_result: id of the tool call
	Tool   string `json:"toolName,omitempty"`   // name of the tool that is called
	// Args are the arguments of the tool call as JSON, at most 8 KiB; if longer, a string with the beginning of the JSON.
	Args    json.RawMessage `json:"args,omitempty"`
	Result  string          `json:"result,omitempty" doc:"Of tool_call_result; at most 32 KiB"`
	IsError bool            `json:"isError,omitempty"` // of tool_call_result: the tool has failed
	Usage   *RunUsage       `json:"usage,omitempty"`   // of usage_report
	Content string          `json:"content,omitempty"` // of assistant_final: the answer
	Error   *RunError       `json:"error,omitempty"`   // of error: why the attempt has failed
	Child   ID              `json:"child,omitempty" doc:"Of status: a run that was started from within this one"`
}

// A RunFilter selects runs. Zero fields select everything.
type RunFilter struct {
	States  []RunState
	Agent   string // id of an agent
	Session ID     // selects the runs of this session
	Parent  ID     // selects the runs that the agent of this run has started
	// Under selects a run and all its sub-runs.
	Under ID
	// Before is the id of the last run of the previous page; pages are sorted from new to old. Limit is at most 1000; 0 means 100.
	Before ID
	Limit  int
}

// The streams of a run's log.
const (
	LogStdout  = "stdout"  // standard output of the agent's program
	LogStderr  = "stderr"  // standard error of the agent's program
	LogGateway = "gateway" // model calls, one line of JSON each
	LogEgress  = "egress"  // egress decisions, one line of JSON each
)

// Runs is the service that manages runs. All methods act for the account of the [Caller] in ctx. NotFound if it has no such run,
// Invalid for malformed requests.
type Runs interface {
	// StartRun stores a run, queues it and returns it at once. Conflict if its session has another run in progress,
	// Exhausted if too many runs are queued.
	StartRun(ctx context.Context, req RunRequest) (*Run, error)
	GetRun(ctx context.Context, id ID) (*Run, error)
	// ListRuns returns a page of runs, newest first.
	ListRuns(ctx context.Context, f RunFilter) (page []*Run, more bool, err error)
	// WatchRun returns the run's events after the sequence number after, stored ones first, and closes the channel
	// after done or when ctx ends. A slow reader loses no events.
	WatchRun(ctx context.Context, id ID, after int64) (<-chan RunEvent, error)
	// CancelRun cancels a run and its sub-runs, and returns when they have ended. It does not change a run that has ended.
	CancelRun(ctx context.Context, id ID) (*Run, error)
	// RetryRun starts another attempt of a run that has failed. Conflict if it has not.
	RetryRun(ctx context.Context, id ID) (*Run, error)
	// RemoveRun deletes a run that has ended, with its events and logs; its calls stay in the ledger.
	RemoveRun(ctx context.Context, id ID) error
	// RunLog returns the stream LogStdout, LogStderr, LogGateway or LogEgress of a run's last attempt, as far as it was kept.
	RunLog(ctx context.Context, id ID, stream string) (io.ReadCloser, error)

	ListSessions(ctx context.Context, f SessionFilter) ([]*Session, error)
	// RemoveSession ends a session and removes its sandbox. Conflict while a run of it is in progress.
	RemoveSession(ctx context.Context, id ID) error
}

// A Session is a conversation: a sandbox kept between runs.
type Session struct {
	ID      ID     `json:"id"`
	Account string `json:"account"`
	Agent   string `json:"agent"`
	User    string `json:"user,omitempty"` // the account's name for the person whose conversation it is
	Key     string `json:"key" doc:"Unique within account, user and agent"`
	// Sandbox is the sandbox with the agent's own record of the conversation and its files. It is empty if the sandbox was
	// removed: the next run then gets the messages only.
	Sandbox   ID        `json:"sandbox,omitempty"`
	Volume    ID        `json:"volume,omitempty" doc:"The volume that its sandbox has, and the next one will have; absent if it has none"`
	Run       ID        `json:"run,omitempty" doc:"The run under way; empty if there is none"`
	Runs      int64     `json:"runs"` // number of runs
	CreatedAt time.Time `json:"createdAt"`
	UsedAt    time.Time `json:"usedAt" doc:"When its last run ended"`
}

// A SessionFilter selects sessions. Zero fields select everything.
type SessionFilter struct {
	Agent string // id of an agent
	User  string // the account's name for the person whose conversation it is
	Key   string // key of the conversation, unique within account, user and agent
}

// GuestRuns is the service with which agents start runs of other agents. The [Guest] in ctx identifies the agent's run,
// which is the parent. Denied if the guest has no run in progress, or may not start runs of that agent.
type GuestRuns interface {
	// GuestAgents returns the agents of which the guest may start runs.
	GuestAgents(ctx context.Context) ([]*Agent, error)
	// StartGuestRun starts a sub-run. The sub-run is limited by the remaining time, cost and number of runs of the guest's run and
	// of each ancestor of the guest's run; Exhausted if nothing remains.
	StartGuestRun(ctx context.Context, req RunRequest) (*Run, error)
	// GuestRun returns a sub-run of the guest's run.
	GuestRun(ctx context.Context, id ID) (*Run, error)
	CancelGuestRun(ctx context.Context, id ID) (*Run, error)
}

// RunStore holds runs and their events.
type RunStore interface {
	// Insert adds a run. If the run has a lineage, no run of the lineage may have ended (Conflict), and each must have started fewer
	// runs than its Limits.Runs (Exhausted); the Children of each are incremented in the same transaction. live, if not 0, is the
	// maximum number of the account's runs that have not ended, without sub-runs (Exhausted). On error, nothing is changed.
	Insert(ctx context.Context, r *Run, live int) error
	Get(ctx context.Context, in Scope, id ID) (*Run, error)
	// List returns a page of runs, newest first, and whether more follow.
	List(ctx context.Context, in Scope, f RunFilter) (page []*Run, more bool, err error)
	// Update calls change with the stored run, maybe more than once, and stores the result unless change returns an error.
	Update(ctx context.Context, in Scope, id ID, change func(*Run) error) (*Run, error)
	// Delete removes a run and its events.
	Delete(ctx context.Context, in Scope, id ID) error
	// Append adds events, all or none. Their Seq must continue the sequence of the run's events without a gap.
	Append(ctx context.Context, run ID, events []RunEvent) error
	// Events returns at most limit events with a greater Seq than after, oldest first.
	Events(ctx context.Context, in Scope, run ID, after int64, limit int) ([]RunEvent, error)
	// LastEvent returns the greatest Seq of a run's events; 0 if it has none.
	LastEvent(ctx context.Context, run ID) (int64, error)
	// Trim deletes at most limit runs that ended before the given time, with their events, and returns their ids.
	Trim(ctx context.Context, before time.Time, limit int) ([]ID, error)
}

// SessionName returns the name of a session in the table of sessions: one string that encodes agent, user and key.
func SessionName(agent, user, key string) string {
	b, err := json.Marshal([]string{agent, user, key})
	if err != nil {
		return "" // cannot fail: strings can always be encoded
	}
	return string(b)
}

// An Assignment describes the run that a sandbox serves at present. It determines which budgets the model calls of the sandbox
// are charged to, and which models it may call.
type Assignment struct {
	Run     ID          `json:"run"`
	Attempt int         `json:"attempt"`
	Session ID          `json:"session,omitempty"`
	Agent   string      `json:"agent"`
	User    string      `json:"user,omitempty"`    // the account's name for the person on whose behalf the run is made
	Lineage []ID        `json:"lineage,omitempty"` // the runs of which Run is a sub-run, outermost first
	Trace   string      `json:"trace"`             // trace id of all records of the attempt
	Models  *ModelGrant `json:"models,omitempty"`
	Tools   bool        `json:"tools,omitempty" doc:"Whether it may start runs of other agents"`
}
