package driver

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/coder/websocket"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/drive"
	"github.com/caisson-dev/caisson/guest/task"
)

// abortTime is how long OpenClaw's gateway may take to abort a turn if the task sets no grace period.
const abortTime = 5 * time.Second

// agentParams has the parameters of OpenClaw's method "agent", which sends a prompt.
type agentParams struct {
	Message   string `json:"message"`            // the prompt and, if needed, the earlier messages
	AgentID   string `json:"agentId"`            // id of the agent in OpenClaw that gets the prompt
	Key       string `json:"sessionKey"`         // key of the conversation
	ID        string `json:"idempotencyKey"`     // is also the id of the run in OpenClaw
	Model     string `json:"model,omitempty"`    // OpenClaw's name of the model; "" for the configured one
	Timeout   int64  `json:"timeout,omitempty"`  // timeout of the turn in seconds
	Deliver   bool   `json:"deliver"`            // send the answer to a chat channel, too; always false
	NoMessage bool   `json:"disableMessageTool"` // the agent has no tool that sends messages to chat channels
}

// turn sends the prompt to OpenClaw's gateway and reports events until the turn has ended.
func (c *client) turn(ctx context.Context, t *task.Task, out drive.Out) drive.TurnResult {
	end := drive.TurnResult{Agent: c.version}
	out.Mark(task.MarkStarted)
	p := agentParams{
		Message: promptWithHistory(t), AgentID: agentID(t), Key: sessionKey(t), ID: newID(), Model: modelName(t), Timeout: seconds(t.Time), NoMessage: true,
	}
	if t.Continue {
		// If the driver of an earlier turn was killed, OpenClaw's run for that turn may still be active. Abort it.
		if _, err := c.call(ctx, "sessions.abort", map[string]any{"key": p.Key, "clearQueued": true}); err != nil && !isRefusal(err) {
			end.Error = c.connError(ctx, err)
			return end
		}
	}
	id, err := c.send(ctx, "agent", p)
	if err != nil {
		end.Error = c.connError(ctx, err)
		return end
	}
	end.Error = c.follow(ctx, t, id, newStream(p.ID, t.Output, out))
	return end
}

// isRefusal reports whether err is an error that OpenClaw's gateway has answered, and not one of the connection.
func isRefusal(err error) bool {
	var refused *callError
	return errors.As(err, &refused)
}

// connError returns the error of a turn during which the connection to OpenClaw's gateway failed with err.
func (c *client) connError(ctx context.Context, err error) *caisson.RunError {
	if ctx.Err() != nil {
		return contextError(ctx)
	}
	return newError(caisson.RunAgentError, "the connection to OpenClaw's gateway failed: "+err.Error())
}

// follow handles the events of a run until the final answer to the prompt, which is the request with this id, and returns the
// error of the turn. If ctx ends, it aborts the run in OpenClaw's gateway.
func (c *client) follow(ctx context.Context, t *task.Task, id string, s *stream) *caisson.RunError {
	reading, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	aborted := context.AfterFunc(ctx, func() {
		grace := time.Duration(t.Grace)
		if grace <= 0 {
			grace = abortTime
		}
		// After the abort, wait at most for the grace period for the final answer to the prompt. The answer to the abort is ignored.
		time.AfterFunc(grace, stop)
		b, err := json.Marshal(frame{Type: "req", ID: "abort", Method: "chat.abort", Params: map[string]string{"sessionKey": sessionKey(t), "runId": s.run}})
		if err == nil {
			err = c.conn.Write(reading, websocket.MessageText, b) // Write may be called while another goroutine reads
		}
		if err != nil {
			stop()
		}
	})
	defer aborted()
	for {
		f, err := c.read(reading)
		if err != nil {
			return c.connError(ctx, err)
		}
		switch {
		case f.Type == "event":
			s.event(f)
		case f.Type == "res" && f.ID == id:
			payload, err := f.result()
			if err != nil {
				if ctx.Err() != nil {
					return contextError(ctx)
				}
				return s.failure(err.Error())
			}
			if isAccepted(payload) {
				s.out.Mark(task.MarkPrompt)
				continue
			}
			final := s.final(payload)
			if ctx.Err() != nil {
				return contextError(ctx)
			}
			return final
		}
	}
}

// isAccepted reports whether payload is the first of the two answers to a prompt, which says that OpenClaw has accepted the
// prompt.
func isAccepted(payload json.RawMessage) bool {
	var a struct {
		Status string `json:"status"`
	}
	return json.Unmarshal(payload, &a) == nil && a.Status == "accepted"
}
