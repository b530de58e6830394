package protocol

import "github.com/caisson-dev/caisson"

// Headers of chats.
const (
	StateKeyHeader = "X-State-Key" // the key of the conversation, in requests and responses
	RunHeader      = "X-Run-Id"    // the id of the run that answers
	UserHeader     = "X-User-Id"   // name of the person who chats, chosen by the account
)

// The parts of a form that starts a run with a workspace, in this order.
const (
	PartRequest   = "request"   // a caisson.RunRequest as JSON
	PartWorkspace = "workspace" // a tar archive whose names are relative to the workspace
)

// Limits of runs, in bytes.
const (
	// MaxRunRequest is the maximum size of a [caisson.RunRequest] as JSON. It suffices for a prompt of 1 MiB, escaped, and the
	// earlier messages of the conversation.
	MaxRunRequest = 8 << 20
	// MaxRunEvent is the maximum size of a [caisson.RunEvent] as JSON. It is large because one event contains the whole answer.
	MaxRunEvent = 64 << 20
	// MaxExcerpt is the size in bytes to which prompts and answers are cut in lists.
	MaxExcerpt = 2000
)

// AgentCatalog lists the agents that are available for chats.
type AgentCatalog struct {
	Agents         []CatalogAgent `json:"agents" nullable:"false" doc:"By name"`
	DefaultAgentID *string        `json:"defaultAgentId" doc:"Id of the agent for chats without one; null if there is none"`
}

// CatalogAgent is an agent that is available for chats. GraphID, as chat clients call it, is the agent's id with [GraphPrefix].
type CatalogAgent struct {
	AgentID     string  `json:"agentId"`
	GraphID     string  `json:"graphId" doc:"Value for graphName of a chat: sandbox: and the agent's id"`
	Name        string  `json:"name"`
	Description *string `json:"description" doc:"null if there is none"`
}

// GraphPrefix is the prefix of an agent's id in the field graphName of a chat request.
const GraphPrefix = "sandbox:"

// Detail is an error in one field of a chat request, or in its whole body.
type Detail struct {
	Path    string `json:"path" doc:"The field, as in messages[2].content; empty for the whole body"`
	Message string `json:"message"`
}

// ChatProblem is the body of an error response to a chat request: a Problem with additional fields that chat clients use.
type ChatProblem struct {
	Type   string `json:"type" doc:"Always about:blank; code identifies the problem"`
	Title  string `json:"title" doc:"Name of the status"`
	Status int    `json:"status"`
	Code   string `json:"code" doc:"Kind of error as in Problem, or the code of the run's error: timeout, aborted, rate_limit, insufficient_credits, agent_error, provider"`
	Field  string `json:"field,omitempty" doc:"For invalid: the first invalid field"`
	Detail string `json:"detail" doc:"One sentence that describes the problem"`
	Error  string `json:"error" doc:"The same as detail"`

	Details        []Detail `json:"details,omitempty" doc:"For invalid: all that is wrong"`
	DefaultModelID *string  `json:"defaultModelId,omitempty" doc:"If the model may not be used: one that the agent may use"`
}

// ChatProblemOf returns the ChatProblem for err: with its kind, field and message, and without its cause, which users must not
// see.
func ChatProblemOf(err error) *ChatProblem {
	p := ProblemOf(err)
	return &ChatProblem{
		Type: p.Type, Title: p.Title, Status: p.Status, Code: string(p.Code), Field: p.Field, Detail: p.Detail, Error: p.Detail,
	}
}

// ChatRequest documents the body of a chat request. Graph is the id of an agent, with or without [GraphPrefix]. Also accepted are
// messages in other forms, and instead of model the field modelRef: an alias, or an object with the alias in its field modelId.
type ChatRequest struct {
	Message  string            `json:"message,omitempty" maxLength:"16000" doc:"The user's message. Either this or messages"`
	Messages []caisson.Message `json:"messages,omitempty" doc:"The conversation; the last one is the user's new message. Content may be a string or a list of parts {type: text, text}"`
	Model    string            `json:"model,omitempty" doc:"Alias of a model that the agent may use. modelRef is another name for this field, and may be {modelId}"`
	Graph    string            `json:"graphName,omitempty" doc:"graphId or agentId of the catalog; absent: its default"`
	StateKey string            `json:"stateKey,omitempty" maxLength:"512" pattern:"^[A-Za-z0-9._:-]*$" doc:"Key of the conversation, like X-State-Key"`
}
