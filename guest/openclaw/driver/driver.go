// Package driver is the driver for OpenClaw. It runs inside a sandbox, and connects to the WebSocket of OpenClaw's gateway there,
// or starts OpenClaw for one turn.
package driver

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/drive"
	"github.com/caisson-dev/caisson/guest/task"
)

// provider is the name that OpenClaw's configuration gives Caisson's model gateway.
const provider = "caisson"

// mainAgent is the id of the OpenClaw agent that is used if a run has no persona.
const mainAgent = "main"

// OpenClaw is the driver for OpenClaw. Its zero value is ready to use.
type OpenClaw struct{}

var _ drive.Driver = OpenClaw{}

// Run implements [drive.Driver]. Without OpenClaw's gateway in the sandbox, it starts OpenClaw for this turn only.
func (OpenClaw) Run(ctx context.Context, t *task.Task, out drive.Out) (drive.TurnResult, error) {
	if t.Port > 0 {
		c, err := dial(ctx, t)
		if err == nil {
			defer c.close()
			return c.turn(ctx, t, out), nil
		}
		if ctx.Err() != nil {
			return drive.TurnResult{Error: contextError(ctx)}, nil
		}
		if !errors.Is(err, errNotListening) || len(t.Command) == 0 {
			return drive.TurnResult{Error: newError(caisson.RunAgentError, "OpenClaw's gateway does not accept the prompt: "+err.Error())}, nil
		}
		out.Status("warning", "no OpenClaw gateway is running; OpenClaw is started for this turn only")
	}
	return runOnce(ctx, t, out)
}

// contextError returns the error of a turn whose context is done: a timeout or a cancellation.
func contextError(ctx context.Context) *caisson.RunError {
	if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		return newError(caisson.RunTimeout, "the time of the run is over")
	}
	return newError(caisson.RunAborted, "the run was cancelled")
}

// newError returns an error of a run, with the message truncated.
func newError(code, message string) *caisson.RunError {
	return &caisson.RunError{Code: code, Message: truncate(message, 2000)}
}

// truncate shortens s to at most n bytes at a character boundary. If it is shortened, "…" is appended.
func truncate(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}

// agentID returns the id of the OpenClaw agent for a task: the task's persona, or mainAgent.
func agentID(t *task.Task) string {
	if t.Persona == "" {
		return mainAgent
	}
	return t.Persona
}

// sessionKey returns the key with which OpenClaw identifies the task's conversation. It contains a hash of the session id,
// because OpenClaw compares keys without case and interprets parts of them.
func sessionKey(t *task.Task) string {
	if t.Session == "" {
		return "agent:" + agentID(t) + ":caisson"
	}
	sum := sha256.Sum256([]byte(t.Session))
	return "agent:" + agentID(t) + ":caisson-" + hex.EncodeToString(sum[:12])
}

// maxHistory is the maximum size of all earlier messages in a prompt, in bytes. The contexts of models do not allow much more.
const maxHistory = 256 << 10

// promptWithHistory returns the text for OpenClaw: the prompt, after the earlier messages if OpenClaw has not stored them.
func promptWithHistory(t *task.Task) string {
	if len(t.History) == 0 || t.Continue {
		return t.Prompt
	}
	first, size := len(t.History), 0
	for first > 0 && size+len(t.History[first-1].Content) <= maxHistory {
		first--
		size += len(t.History[first].Content)
	}
	var b strings.Builder
	b.WriteString("What was said in this conversation before, oldest first:\n")
	if first > 0 {
		b.WriteString("\n[the beginning is left out]\n")
	}
	for _, m := range t.History[first:] {
		b.WriteString("\n[" + m.Role + "]\n" + m.Content + "\n")
	}
	b.WriteString("\nNow answer this:\n\n" + t.Prompt)
	return b.String()
}

// modelName returns OpenClaw's name of the task's model, or of the model that the task has as its substitute if OpenClaw's
// configuration lacks the first one. "" means the default model in the configuration.
func modelName(t *task.Task) string {
	if t.Model == "" {
		return ""
	}
	if s := t.Substitute; s != nil && !hasModel(s.Config, t.Model, s.Context) {
		return provider + "/" + s.Model
	}
	return provider + "/" + t.Model
}

// maxConfig is the maximum number of bytes that are read of OpenClaw's configuration.
const maxConfig = 4 << 20

// hasModel reports whether OpenClaw's configuration, in the file config, has the model alias with this context window in tokens.
func hasModel(config, alias string, context int64) bool {
	f, err := os.Open(config)
	if err != nil {
		return false
	}
	defer f.Close()
	var c struct {
		Models struct {
			Providers map[string]struct {
				Models []struct {
					ID            string `json:"id"`
					ContextWindow int64  `json:"contextWindow"`
				} `json:"models"`
			} `json:"providers"`
		} `json:"models"`
	}
	if err := json.NewDecoder(io.LimitReader(f, maxConfig)).Decode(&c); err != nil {
		return false
	}
	for _, m := range c.Models.Providers[provider].Models {
		if m.ID == alias {
			return m.ContextWindow == context
		}
	}
	return false
}

// seconds returns a duration in whole seconds, rounded up, as OpenClaw requires.
func seconds(d caisson.Duration) int64 {
	return int64((time.Duration(d) + time.Second - 1) / time.Second)
}

// newID returns a new random id for a run of OpenClaw.
func newID() string { return "caisson-" + rand.Text() }
