package main

import (
	"context"
	"os"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
)

// runCmd starts a run of an agent. Interact and TTY must be set together: then the run is interactive.
type runCmd struct {
	Agent     string           `arg:"" help:"Id of the agent; see agent ls." complete:"agent"`
	Prompt    []string         `arg:"" optional:"" help:"The task; without it, the task is read from --file or standard input."`
	File      string           `help:"Read the prompt from a file; - is standard input." short:"f" placeholder:"FILE" complete:"file"`
	Directory string           `help:"Work on this directory. The agent's changes are kept separately until they are applied with sync." short:"C" placeholder:"DIR" complete:"file"`
	Volume    string           `help:"Work in this volume, which is made if there is none of that name. What the agent writes stays there." placeholder:"NAME" complete:"volume"`
	Model     string           `help:"Alias of the model to use." placeholder:"ALIAS" complete:"model"`
	Image     string           `help:"Image instead of the agent's." placeholder:"REF" complete:"image"`
	Persona   string           `help:"Persona of the agent, if it has several." placeholder:"ID"`
	Session   string           `help:"Start or continue the conversation with this name." placeholder:"KEY"`
	User      string           `help:"Person for whom the run is; a name of your choice." placeholder:"NAME"`
	Env       []string         `help:"Set an environment variable, or pass one on from the environment; may be repeated." short:"e" placeholder:"NAME[=VALUE]" sep:"none"`
	Label     []string         `help:"Add a label; may be repeated." short:"l" placeholder:"KEY=VALUE" sep:"none"`
	MaxCost   string           `help:"What its calls of models may cost, in dollars: 5 or 0.25." placeholder:"USD"`
	MaxTokens string           `help:"Maximum number of tokens of its model calls: 200000, 200k or 1M." placeholder:"N"`
	MaxCalls  string           `help:"Maximum number of its model calls." placeholder:"N"`
	Timeout   caisson.Duration `positive:"" help:"Stop the run after this time." placeholder:"DURATION"`
	Memory    caisson.Size     `positive:"" help:"Limit of memory: 512M, 2GiB." placeholder:"SIZE"`
	Policy    string           `help:"Egress policy, as YAML (see policy set); like --allow and --deny, it replaces that of the agent." placeholder:"FILE" complete:"file"`
	Allow     []string         `help:"Allow connections to a preset or TARGET[:PORTS][/udp]; may be repeated." placeholder:"SPEC" sep:"none"`
	Deny      []string         `help:"Keep it from a destination, before all that is allowed; may be repeated." placeholder:"SPEC" sep:"none"`
	Keep      bool             `help:"Keep the sandbox when the run has ended."`
	Interact  bool             `name:"interactive" help:"Use the agent's own interface at this terminal, instead of giving it a prompt; needs -t. Ctrl-P Ctrl-Q detaches, and the run continues." short:"i"`
	TTY       bool             `name:"tty" help:"With -i." short:"t"`
	Detach    bool             `help:"Print the id of the run and leave it running." short:"d"`
	gatewayFlags
	workspaceFlags
	repoFlags
}

func (c *runCmd) Help() string {
	return `Progress is shown on standard error, the answer is written to standard output. The exit code is 0 only if the run has
succeeded: 8 says that there was no credit left, 9 that it was cancelled, 10 that the agent failed, 11 that a
provider of models failed, 124 that the run reached its time limit.
Ctrl-C cancels the run and keeps its record; a second one leaves at once.

With -o json the record is printed when the run has ended, with -o jsonl each event as it comes.

` + examples(`caisson run caisson "explain what is in /etc/os-release"`, `caisson run openclaw -C ~/project "fix the flaky test"`, "caisson run -it claude-code -C .",
		"caisson run caisson -C . --sync yolo 'fix the tests'", "git diff | caisson run caisson --model small --max-cost 0.10 -o json", "caisson run openclaw --session review -d --file task.md",
		"caisson run caisson --repo web --pr 'fix the tests'", "caisson run caisson --volume notes 'add what you have learned to notes.md'",
		"caisson run caisson --allow npm --timeout 5m 'update the dependencies'")
}

func (c *runCmd) Run(ctx context.Context, a *app, req caisson.RunRequest, api api) error {
	if c.Directory != "" {
		done, err := a.prepareWorkspace(&req, c.Directory, &c.workspaceFlags, func() (caisson.Size, error) {
			info, err := api.Info(ctx)
			if err != nil {
				return 0, err
			}
			return info.Upload, nil
		})
		if err != nil {
			return err
		}
		defer done()
	} else if c.workspaceFlags.anySet() {
		return usagef("run", "--workspace-kind, --sync and --show-hidden need -C")
	}
	if err := storeKeys(ctx, a, api, c.Agent, c.Model); err != nil {
		return err
	}
	if c.Volume != "" {
		a.infof("caisson: working in the volume %s", req.Source)
	}
	if c.Interact {
		return interactiveRun{a, api}.start(ctx, req, c.Detach)
	}
	return runConsole{a, api}.startAndFollow(ctx, c.Detach, func(ctx context.Context) (*caisson.Run, error) { return api.StartRun(ctx, req) })
}

// ProvideRequest returns the request that the flags specify.
func (c *runCmd) ProvideRequest(a *app) (req caisson.RunRequest, err error) {
	req = caisson.RunRequest{
		Agent: c.Agent, Persona: c.Persona, Model: c.Model, Image: c.Image, Session: c.Session, User: c.User, Keep: c.Keep,
		Limits: caisson.AgentLimits{Time: c.Timeout, Memory: c.Memory},
	}
	switch {
	case c.Interact != c.TTY:
		return req, usagef("run", "-i and -t go together: -it uses the agent's own interface at this terminal")
	case c.Interact && (len(c.Prompt) > 0 || c.File != ""):
		return req, usagef("run", "with -it there is no prompt; type it at the agent's terminal. For a program in a new sandbox: caisson exec --rm -it IMAGE -- PROGRAM")
	case c.Interact && !c.Detach && !isTerminal(a.in):
		return req, usagef("run", "standard input is not a terminal; leave out -it, or use -d and caisson attach")
	case c.Interact:
		req.Interactive = true
	default:
		if req.Prompt, err = c.prompt(a); err != nil {
			return req, err
		}
	}
	limits, err := parseLimits(limitFlag{"--max-cost", c.MaxCost}, limitFlag{"--max-tokens", c.MaxTokens}, limitFlag{"--max-calls", c.MaxCalls})
	if err != nil {
		return req, err
	}
	if c.gatewayFlags.anySet() {
		if req.Gateway, err = c.gatewayUse(); err != nil {
			return req, err
		}
	}
	req.Limits.Cost, req.Limits.Tokens, req.Limits.Calls = limits.USD, limits.Tokens, limits.Calls
	if req.Env, err = a.parseEnv(c.Env); err != nil {
		return req, err
	}
	if err := c.useVolume(&req); err != nil {
		return req, err
	}
	if req.Repo, err = c.repoFlags.request(c.Directory); err != nil {
		return req, err
	}
	if req.Labels, err = parseLabels(c.Label); err != nil {
		return req, err
	}
	req.Policy, err = a.policyFrom(c.Policy, c.Allow, c.Deny)
	return req, err
}

// useVolume makes the volume of the flag --volume the workspace of the run. It does nothing if the flag was not given.
func (c *runCmd) useVolume(req *caisson.RunRequest) error {
	switch {
	case c.Volume == "":
		return nil
	case c.Directory != "" || c.Repo != "":
		return usagef("run", "work on a directory with -C, on a repository with --repo or in a volume with --volume, not on several of them")
	}
	name, target, err := parseNameTarget("volume", c.Volume)
	switch {
	case err != nil:
		return err
	case target != "":
		return caisson.Invalidf("volume", "a run has its volume where the agent works; leave out :%s", target)
	}
	req.Kind, req.Source = caisson.WorkspaceVolume, name
	return nil
}

// prompt returns the prompt from the arguments, the file or standard input.
func (c *runCmd) prompt(a *app) (string, error) {
	text := strings.Join(c.Prompt, " ")
	switch {
	case text != "" && c.File != "":
		return "", usagef("run", "give the prompt as an argument or with --file")
	case c.File == "" && text == "" && !isTerminal(a.in):
		c.File = "-"
	}
	if c.File != "" {
		data, err := a.readInput(c.File)
		if err != nil {
			return "", err
		}
		text = string(data)
	}
	if strings.TrimSpace(text) == "" {
		if strings.ContainsAny(c.Agent, " \n") {
			return "", usagef("run", "%.40q is no agent; write the agent before the prompt: caisson run AGENT PROMPT; caisson agent ls lists the agents", c.Agent)
		}
		return "", usagef("run", "there is no prompt; write it after the agent, or give --file")
	}
	return text, nil
}

const (
	// cancelTimeout is the time limit of the request that cancels a run, which returns when the run has ended.
	cancelTimeout = time.Minute
	// startGrace is how long an interrupted command waits for the response to the request that starts its run. The response
	// contains the id, without which the run cannot be cancelled.
	startGrace = 2 * time.Second
)

// runConsole shows a run on the user's terminal. The first signal from the user cancels a run that the command itself has
// started.
type runConsole struct {
	*app
	runs caisson.Runs
}

// startAndFollow starts a run with start and, unless detach is set, shows it until it ends. The first signal cancels the run, and
// startAndFollow still waits for its end; the next signal exits the program.
func (a runConsole) startAndFollow(ctx context.Context, detach bool, start func(context.Context) (*caisson.Run, error)) error {
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	started := make(chan caisson.ID, 1)
	defer a.interrupts.setHandler(func(s os.Signal) {
		a.interrupts.setCancelledBy(s)
		go func() {
			select {
			case id := <-started:
				a.cancel(ctx, id, leave)
			case <-time.After(startGrace):
				leave()
			}
		}()
	})()
	run, err := start(ctx)
	if err != nil {
		return err
	}
	if run.HiddenCount > 0 {
		a.infof("caisson: hidden from the agent: %s; use --show-hidden NAME to show a file", hiddenFiles(run.Hidden, run.HiddenCount))
	}
	if detach {
		return printDone(a.app, run, string(run.ID))
	}
	started <- run.ID
	return a.follow(ctx, run, a.startedAt)
}

// cancel cancels a run at the user's request. If that fails, the run continues, and cancel calls leave, which ends this command.
func (a runConsole) cancel(ctx context.Context, id caisson.ID, leave func()) {
	a.infof("caisson: cancelling the run %s; interrupt again to exit at once", id)
	ctx, stop := context.WithTimeout(ctx, cancelTimeout)
	defer stop()
	if _, err := a.runs.CancelRun(ctx, id); err != nil {
		a.infof("caisson: the run %s could not be cancelled: %s", id, newErrorReport(err).Message)
		leave()
	}
}
