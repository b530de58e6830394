package runs

import (
	"cmp"
	"context"
	"errors"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
)

// interactiveTime is the time limit of an interactive run whose request sets none. It is long, because people leave terminals
// and come back.
const interactiveTime = caisson.Duration(30 * 24 * time.Hour)

// checkPrompt checks that a request has a prompt, or is for an interactive run of an agent that can be used at a terminal.
func checkPrompt(req *caisson.RunRequest, a *caisson.Agent) error {
	switch {
	case !req.Interactive && req.Prompt == "":
		return caisson.Invalidf("prompt", "is empty; write what the agent is to do")
	case !req.Interactive:
		return nil
	case len(a.Interactive) == 0:
		return caisson.Invalidf("interactive", "agent %s has no interface for a terminal; give it a prompt", a.ID)
	case req.Prompt != "" || len(req.History) > 0:
		return caisson.Invalidf("prompt", "an interactive run has none; type it at the terminal")
	case req.Session != "":
		return caisson.Invalidf("session", "an interactive run is no part of a conversation")
	}
	return nil
}

// interactive lets people use the agent's own interface at a terminal in the sandbox, instead of a turn with a prompt.
type interactive struct {
	runs      caisson.RunStore
	builder   *builder          // builds the templates of agents
	turns     *turns            // gives prompts to agents
	lifecycle caisson.Sandboxes // creates, changes and removes sandboxes
	terminals caisson.Terminals
	files     caisson.Files // files in sandboxes
	guestExec *guestExec    // executes programs in sandboxes
	grace     time.Duration // time that an agent has to exit after a request to stop
}

// execute opens the terminal of the attempt, unless an earlier daemon has opened it, and waits for the end of the terminal's
// program.
func (i *interactive) execute(ctx context.Context, x *attempt, deadline time.Time) error {
	x.box.prompted = true
	x.clock.start()
	defer x.clock.phase("agent")
	x.addVersions(map[string]string{"driver": "interactive", "agent": x.agent.Version})
	box, terminal := x.box.sandbox.ID, x.r.Terminal
	if terminal == "" {
		if err := i.guestExec.recordProcesses(ctx, x); err != nil {
			return err
		}
		t, err := i.turns.task(ctx, x, deadline)
		if err != nil {
			return err
		}
		if terminal, err = i.open(ctx, box, x.agent, t.Files, caisson.TerminalRequest{Command: x.plan.Command, Env: t.Env, Keep: true}); err != nil {
			return err
		}
		// From now on the run continues under another daemon if this one ends.
		if _, err := x.update(context.WithoutCancel(ctx), func(r *caisson.Run) { r.Terminal = terminal }); err != nil {
			return err
		}
	}
	x.status("interactive", string(terminal))
	exit, err := i.wait(ctx, box, terminal)
	if err != nil {
		return err
	}
	if err := i.remove(ctx, box, terminal); err != nil { // the terminal was kept only until its exit status was read
		x.log.WarnContext(ctx, "the terminal of an interactive run could not be removed", "sandbox", box, "err", err)
	}
	x.result.Exit = &exit
	if exit.Code == 126 || exit.Code == 127 {
		return &failure{code: caisson.RunAgentError, msg: "the agent's interactive command cannot be started; it " + exit.String(), fromAgent: true}
	}
	return nil
}

// rejoin continues an attempt whose agent is already running at a terminal that an earlier daemon opened. It does so even if
// the agent's catalog entry or its models have changed, because the gateway checks each call. The sandbox is looked up even if
// the attempt was cancelled in the meantime, so that the program and the sandbox end with the attempt.
func (i *interactive) rejoin(ctx context.Context, x *attempt) error {
	x.clock.phase("queue")
	clean := context.WithoutCancel(ctx)
	r, err := i.runs.Get(clean, caisson.In(x.r.Account), x.r.ID)
	if err != nil {
		return err // x.r stays set, because the result is stored under the id of the run.
	}
	x.r, x.plan = r, cmp.Or(r.Plan, &caisson.RunPlan{})
	x.box.removable = !r.Request.Keep
	if x.agent, err = i.builder.complete(clean, r.Agent); err != nil {
		x.agent = &caisson.Agent{ID: r.Agent, Workdir: x.plan.Env["CAISSON_WORKSPACE"]}
	}
	if x.box.sandbox, err = i.sandbox(clean, r.Sandbox); err != nil {
		return err
	}
	if r.Request.Repo != nil {
		x.box.repo = &caisson.RepoGrant{} // an earlier daemon granted access before it opened the terminal
	}
	if r.Request.Keep {
		x.box.earlierPIDs = map[int]bool{} // the agent's processes are unknown, so at the end none is spared as an earlier one
	}
	x.addVersions(map[string]string{"digest": x.box.sandbox.Spec.Digest})
	ctx, cancel := context.WithDeadlineCause(ctx, r.Deadline, errDeadline)
	defer cancel()
	return i.execute(ctx, x, r.Deadline)
}

// sandbox returns the agent's sandbox, and an error if it was removed or has ended, so that the agent cannot be running in it.
func (i *interactive) sandbox(ctx context.Context, id caisson.ID) (*caisson.Sandbox, error) {
	sb, err := i.lifecycle.Get(ctx, string(id))
	switch {
	case caisson.KindOf(err) == caisson.NotFound:
		return nil, failf(caisson.RunAgentError, "the agent's sandbox was removed before the agent ended")
	case err != nil:
		return nil, err
	case sb.State == caisson.Stopped || sb.State == caisson.Failed || sb.State == caisson.Removing:
		return sb, failf(caisson.RunAgentError, "the agent's sandbox ended before the agent did: it is %s", sb.State)
	}
	return sb, nil
}

// open writes the files that the agent needs, and starts its command at a terminal.
func (i *interactive) open(ctx context.Context, box caisson.ID, a *caisson.Agent, files []caisson.SeedFile, req caisson.TerminalRequest) (caisson.ID, error) {
	if err := seed(ctx, i.files, box, files); err != nil {
		return "", err
	}
	if err := i.files.MakeDir(ctx, string(box), path.Clean(a.Workdir), true); err != nil && caisson.KindOf(err) != caisson.Conflict {
		return "", err
	}
	req.Workdir = a.Workdir
	t, err := i.terminals.CreateTerminal(ctx, string(box), req)
	if err != nil {
		return "", err
	}
	return t.ID, nil
}

// waitInterval is the time between two tries to view the terminal, for example if its sandbox is suspended.
const waitInterval = time.Second

// wait waits for the end of the terminal's program. The sandbox may be suspended or paused in the meantime. If ctx ends, the
// program is killed; but if ctx ends because the daemon stops, the program keeps running, and the next daemon waits for it.
func (i *interactive) wait(ctx context.Context, box, terminal caisson.ID) (caisson.ExitStatus, error) {
	for {
		exit, err := i.view(ctx, box, terminal)
		if err == nil && !exit.Unknown {
			return exit, nil
		}
		if ctx.Err() == nil {
			switch sb, gone := i.sandbox(ctx, box); {
			case gone != nil && ctx.Err() == nil:
				return exit, gone
			case gone == nil && sb.State == caisson.Running && caisson.KindOf(err) == caisson.NotFound && i.isTerminalLost(ctx, box, terminal):
				return exit, failf(caisson.RunAgentError, "the agent's terminal is gone")
			}
		}
		select {
		case <-time.After(waitInterval):
		case <-ctx.Done():
			if cause := context.Cause(ctx); cause == errClosing {
				return exit, cause
			}
			return exit, errors.Join(context.Cause(ctx), i.kill(context.WithoutCancel(ctx), box, terminal))
		}
	}
}

// isTerminalLost reports whether the sandbox lists its terminals and the given terminal is not in the list. An error of a
// request to view the terminal does not prove that, because it may have other causes.
func (i *interactive) isTerminalLost(ctx context.Context, box, terminal caisson.ID) bool {
	list, err := i.terminals.ListTerminals(ctx, string(box))
	return err == nil && !slices.ContainsFunc(list, func(t caisson.Terminal) bool { return t.ID == terminal })
}

// kill removes the terminal, which kills its program, and waits up to i.grace for the end of the program, because the program's
// changes are read afterwards.
func (i *interactive) kill(ctx context.Context, box, terminal caisson.ID) error {
	ctx, cancel := context.WithTimeout(ctx, i.grace)
	defer cancel()
	p, err := i.terminals.AttachTerminal(ctx, string(box), terminal, caisson.AttachRequest{ReadOnly: true})
	if err != nil {
		return i.remove(context.WithoutCancel(ctx), box, terminal)
	}
	defer p.Close()
	if err := i.remove(context.WithoutCancel(ctx), box, terminal); err != nil {
		return err
	}
	_ = drain(ctx, p)
	return nil
}

// remove removes the terminal, which kills its program.
func (i *interactive) remove(ctx context.Context, box, terminal caisson.ID) error {
	ctx, cancel := context.WithTimeout(ctx, signalTimeout)
	defer cancel()
	return caisson.IgnoreNotFound(i.terminals.RemoveTerminal(ctx, string(box), terminal))
}

// view attaches to the terminal as a viewer until its program ends or the connection is lost.
func (i *interactive) view(ctx context.Context, box, terminal caisson.ID) (caisson.ExitStatus, error) {
	p, err := i.terminals.AttachTerminal(ctx, string(box), terminal, caisson.AttachRequest{ReadOnly: true})
	if err != nil {
		return caisson.ExitStatus{Unknown: true}, err
	}
	defer p.Close()
	if err := drain(ctx, p); err != nil {
		return caisson.ExitStatus{Unknown: true}, err
	}
	return p.Wait(ctx)
}

// drain reads and discards the output of p until its end. If ctx ends, it closes p.
func drain(ctx context.Context, p caisson.Process) error {
	defer context.AfterFunc(ctx, func() { p.Close() })()
	_, err := io.Copy(io.Discard, p.Stdout())
	return err
}

// seed writes files to a sandbox.
func seed(ctx context.Context, to caisson.Files, box caisson.ID, files []caisson.SeedFile) error {
	for _, f := range files {
		if _, err := to.WriteFile(ctx, string(box), f.Path, cmp.Or(f.Mode, 0o644), strings.NewReader(f.Data)); err != nil {
			return err
		}
	}
	return nil
}

// survives reports whether a run continues when its daemon ends: its agent is running at a terminal in the sandbox.
func survives(r *caisson.Run) bool { return r.State == caisson.RunRunning && r.Terminal != "" }
