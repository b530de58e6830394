package drive

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/task"
)

// acpVersion is the version of the Agent Client Protocol that this package implements.
const acpVersion = 1

// acpDriver is the driver [caisson.DriverACP]. It speaks the Agent Client Protocol as a client over the standard streams of the
// agent's program, which implements the agent side.
type acpDriver struct{}

// acpClient is the client of the Agent Client Protocol for one turn.
type acpClient struct {
	t       *task.Task          // the turn that the client does
	rpc     *rpc                // connection to the agent's program
	state   *turnState          // what the agent has reported about the turn
	session string              // id that the agent gave the conversation; set before started is set
	started atomic.Bool         // the prompt was sent, or is being sent; earlier updates repeat previous turns and are ignored
	calls   map[string]*acpCall // tool calls of the turn that have not ended, by id
	message string              // id of the message whose parts are arriving
}

// Run implements [Driver]: it starts t's command and speaks the protocol with it for one turn.
func (acpDriver) Run(ctx context.Context, t *task.Task, out Out) (TurnResult, error) {
	c := &acpClient{t: t, rpc: newRPC(out), state: newTurnState(t, out), calls: map[string]*acpCall{}}
	c.rpc.handle = c.handle
	return converse(ctx, t, c.state, c.rpc, c.turn)
}

// turn runs the protocol from initialization to the end of the agent's answer. If ctx ends, it sends session/cancel, and waits
// for the answer at most until the context talk ends.
func (c *acpClient) turn(ctx, talk context.Context) error {
	var hello struct {
		Version int `json:"protocolVersion"`
		Can     struct {
			Load bool `json:"loadSession"`
		} `json:"agentCapabilities"`
		Info *struct {
			Version string `json:"version"`
		} `json:"agentInfo"`
	}
	err := c.rpc.call(ctx, "initialize", map[string]any{
		"protocolVersion":    acpVersion,
		"clientCapabilities": map[string]any{"fs": map[string]bool{"readTextFile": true, "writeTextFile": true}, "terminal": false},
		"clientInfo":         map[string]string{"name": "caisson", "version": "1"},
	}, &hello)
	if err != nil {
		return err
	}
	if hello.Version != acpVersion {
		return fmt.Errorf("the agent implements version %d of the Agent Client Protocol, not %d", hello.Version, acpVersion)
	}
	if hello.Info != nil {
		c.state.version = hello.Info.Version
	}
	if err := c.openSession(ctx, hello.Can.Load); err != nil {
		return err
	}
	c.state.out.Status("running", "")
	return c.prompt(ctx, talk)
}

// sessionFile returns the path of the file that stores the agent's id of the conversation between turns.
func (c *acpClient) sessionFile() (string, error) {
	dir, err := notesDir(c.t)
	return filepath.Join(dir, "acp-session"), err
}

// savedSession returns the id that the agent gave the conversation in an earlier turn.
func (c *acpClient) savedSession() (string, error) {
	file, err := c.sessionFile()
	if err != nil {
		return "", err
	}
	id, err := os.ReadFile(file)
	return string(id), err
}

// openSession resumes the conversation that the task continues, or starts one. can means that the agent can resume conversations.
func (c *acpClient) openSession(ctx context.Context, can bool) error {
	place := map[string]any{"cwd": c.t.Workdir, "mcpServers": []any{}}
	if c.t.Continue {
		if id, err := c.savedSession(); err == nil && can {
			place["sessionId"] = id
			if err = c.rpc.call(ctx, "session/load", place, nil); err == nil {
				c.session = id
				return nil
			}
			if errors.Is(err, errClosed) || ctx.Err() != nil {
				return err
			}
			delete(place, "sessionId")
		}
		c.state.out.Status("warning", "the agent does not remember the conversation")
	}
	var made struct {
		ID string `json:"sessionId"`
	}
	if err := c.rpc.call(ctx, "session/new", place, &made); err != nil {
		return err
	}
	if made.ID == "" {
		return errors.New("the agent returned no id for its session")
	}
	c.session = made.ID
	if can && c.t.Session != "" {
		file, err := c.sessionFile()
		if err != nil {
			return err
		}
		return writeFile(file, made.ID, 0o600)
	}
	return nil
}

// prompt sends the prompt and waits for the end of the turn. If ctx ends, it sends session/cancel, and waits at most until the
// context talk ends.
func (c *acpClient) prompt(ctx, talk context.Context) error {
	defer context.AfterFunc(ctx, func() {
		_ = c.rpc.notify(talk, "session/cancel", map[string]string{"sessionId": c.session})
	})()
	var end struct {
		Reason string `json:"stopReason"`
		Usage  *struct {
			Input  int64 `json:"inputTokens"`
			Output int64 `json:"outputTokens"`
			Read   int64 `json:"cachedReadTokens"`
			Write  int64 `json:"cachedWriteTokens"`
		} `json:"usage"`
	}
	c.started.Store(true)
	c.state.out.Mark(task.MarkPrompt)
	err := c.rpc.call(talk, "session/prompt", map[string]any{
		"sessionId": c.session, "prompt": []any{map[string]string{"type": "text", "text": c.t.Prompt}},
	}, &end)
	if err != nil {
		return err
	}
	if u := end.Usage; u != nil {
		c.state.report(caisson.RunUsage{Tokens: caisson.TokenCount{Input: u.Input, Output: u.Output, CacheRead: u.Read, CacheWrite: u.Write}})
	}
	switch end.Reason {
	case "end_turn":
		return nil
	case "max_tokens":
		return errors.New("the model has used all tokens that it may before the end of the turn")
	case "max_turn_requests":
		return errors.New("the agent has used all calls of the model that a turn may have")
	case "refusal":
		return errors.New("the agent refuses to continue")
	case "cancelled":
		return errors.New("the agent reports that its turn was cancelled")
	}
	return fmt.Errorf("the agent has ended its turn for a reason that is not known: %s", shortLine(end.Reason))
}

// handle handles a notification or request of the agent: an update of the conversation, a request for permission to call a tool,
// or to read or write a file.
func (c *acpClient) handle(method string, params json.RawMessage) (any, error) {
	switch method {
	case "session/update":
		var p struct {
			Session string    `json:"sessionId"`
			Update  acpUpdate `json:"update"`
		}
		if err := json.Unmarshal(params, &p); err != nil {
			return nil, &rpcError{Code: rpcBadParams, Message: err.Error()}
		}
		if c.started.Load() && p.Session == c.session {
			c.update(&p.Update)
		}
		return nil, nil
	case "session/request_permission":
		return c.permission(params)
	case "fs/read_text_file":
		return c.readFile(params)
	case "fs/write_text_file":
		return c.writeFile(params)
	}
	return nil, &rpcError{Code: rpcUnknownMethod, Message: "this client does not have the method " + shortLine(method)}
}
