package drive

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/task"
)

// codexDriver is the driver [caisson.DriverCodex]. The agent's program implements the protocol of "codex app-server" on its
// standard streams ("codex app-server generate-json-schema" prints it), and the driver is its client. Unlike "codex exec --json",
// the server sends the text of a message while the model generates it.
type codexDriver struct{}

// codexClient is the client of "codex app-server" for one turn.
type codexClient struct {
	t       *task.Task     // the turn that the client does
	rpc     *rpc           // connection to the agent's program
	state   *turnState     // what the agent has reported about the turn
	items   codex          // reads items of the turn, such as messages and tool calls, into state; has the last error
	thread  string         // id of the thread, as Codex calls a conversation; set by turn
	started atomic.Bool    // the field thread is set
	end     chan codexTurn // receives the turn, as reported by the server, when it has ended
}

// codexTurn is the state of a turn as the server reports it.
type codexTurn struct {
	ID     string    `json:"id"`     // id of the turn
	Status string    `json:"status"` // state of the turn, such as completed
	Error  *struct { // error of a turn that has failed
		Message string `json:"message"`
	} `json:"error"`
}

// codexNotification has the parameters of all notifications that the client uses.
type codexNotification struct {
	Thread  string          `json:"threadId"` // id of the codex thread that the notification is about
	Delta   string          `json:"delta"`    // next part of a message
	Message string          `json:"message"`  // text of a warning
	Item    json.RawMessage `json:"item"`     // the item that has started or been completed
	Turn    codexTurn       `json:"turn"`     // the turn that has ended
	Error   struct {        // an error that need not end the turn
		Message string `json:"message"`
	} `json:"error"`
	Plan []struct { // steps of the agent's plan
		Status string `json:"status"`
	} `json:"plan"`
	Usage struct { // numbers of tokens of the thread
		Total struct {
			Input  int64 `json:"inputTokens"`
			Cached int64 `json:"cachedInputTokens"`
			Write  int64 `json:"cacheWriteInputTokens"`
			Output int64 `json:"outputTokens"`
		} `json:"total"`
	} `json:"tokenUsage"`
}

// Run implements [Driver]: it starts t's command and speaks the protocol with it for one turn.
func (codexDriver) Run(ctx context.Context, t *task.Task, out Out) (TurnResult, error) {
	c := &codexClient{t: t, rpc: newRPC(out), state: newTurnState(t, out), end: make(chan codexTurn, 1)}
	c.rpc.handle = c.handle
	return converse(ctx, t, c.state, c.rpc, c.turn)
}

// turn runs the protocol from initialization to the end of the agent's turn. If ctx ends, it sends turn/interrupt, and waits for
// the end of the turn at most until the context talk ends.
func (c *codexClient) turn(ctx, talk context.Context) error {
	var hello struct {
		Agent string `json:"userAgent"` // has the form "CLIENT/VERSION (SYSTEM) …"
	}
	err := c.rpc.call(ctx, "initialize", map[string]any{"clientInfo": map[string]string{"name": "caisson", "version": "1"}}, &hello)
	if err != nil {
		return err
	}
	if _, version, ok := strings.Cut(hello.Agent, "/"); ok {
		c.state.version, _, _ = strings.Cut(version, " ")
	}
	if err := c.rpc.notify(ctx, "initialized", struct{}{}); err != nil {
		return err
	}
	var made struct {
		Thread struct {
			ID string `json:"id"`
		} `json:"thread"`
	}
	// Codex need not isolate commands, because Caisson's sandbox does. The thread is not stored, because the task contains the
	// earlier messages of a conversation.
	err = c.rpc.call(ctx, "thread/start", map[string]any{
		"model": c.t.Model, "cwd": c.t.Workdir, "approvalPolicy": "never", "sandbox": "danger-full-access", "ephemeral": true,
	}, &made)
	if err != nil {
		return err
	}
	c.thread = made.Thread.ID
	c.started.Store(true)
	c.state.out.Status("running", "")
	c.state.out.Mark(task.MarkPrompt)
	var begun struct {
		Turn codexTurn `json:"turn"`
	}
	err = c.rpc.call(ctx, "turn/start", map[string]any{
		"threadId": c.thread, "input": []any{map[string]string{"type": "text", "text": c.t.Prompt}},
	}, &begun)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() {
		interrupt := map[string]string{"threadId": c.thread, "turnId": begun.Turn.ID}
		_ = c.rpc.call(talk, "turn/interrupt", interrupt, nil) // errors are ignored: later the program is ended anyway
	})()
	select {
	case end := <-c.end:
		return c.result(end)
	case <-c.rpc.closed:
		select {
		case end := <-c.end: // the turn had ended before the connection was closed
			return c.result(end)
		default:
			return errClosed
		}
	case <-talk.Done():
		return context.Cause(talk)
	}
}

// result returns the error of a turn that has ended, or nil if the turn was completed.
func (c *codexClient) result(end codexTurn) error {
	switch {
	case end.Status == "completed":
		return nil
	case end.Error != nil && end.Error.Message != "":
		return errors.New(end.Error.Message)
	case end.Status == "failed" && c.items.lastError != "":
		return errors.New(c.items.lastError)
	}
	return fmt.Errorf("the agent reports that its turn has the status %s", shortLine(end.Status))
}

// handle handles the notifications of the server. It refuses the server's requests, which ask for permissions: the thread is
// started with all permissions.
func (c *codexClient) handle(method string, params json.RawMessage) (any, error) {
	var n codexNotification
	if err := json.Unmarshal(params, &n); err != nil {
		return nil, &rpcError{Code: rpcBadParams, Message: err.Error()}
	}
	if !slices.Contains(codexNotifications, method) {
		return nil, &rpcError{Code: rpcUnknownMethod, Message: "this client does not have the method " + shortLine(method)}
	}
	// Notifications of other threads are ignored: the agent starts threads for sub-tasks.
	if !c.started.Load() || n.Thread != "" && n.Thread != c.thread {
		return nil, nil
	}
	s := c.state
	switch method {
	case "item/agentMessage/delta":
		s.answer.Delta(n.Delta)
	case "item/started", "item/completed":
		return nil, c.item(n.Item, method == "item/completed")
	case "turn/plan/updated":
		done := 0
		for _, step := range n.Plan {
			if step.Status == "completed" {
				done++
			}
		}
		s.out.Status("running", fmt.Sprintf("plan: %d of %d done", done, len(n.Plan)))
	case "thread/tokenUsage/updated":
		u := n.Usage.Total
		s.report(caisson.RunUsage{Tokens: caisson.TokenCount{
			Input: max(0, u.Input-u.Cached-u.Write), CacheRead: u.Cached, CacheWrite: u.Write, Output: u.Output,
		}})
	case "error":
		c.items.lastError = n.Error.Message
		s.out.Status("warning", n.Error.Message)
	case "warning":
		s.out.Status("warning", n.Message)
	case "turn/completed":
		select {
		case c.end <- n.Turn:
		default: // c.end contains an earlier report of the end; this one is dropped
		}
	}
	return nil, nil
}

// codexNotifications are the methods of the server's notifications that the client uses.
var codexNotifications = []string{
	"item/agentMessage/delta", "item/started", "item/completed", "turn/plan/updated", "thread/tokenUsage/updated", "error", "warning", "turn/completed",
}

// codexItemTypes are the types of items that the client uses, with their names in the output of "codex exec --json".
var codexItemTypes = map[string]string{
	"agentMessage": "agent_message", "commandExecution": "command_execution", "fileChange": "file_change", "mcpToolCall": "mcp_tool_call",
	"webSearch": "web_search", "reasoning": "reasoning",
}

// item handles an item, such as a message or a tool call, that has started or been completed.
func (c *codexClient) item(raw json.RawMessage, completed bool) error {
	var kind struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(raw, &kind); err != nil {
		return err
	}
	known := codexItemTypes[kind.Type]
	if known == "" || known == "agent_message" && !completed { // the text of a message arrives in notifications of its own
		return nil
	}
	var i struct {
		codexItem
		Output   string `json:"aggregatedOutput"`
		ExitCode *int   `json:"exitCode"`
	}
	if err := json.Unmarshal(raw, &i); err != nil {
		return err
	}
	i.codexItem.Type, i.codexItem.Output, i.codexItem.ExitCode = known, i.Output, i.ExitCode
	c.items.item(&i.codexItem, completed, c.state)
	return nil
}
