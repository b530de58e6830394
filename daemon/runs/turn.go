package runs

import (
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/task"
	"github.com/caisson-dev/caisson/internal/tail"
)

// readyTimeout is the timeout for a service to become ready again.
const readyTimeout = 2 * time.Minute

// signalTimeout is the timeout for signalling an agent to stop.
const signalTimeout = 3 * time.Second

// Addresses, inside a sandbox, of the model gateway and of the tools that start sub-runs.
const (
	gatewayURL = "http://llm.caisson.internal"
	toolsURL   = "http://tools.caisson.internal"
)

// task returns the task of the attempt. The agent's time is that of the run minus a tenth of its limit.
func (x turn) task(ctx context.Context, deadline time.Time) (*task.Task, error) {
	left := time.Until(deadline)
	t := &task.Task{
		Driver: x.agent.Driver, Prompt: x.r.Request.Prompt, PromptMode: x.agent.Prompt, Events: x.agent.Events, Workdir: x.agent.Workdir,
		Model: x.r.Model, Persona: x.r.Request.Persona, Ready: x.agent.Ready, ReadyTime: caisson.Duration(left),
		Time:  caisson.Duration(left - time.Duration(x.r.Limits.Time)/10),
		Grace: caisson.Duration(x.c.Limits.Grace), Output: x.r.Limits.Output, Tools: x.agent.Tools, Track: x.agent.Workdir,
		Files: x.agent.Files, Background: x.agent.Background, Continue: !x.unprompted, Session: string(x.r.ID),
	}
	if x.sandbox.Spec.Workspace != "" || x.repo != nil {
		t.Track = "" // the host determines the changes itself
	}
	if t.Time <= 0 {
		t.Time = caisson.Duration(left / 2)
	}
	if t.Time <= 0 {
		return nil, errDeadline
	}
	if x.r.Session != "" {
		t.Session = string(x.r.Session)
	}
	if !x.agent.Memory || x.unprompted {
		history, err := x.c.sessions.history(ctx, x.r)
		if err != nil {
			return nil, err
		}
		t.History = history
	}
	if !x.unprompted {
		t.Files = nil // they exist already, possibly changed by the agent
		t.ReadyTime = caisson.Duration(min(left, readyTimeout))
	}
	t.Command = x.settings.Command
	t.Env = x.env(deadline)
	recipe := x.c.Recipes[x.agent.Driver]
	if recipe == nil {
		return t, nil
	}
	models, err := x.c.builder.grantedModels(ctx, x.provisioner.assignment().Models)
	if err != nil {
		return nil, err
	}
	return t, recipe.Turn(t, Turn{Agent: x.agent, Run: x.r, Models: models, Fork: x.warm && x.unprompted, First: x.unprompted})
}

// env returns the environment of every agent's program. The API keys are placeholders: the gateway identifies the
// caller by its wire.
func (x turn) env(deadline time.Time) map[string]string {
	env := map[string]string{
		"OPENAI_BASE_URL": gatewayURL + "/v1", "OPENAI_API_KEY": "caisson", "ANTHROPIC_BASE_URL": gatewayURL, "ANTHROPIC_API_KEY": "caisson",
		"CAISSON_RUN": string(x.r.ID), "CAISSON_AGENT": x.r.Agent, "CAISSON_DEADLINE": deadline.UTC().Format(time.RFC3339),
		"TRACEPARENT": "00-" + x.r.Trace + "-" + x.r.Trace[:16] + "-01",
	}
	if x.provisioner.assignment().Tools {
		env["CAISSON_TOOLS_URL"] = toolsURL
	}
	if x.repo != nil {
		env["CAISSON_REPO_URL"], env["CAISSON_REPO_BRANCH"], env["CAISSON_REPO_BASE"] = x.repo.URL, x.repo.Branch, x.repo.Start
	}
	// The agent's tools, for programs that cannot be configured in another way.
	for name, tools := range map[string][]string{"CAISSON_TOOLS_ALLOW": x.agent.Tools.Allow, "CAISSON_TOOLS_DENY": x.agent.Tools.Deny} {
		if len(tools) > 0 {
			env[name] = strings.Join(tools, ",")
		}
	}
	maps.Copy(env, x.settings.Env)
	return env
}

// grantedModels returns the models of a grant, in its order.
func (c builder) grantedModels(ctx context.Context, g *caisson.ModelGrant) ([]caisson.Model, error) {
	if g == nil {
		return nil, nil
	}
	all, err := c.Models.ListModels(ctx)
	if err != nil {
		return nil, err
	}
	var list []caisson.Model
	for _, alias := range g.Models {
		for _, m := range all {
			if m.Alias == alias {
				list = append(list, m.Model)
			}
		}
	}
	return list, nil
}

// execute gives the prompt to the agent and records its events.
func (x turn) execute(ctx context.Context, deadline time.Time) error {
	if x.r.Request.Interactive {
		return converse(ctx, x, deadline)
	}
	t, err := x.task(ctx, deadline)
	if err != nil {
		return err
	}
	if !x.removable {
		if x.pids, err = x.c.guestExec.pids(ctx, x.sandbox.ID); err != nil {
			return err
		}
	}
	logs, err := x.openLogs()
	if err != nil {
		return err
	}
	defer logs.close()
	x.start()
	x.result.Versions["driver"] = t.Driver
	x.version(map[string]string{"agent": x.agent.Version})
	end, err := x.c.guestExec.runDriver(ctx, x.sandbox.ID, t, func(l *task.Line) { x.handleLine(l, logs) })
	x.phase("agent")
	x.result.Stdout, x.result.Stderr = logs.size(caisson.LogStdout), logs.size(caisson.LogStderr)
	if errors.Is(err, errDeadline) && !x.prompted && x.agent.Ready != "" {
		return failf(caisson.RunTimeout, "the agent's service was not ready within the run's time of %s; give it more with --timeout", x.r.Limits.Time)
	}
	if err != nil {
		return err
	}
	x.prompted = true
	x.result.Exit, x.result.Cut = end.Exit, x.result.Cut || end.Cut || logs.cut
	x.version(map[string]string{"agent": end.Agent})
	if end.Error != nil {
		return &failure{code: x.errorCode(end.Error), msg: end.Error.Message, fromAgent: true}
	}
	if x.answer.Len() == 0 {
		return &failure{code: caisson.RunAgentError, msg: "the agent ended without an answer", fromAgent: true}
	}
	return nil
}

// errorCode returns the specific code of an agent's failure: most agents only report that a model call failed.
func (x turn) errorCode(e *caisson.RunError) string {
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

// handleLine processes one line of the driver's output.
func (x turn) handleLine(l *task.Line, logs *logs) {
	switch l.Type {
	case task.LineLog:
		logs.write(l.Stream, l.Data)
	case task.LineMark:
		if l.Mark == task.MarkPrompt {
			x.prompted = true
			x.phase("prompt")
		}
	case task.LineChanges:
		x.result.Changes, x.result.Patch = l.Changes, l.Patch
	case caisson.EventFinal, task.LineEnd, caisson.EventUsage:
		// The answer is the concatenation of all text, and the usage is read from the ledger.
	default:
		// The driver keeps to the output limit; a program that exceeds it is not the driver.
		x.eventBytes += int64(eventSize + len(l.Delta) + len(l.Label) + len(l.Result) + len(l.Args))
		if x.eventBytes > int64(x.r.Limits.Output)+outputSlack {
			x.result.Cut = true
			return
		}
		x.answer.WriteString(l.Delta)
		x.rec.add(l.RunEvent)
	}
}

// Each event counts as eventSize bytes plus its text, which is less than its encoded line; outputSlack allows for
// events that do not come from the agent.
const (
	eventSize   = 32
	outputSlack = 64 << 10
)

// runDriver lets the driver in a sandbox execute a task, and calls say for each line of its output except the last, which
// it returns.
func (c guestExec) runDriver(ctx context.Context, box caisson.ID, t *task.Task, say func(*task.Line)) (*task.Line, error) {
	data, err := task.Encode(t)
	if err != nil {
		return nil, caisson.Wrap(err, caisson.Invalid, "%v", err)
	}
	p, err := c.Sandboxes.Processes.Exec(ctx, string(box), caisson.ExecRequest{Command: []string{task.Program, "drive"}, Stdin: true, Workdir: "/"})
	if err != nil {
		return nil, err
	}
	defer p.Close()
	go func() {
		_, err := p.Stdin().Write(append(data, '\n'))
		if err = errors.Join(err, p.Stdin().Close()); err != nil {
			c.Log.DebugContext(ctx, "a task could not be sent to its sandbox", "sandbox", box, "err", err)
		}
	}()
	stderr := make(chan string, 1)
	go func() { stderr <- tail.Read(p.Stderr(), maxShownOutput) }()
	// On cancellation, the driver is signalled to stop, for which it gives the agent the grace period; if it does not
	// exit, closing the exec session kills it.
	ended := make(chan struct{})
	defer close(ended)
	defer context.AfterFunc(ctx, func() {
		sctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), signalTimeout)
		defer cancel()
		if err := p.Signal(sctx, int(unix.SIGTERM)); err != nil {
			c.Log.DebugContext(ctx, "the program in a sandbox could not be signalled", "sandbox", box, "err", err)
		}
		select {
		case <-ended:
		case <-time.After(2 * c.Limits.Grace):
			p.Close()
		}
	})()
	r := task.NewReader(p.Stdout(), t.Output)
	for {
		l, err := r.Next()
		switch {
		case err != nil && ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case errors.Is(err, io.ErrUnexpectedEOF):
			why := endReason(ctx, p)
			select {
			case said := <-stderr:
				if said = strings.TrimSpace(said); said != "" {
					why += "; its last words were " + strconv.Quote(said)
				}
			case <-time.After(reasonTimeout): // a process that the driver has started holds the stream open
			}
			return nil, &failure{code: caisson.RunAgentError, msg: why}
		case err != nil:
			p.Close()
			return nil, &failure{code: caisson.RunAgentError, msg: "what came out of the sandbox makes no sense", err: err}
		case l.Type == task.LineEnd:
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			return &l, nil
		}
		say(&l)
	}
}

// endReason returns why the driver in a sandbox has ended too early.
func endReason(ctx context.Context, p caisson.Process) string {
	ctx, cancel := context.WithTimeout(ctx, reasonTimeout)
	defer cancel()
	status, err := p.Wait(ctx)
	switch {
	case err == nil && !status.Unknown:
		return "the driver in the agent's sandbox " + status.String() + " before the agent had ended"
	case err == nil && status.Reason != "":
		return "the agent's sandbox ended before the agent did: " + status.Reason
	}
	return "the agent's sandbox ended before the agent did, and nothing says why"
}

const (
	reasonTimeout  = 2 * time.Second // timeout for reading the reason why a sandbox ended
	maxShownOutput = 400             // maximum size in bytes of the part of a driver's output that is shown in an error
)

// pids returns the processes in a sandbox.
func (c guestExec) pids(ctx context.Context, box caisson.ID) (map[int]bool, error) {
	list, err := c.Sandboxes.Processes.ListProcesses(ctx, string(box))
	if err != nil {
		return nil, err // not an empty set: all its processes would count as the agent's
	}
	pids := make(map[int]bool, len(list))
	for _, p := range list {
		pids[p.PID] = true
	}
	return pids, nil
}

// logs are the files with the output of the agent's program.
type logs struct {
	files map[string]*os.File // by stream
	sizes map[string]int64    // bytes written, by stream
	limit int64               // maximum size of one file, in bytes
	cut   bool                // some output was not written
}

// openLogs creates the log files of an attempt.
func (x turn) openLogs() (*logs, error) {
	dir := path.Join(runDir(x.r.ID), strconv.Itoa(x.r.Attempt))
	if err := x.c.Dir.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	l := &logs{files: map[string]*os.File{}, sizes: map[string]int64{}, limit: int64(x.r.Limits.Output)}
	for _, stream := range []string{caisson.LogStdout, caisson.LogStderr} {
		f, err := x.c.Dir.OpenFile(path.Join(dir, stream), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
		if err != nil {
			l.close()
			return nil, err
		}
		l.files[stream] = f
	}
	return l, nil
}

// write appends data up to the size limit. An error does not end the run; it sets cut.
func (l *logs) write(stream string, data []byte) {
	f := l.files[stream]
	if f == nil {
		return
	}
	if room := l.limit - l.sizes[stream]; int64(len(data)) > room {
		data, l.cut = data[:max(0, room)], true
	}
	n, err := f.Write(data)
	l.sizes[stream] += int64(n)
	l.cut = l.cut || err != nil
}

func (l *logs) size(stream string) caisson.Size { return caisson.Size(l.sizes[stream]) }

func (l *logs) close() {
	for _, f := range l.files {
		f.Close()
	}
}
