// Package driver speaks with OpenClaw inside a sandbox: over the WebSocket of the gateway that runs there, else by starting OpenClaw for
// one turn.
package driver

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/agent/drive"
	"github.com/caisson-dev/caisson/agent/task"
)

// provider is what OpenClaw's configuration calls the model gateway, see package openclaw.
const provider = "caisson"

// mainAgent is the id of OpenClaw's agent if no persona is asked for.
const mainAgent = "main"

// OpenClaw is the driver. Its zero value is ready.
type OpenClaw struct{}

var _ drive.Driver = OpenClaw{}

// Run is as [drive.Driver] says.
func (OpenClaw) Run(ctx context.Context, t *task.Task, out drive.Out) (drive.End, error) {
	if t.Port > 0 {
		c, err := dial(ctx, t)
		if err == nil {
			defer c.close()
			return c.turn(ctx, t, out), nil
		}
		if ctx.Err() != nil {
			return drive.End{Error: ended(ctx)}, nil
		}
		if !errors.Is(err, errNobody) || len(t.Command) == 0 {
			return drive.End{Error: fault(caisson.RunAgentError, "OpenClaw's gateway does not take the prompt: "+err.Error())}, nil
		}
		out.Status("warning", "no gateway of OpenClaw answers; OpenClaw is started for this turn alone")
	}
	return headless(ctx, t, out)
}

// ended says why a turn was ended from outside.
func ended(ctx context.Context) *caisson.RunError {
	if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		return fault(caisson.RunTimeout, "the time of the run is over")
	}
	return fault(caisson.RunAborted, "the run was cancelled")
}

func fault(code, message string) *caisson.RunError {
	return &caisson.RunError{Code: code, Message: clip(message, 2000)}
}

// clip bounds text at a whole character.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}

func agentOf(t *task.Task) string {
	if t.Persona == "" {
		return mainAgent
	}
	return t.Persona
}

// sessionKey names a conversation in OpenClaw, which compares keys without case and gives parts of them a meaning.
func sessionKey(t *task.Task) string {
	if t.Session == "" {
		return "agent:" + agentOf(t) + ":caisson"
	}
	sum := sha256.Sum256([]byte(t.Session))
	return "agent:" + agentOf(t) + ":caisson-" + hex.EncodeToString(sum[:12])
}

// maxHistory bounds what of a conversation is told again, in bytes. A model would not take much more.
const maxHistory = 256 << 10

// message is the prompt, after what was said before if OpenClaw does not know it.
func message(t *task.Task) string {
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

// modelOf is the model as OpenClaw names it; "" leaves it to the configuration.
func modelOf(t *task.Task) string {
	if t.Model == "" {
		return ""
	}
	return provider + "/" + t.Model
}

// seconds is a time for OpenClaw, which counts in whole ones.
func seconds(d caisson.Duration) int64 {
	return int64((time.Duration(d) + time.Second - 1) / time.Second)
}

// newID returns an id that is nobody else's.
func newID() string { return "caisson-" + rand.Text() }
