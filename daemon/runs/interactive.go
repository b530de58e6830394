package runs

import (
	"context"
	"io"
	"path"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
)

// interactiveTime is the time limit of an interactive run for which none is requested: people leave terminals and come back.
const interactiveTime = caisson.Duration(30 * 24 * time.Hour)

// checkInteractive checks the request for a run of an agent, and sets its time limit if it is interactive.
func checkInteractive(req *caisson.RunRequest, a *caisson.Agent, limits *caisson.AgentLimits) error {
	switch {
	case !req.Interactive && req.Prompt == "":
		return caisson.Invalidf("prompt", "is empty; say what the agent is to do")
	case !req.Interactive:
		return nil
	case len(a.Interactive) == 0:
		return caisson.Invalidf("interactive", "agent %s has no interface for a terminal; give it a prompt", a.ID)
	case req.Prompt != "" || len(req.History) > 0:
		return caisson.Invalidf("prompt", "an interactive run has none; type it at the terminal")
	case req.Session != "":
		return caisson.Invalidf("session", "an interactive run is no part of a conversation")
	}
	if req.Limits.Time == 0 {
		limits.Time = interactiveTime
	}
	return nil
}

// A conversation opens the terminal of an interactive run, and waits for its end.
type conversation struct {
	boxes Sandboxes
	box   caisson.ID
	// opened stores the terminal of the run.
	opened func(ctx context.Context, terminal caisson.ID) error
}

// converse lets people use the agent's own interface, instead of a turn with a prompt. It takes over the terminal that an earlier
// daemon has opened, if there is one.
func converse(ctx context.Context, x turn, deadline time.Time) error {
	c := conversation{boxes: x.c.Sandboxes, box: x.sandbox.ID, opened: func(ctx context.Context, terminal caisson.ID) error {
		_, err := x.update(ctx, func(r *caisson.Run) { r.Terminal = terminal })
		return err
	}}
	x.prompted = true
	x.start()
	defer x.phase("agent")
	x.version(map[string]string{"driver": "interactive", "agent": x.agent.Version})
	terminal := x.r.Terminal
	if terminal == "" {
		t, err := x.task(ctx, deadline)
		if err != nil {
			return err
		}
		if terminal, err = c.open(ctx, x.agent, t.Files, caisson.TerminalRequest{Command: x.settings.Interactive, Env: t.Env}); err != nil {
			return err
		}
	}
	x.status("interactive", string(terminal))
	exit, err := c.wait(ctx, terminal)
	if err != nil {
		return err
	}
	x.result.Exit = &exit
	if exit.Code == 126 || exit.Code == 127 {
		return &failure{code: caisson.RunAgentError, msg: "the agent's interactive command cannot be started; it " + exit.String(), fromAgent: true}
	}
	return nil
}

// open writes the files that the agent needs, and starts its command at a terminal.
func (c conversation) open(ctx context.Context, a *caisson.Agent, files []caisson.SeedFile, req caisson.TerminalRequest) (caisson.ID, error) {
	if err := seed(ctx, c.boxes.Files, c.box, files); err != nil {
		return "", err
	}
	if err := c.boxes.Files.MakeDir(ctx, string(c.box), path.Clean(a.Workdir), true); err != nil && caisson.KindOf(err) != caisson.Conflict {
		return "", err
	}
	req.Workdir = a.Workdir
	t, err := c.boxes.Terminals.CreateTerminal(ctx, string(c.box), req)
	if err != nil {
		return "", err
	}
	return t.ID, c.opened(ctx, t.ID)
}

// waitInterval is how often it is checked whether a sandbox that does not run does so again.
const waitInterval = time.Second

// wait waits for the end of the terminal's program. The sandbox may be suspended or paused in the meantime. If ctx ends, the program
// is killed, unless the daemon stops: then the next one waits for it.
func (c conversation) wait(ctx context.Context, terminal caisson.ID) (caisson.ExitStatus, error) {
	for {
		exit, err := c.view(ctx, terminal)
		if err == nil && !exit.Unknown {
			return exit, nil
		}
		if ctx.Err() == nil {
			sb, gerr := c.boxes.Lifecycle.Get(ctx, string(c.box))
			switch {
			case gerr != nil:
				return exit, gerr
			case sb.State == caisson.Stopped || sb.State == caisson.Failed || sb.State == caisson.Removing:
				return exit, failf(caisson.RunAgentError, "the agent's sandbox ended before the agent did: it is %s", sb.State)
			case sb.State == caisson.Running && caisson.KindOf(err) == caisson.NotFound:
				return exit, failf(caisson.RunAgentError, "the agent's terminal is gone")
			}
		}
		select {
		case <-time.After(waitInterval):
		case <-ctx.Done():
			if cause := context.Cause(ctx); cause == errClosing {
				return exit, cause
			}
			clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), signalTimeout)
			defer cancel()
			if err := c.boxes.Terminals.RemoveTerminal(clean, string(c.box), terminal); err != nil && caisson.KindOf(err) != caisson.NotFound {
				return exit, err
			}
			return exit, context.Cause(ctx)
		}
	}
}

// view views the terminal until its program ends or the connection is lost.
func (c conversation) view(ctx context.Context, terminal caisson.ID) (caisson.ExitStatus, error) {
	p, err := c.boxes.Terminals.AttachTerminal(ctx, string(c.box), terminal, caisson.AttachRequest{ReadOnly: true})
	if err != nil {
		return caisson.ExitStatus{Unknown: true}, err
	}
	defer p.Close()
	defer context.AfterFunc(ctx, func() { p.Close() })()
	if _, err := io.Copy(io.Discard, p.Stdout()); err != nil {
		return caisson.ExitStatus{Unknown: true}, err
	}
	return p.Wait(ctx)
}

// seed writes files in a sandbox.
func seed(ctx context.Context, to caisson.Files, box caisson.ID, files []caisson.SeedFile) error {
	for _, f := range files {
		mode := f.Mode
		if mode == 0 {
			mode = 0o644
		}
		if _, err := to.WriteFile(ctx, string(box), f.Path, mode, strings.NewReader(f.Data)); err != nil {
			return err
		}
	}
	return nil
}

// survives reports whether a run continues under another daemon: the agent is at its terminal in the sandbox.
func survives(r *caisson.Run) bool { return r.State == caisson.RunRunning && r.Terminal != "" }

// rejoin takes over the sandbox of a run that survives.
func rejoin(ctx context.Context, x *attempt) (deadline time.Time, err error) {
	x.sandbox, err = x.c.Sandboxes.Lifecycle.Get(ctx, string(x.r.Sandbox))
	x.removable = !x.r.Request.Keep
	return x.r.Deadline, err
}
