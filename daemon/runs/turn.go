package runs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/agent"
	"github.com/caisson-dev/caisson/guest/task"
)

// readyTimeout is the timeout for an agent's service to become ready again in the sandbox of a session.
const readyTimeout = 2 * time.Minute

// Addresses, inside a sandbox, of the model gateway and of the tools that start sub-runs.
const (
	gatewayURL = "http://llm.caisson.internal"   // URL of the model gateway
	toolsURL   = "http://tools.caisson.internal" // URL of the tools that start sub-runs
)

// turns gives prompts to agents, and records the events that the agents cause.
type turns struct {
	recipes   map[string]Recipe // recipes by the name of the agent's driver
	services  *services         // starts the services of agents
	sessions  *sessions         // sessions and their sandboxes
	guestExec *guestExec        // executes programs in sandboxes
	dirs      *directories      // directories of runs
	grace     time.Duration     // time that an agent has to exit after a request to stop
}

// task returns the task of the attempt. The time of the agent is the time until the deadline minus a tenth of the run's time
// limit, which is reserved for the end of the run.
func (u *turns) task(ctx context.Context, x *attempt, deadline time.Time) (*task.Task, error) {
	left := time.Until(deadline)
	t := &task.Task{
		Driver: x.agent.Driver, Prompt: x.r.Request.Prompt, PromptMode: x.agent.Prompt, Events: x.agent.Events, Workdir: x.agent.Workdir,
		Model: x.r.Model, Persona: x.r.Request.Persona, Ready: x.agent.Ready, ReadyTime: caisson.Duration(left),
		Time:  caisson.Duration(left - time.Duration(x.r.Limits.Time)/10),
		Grace: caisson.Duration(u.grace), Output: x.r.Limits.Output, Tools: x.agent.Tools, Track: x.agent.Workdir,
		Files: x.agent.Files, Background: x.agent.Background, Continue: !x.box.isNew, Session: string(cmp.Or(x.r.Session, x.r.ID)),
	}
	if x.box.sandbox.Spec.Workspace != "" || x.box.repo != nil {
		t.Track = "" // the driver need not report changes, because the host determines them
	}
	if t.Time <= 0 {
		t.Time = caisson.Duration(left / 2)
	}
	if t.Time <= 0 {
		return nil, errDeadline
	}
	if !x.agent.Memory || x.box.isNew {
		history, err := u.sessions.history(ctx, x.r)
		if err != nil {
			return nil, err
		}
		t.History = history
	}
	if !x.box.isNew {
		t.Files = nil // the files exist already, and the agent may have changed them
		t.ReadyTime = caisson.Duration(min(left, readyTimeout))
	}
	t.Command = x.plan.Command
	t.Env = x.env(deadline)
	recipe := u.recipes[x.agent.Driver]
	if recipe == nil {
		return t, nil
	}
	models, err := u.services.grantedModels(ctx, x.assignment().Models)
	if err != nil {
		return nil, err
	}
	return t, recipe.Turn(t, Turn{Agent: x.agent, Run: x.r, Models: models, Fork: x.box.warm && x.box.isNew, First: x.box.isNew})
}

// execute gives the prompt to the agent and records its events.
func (u *turns) execute(ctx context.Context, x *attempt, deadline time.Time) error {
	t, err := u.task(ctx, x, deadline)
	if err != nil {
		return err
	}
	if err := u.guestExec.recordProcesses(ctx, x); err != nil {
		return err
	}
	logs, err := u.dirs.createLogs(x.r)
	if err != nil {
		return err
	}
	defer logs.close()
	x.clock.start()
	x.result.Versions["driver"] = t.Driver
	x.addVersions(map[string]string{"agent": x.agent.Version})
	end, err := u.services.drive(ctx, x.box.sandbox.ID, x.agent, t, func(l *task.Line) { handleLine(x, l, logs) })
	x.clock.phase("agent")
	x.result.Stdout, x.result.Stderr = logs.size(caisson.LogStdout), logs.size(caisson.LogStderr)
	if errors.Is(err, errDeadline) && !x.box.prompted && x.agent.Ready != "" {
		return failf(caisson.RunTimeout, "the agent's service was not ready within the run's time of %s; give it more with --timeout", x.r.Limits.Time)
	}
	if err != nil {
		return err
	}
	x.box.prompted = true
	x.result.Exit, x.result.Cut = end.Exit, x.result.Cut || end.Cut || logs.cut
	x.addVersions(map[string]string{"agent": end.Agent})
	if end.Error != nil {
		msg := end.Error.Message
		if rest, ok := strings.CutPrefix(msg, t.TimeoutMessage()); ok && end.Error.Code == caisson.RunTimeout {
			msg = fmt.Sprintf("the agent was not done within the run's time of %s, of which the start of the sandbox and the end of the run left it %s; give it more with --timeout%s",
				x.r.Limits.Time, caisson.Duration(time.Duration(t.Time).Round(10*time.Millisecond)), rest)
		}
		return &failure{code: errorCode(end.Error), msg: msg, fromAgent: true}
	}
	if x.output.answer.Len() == 0 && !mayBeSilent(x.agent) {
		return &failure{code: caisson.RunAgentError, msg: "the agent ended without an answer", fromAgent: true}
	}
	return nil
}

// mayBeSilent reports whether an agent may succeed without an answer, because it is a program that is granted no models.
func mayBeSilent(a *caisson.Agent) bool {
	return a.Driver == caisson.DriverExec && slices.Equal(a.Models, []string{agent.NoModels})
}

// errorCode returns the error code for an agent's failure. It searches the message for the cause, because most agents report
// only that a model call failed.
func errorCode(e *caisson.RunError) string {
	if e.Code != caisson.RunAgentError {
		return e.Code
	}
	text := strings.ToLower(e.Message)
	switch {
	case strings.Contains(text, "over_budget"), strings.Contains(text, "the budget of "):
		return caisson.RunNoCredits
	case strings.Contains(text, "rate_limit"), strings.Contains(text, "rate limit"), strings.Contains(text, " 429 "):
		return caisson.RunRateLimit
	}
	return e.Code
}

// handleLine stores what one line of the driver's output reports: output of a program, the moment at which the agent got the
// prompt, changed files, or an event of the agent.
func handleLine(x *attempt, l *task.Line, logs *logs) {
	switch l.Type {
	case task.LineLog:
		logs.write(l.Stream, l.Data)
	case task.LineMark:
		if l.Mark == task.MarkPrompt {
			x.box.prompted = true
			x.clock.phase("prompt")
		}
	case task.LineChanges:
		x.result.Changes, x.result.Patch = l.Changes, l.Patch
	case caisson.EventFinal, task.LineEnd, caisson.EventUsage:
		// Lines of these types are ignored: the answer is the concatenation of all text, and the usage is read from the ledger.
	default:
		// The driver observes the output limit. If more is received, another program in the sandbox has written it.
		x.output.eventBytes += int64(eventSize + len(l.Delta) + len(l.Label) + len(l.Result) + len(l.Args))
		if x.output.eventBytes > int64(x.r.Limits.Output)+outputSlack {
			x.result.Cut = true
			return
		}
		x.output.answer.WriteString(l.Delta)
		x.rec.add(l.RunEvent)
	}
}

// Accounting of the output limit: each event counts as eventSize bytes plus its text, which is less than its encoded line;
// outputSlack allows for events that do not come from the agent. Both are in bytes.
const (
	eventSize   = 32
	outputSlack = 64 << 10
)
