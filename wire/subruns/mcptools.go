package subruns

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
)

// A toolSpec describes a tool in the response to tools/list.
type toolSpec struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Schema      json.RawMessage `json:"inputSchema"`
}

// JSON Schemas of the tools' arguments.
const (
	startSchema = `{"type":"object","properties":{"agent":{"type":"string","description":"id, as list_agents shows it"},"prompt":{"type":"string","description":"the task, with all that is needed to do it"},"model":{"type":"string","description":"alias; default: the agent's own"}},"required":["agent","prompt"],"additionalProperties":false}`
	idSchema    = `{"type":"object","properties":{"id":{"type":"string","description":"of the run, as start_agent returned it"}},"required":["id"],"additionalProperties":false}`
	waitSchema  = `{"type":"object","properties":{"id":{"type":"string","description":"of the run, as start_agent returned it"},"wait":{"type":"integer","minimum":0,"maximum":300,"description":"seconds to wait for its end; default 0"}},"required":["id"],"additionalProperties":false}`
	noSchema    = `{"type":"object","properties":{},"additionalProperties":false}`
)

// toolSpecs are the tools that the Model Context Protocol server offers to agents in sandboxes.
var toolSpecs = []toolSpec{
	{"list_agents", "List the agents that can be given tasks.", json.RawMessage(noSchema)},
	{"run_agent", "Give a task to another agent and wait for its answer. The agent works in a sandbox of its own and does not see your files.", json.RawMessage(startSchema)},
	{"start_agent", "Give a task to another agent and go on without waiting. Returns the run's id, for agent_result.", json.RawMessage(startSchema)},
	{"agent_result", "Return the state of a run that start_agent has started, and its answer if it has ended.", json.RawMessage(waitSchema)},
	{"cancel_agent", "Cancel a run that start_agent has started.", json.RawMessage(idSchema)},
}

// A toolCall holds the params of tools/call.
type toolCall struct {
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments"`
	Meta      struct {
		Token json.RawMessage `json:"progressToken"`
	} `json:"_meta"`
}

// A toolResult is the result of a call. Errors of a call are results too, so that the model receives them.
type toolResult struct {
	Content []content `json:"content"`
	IsError bool      `json:"isError"`
}

// A content is an element of a toolResult; its Type is always "text".
type content struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

func textResult(isError bool, format string, args ...any) *toolResult {
	return &toolResult{[]content{{"text", fmt.Sprintf(format, args...)}}, isError}
}

func errorResult(err error) *toolResult {
	if spent, ok := errors.AsType[*budgetError](err); ok {
		return textResult(true, "%s", spent.msg)
	}
	return textResult(true, "%s", caisson.MessageOf(err))
}

// mayWait reports whether m calls a tool that may wait for a run to end.
func (m *message) mayWait() bool {
	var p toolCall
	return m.Method == "tools/call" && json.Unmarshal(m.Params, &p) == nil && (p.Name == "run_agent" || p.Name == "agent_result")
}

// arguments is the union of the arguments of all tools.
type arguments struct {
	Agent  string `json:"agent"`
	Prompt string `json:"prompt"`
	Model  string `json:"model"`
	ID     string `json:"id"`
	Wait   int64  `json:"wait"` // seconds to wait for the run to end
}

// start returns the request to start a run with these arguments.
func (a *arguments) start() startRequest {
	return startRequest{Agent: a.Agent, Prompt: a.Prompt, Model: a.Model}
}

// callTool executes a tools/call request.
func callTool(ctx context.Context, e *engineClient, params json.RawMessage, s *stream) (any, *rpcError) {
	var p toolCall
	if params == nil || json.Unmarshal(params, &p) != nil || p.Name == "" {
		return nil, &rpcError{rpcInvalidParams, "name and arguments of a tool are missing"}
	}
	if p.Meta.Token != nil && isStringOrInt(p.Meta.Token) && s != nil {
		s.token = p.Meta.Token
	}
	var a arguments
	if p.Arguments != nil {
		if err := decode(p.Arguments, true, &a); err != nil {
			return errorResult(err), nil
		}
	}
	switch p.Name {
	case "list_agents":
		return showAgents(ctx, e), nil
	case "run_agent":
		return runAgent(ctx, e, a.start(), s), nil
	case "start_agent":
		return showStarted(e.start(ctx, a.start())), nil
	case "agent_result":
		return agentResult(ctx, e, &a, s), nil
	case "cancel_agent":
		return cancelAgent(ctx, e, &a), nil
	}
	return nil, &rpcError{rpcInvalidParams, "there is no tool " + clip(p.Name, 60)}
}

// showAgents returns the list of agents as text.
func showAgents(ctx context.Context, e *engineClient) *toolResult {
	list, err := e.agents(ctx)
	if err != nil {
		return errorResult(err)
	}
	var out strings.Builder
	for _, a := range list {
		fmt.Fprintf(&out, "%s: %s. %s\n", a.ID, a.Name, a.Description)
	}
	return textResult(false, "%s", cmp.Or(out.String(), "[there are none]"))
}

// runAgent starts a run and waits for it to end. If the client disconnects, it cancels the run: connections within the host are
// not lost by accident, no client can receive the answer, and the run would be charged to an agent that has not received its id.
func runAgent(ctx context.Context, e *engineClient, st startRequest, s *stream) *toolResult {
	r, err := e.start(ctx, st)
	if err != nil {
		return errorResult(err)
	}
	s.startKeepAlive(r)
	last, err := e.await(ctx, r, s.update)
	s.stopKeepAlive()
	if err != nil {
		e.abandon(ctx, r.ID)
	}
	switch {
	case ctx.Err() != nil:
		return textResult(true, "Run %s was cancelled.", r.ID)
	case err != nil:
		return textResult(true, "Run %s was cancelled, because waiting for it failed: %s", r.ID, caisson.MessageOf(err))
	}
	return runResult(last)
}

// showStarted returns the result of the tool that starts a run: the run r or, if it could not be started, err.
func showStarted(r *run, err error) *toolResult {
	if err != nil {
		return errorResult(err)
	}
	return textResult(false, `{"id":%q,"state":%q}`, r.ID, r.State)
}

// agentResult returns the result of a run, or the state of the run if it has not ended after the requested wait.
func agentResult(ctx context.Context, e *engineClient, a *arguments, s *stream) *toolResult {
	id, err := caisson.ParseID(caisson.RunPrefix, a.ID)
	if err != nil {
		return errorResult(err)
	}
	if a.Wait < 0 || a.Wait > maxWait {
		return errorResult(caisson.Invalidf("wait", "%d is not a number of seconds up to %d", a.Wait, maxWait))
	}
	r, err := e.get(ctx, id)
	if err == nil && a.Wait > 0 {
		s.startKeepAlive(r)
		r, err = e.awaitFor(ctx, r, time.Duration(a.Wait)*time.Second, s.update)
		s.stopKeepAlive()
	}
	switch {
	case err != nil:
		return errorResult(err)
	case !r.State.Ended():
		return textResult(false, "Run %s is %s. Ask again later.", r.ID, r.State)
	}
	return runResult(r)
}

// cancelAgent cancels a run.
func cancelAgent(ctx context.Context, e *engineClient, a *arguments) *toolResult {
	id, err := caisson.ParseID(caisson.RunPrefix, a.ID)
	if err != nil {
		return errorResult(err)
	}
	if _, err := e.cancel(ctx, id); err != nil {
		return errorResult(err)
	}
	return textResult(false, "Run %s is being ended.", id)
}

// runResult returns the result of a run that has ended as the result of a tool.
func runResult(r *run) *toolResult {
	text := r.Answer
	if r.Truncated {
		text += "\n[the answer was longer]"
	}
	switch {
	case r.Error != nil:
		return textResult(true, "Run %s failed: %s\n%s", r.ID, r.Error.Error(), text)
	case r.State != caisson.RunSucceeded:
		return textResult(true, "Run %s failed.\n%s", r.ID, text)
	}
	return textResult(false, "%s", text)
}
