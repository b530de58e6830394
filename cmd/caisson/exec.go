package main

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
)

// startFlags are the flags for a new process in an existing sandbox, or in a new one.
type startFlags struct {
	Rm      bool             `help:"Create a sandbox from a template or image, and remove it afterwards."`
	Env     []string         `help:"Set an environment variable, or pass one on from the environment; may be repeated." short:"e" placeholder:"NAME[=VALUE]" sep:"none"`
	Workdir string           `help:"Directory to run in." short:"w" placeholder:"DIR"`
	User    string           `help:"User inside: name, uid or uid:gid." short:"u" placeholder:"USER"`
	Timeout caisson.Duration `positive:"" help:"Kill the process after this time; the exit code is then 124." placeholder:"DURATION"`
	sandboxFlags
	registryLogin
}

// request returns req with the environment, working directory, user and time limit that the flags specify. Usage errors refer
// to the help of the command, "exec" or "shell".
func (s *startFlags) request(a *app, command string, req caisson.ExecRequest) (_ caisson.ExecRequest, err error) {
	if !s.Rm && !reflect.ValueOf(s.sandboxFlags).IsZero() {
		return req, usagef(command, "flags for a new sandbox need --rm")
	}
	req.Workdir, req.User, req.Timeout = s.Workdir, s.User, s.Timeout
	req.Env, err = a.parseEnv(s.Env)
	return req, err
}

// exec runs req in the sandbox target. With --rm, target is a template or image: exec runs req in a new sandbox of it, which it
// removes afterwards.
func (s *startFlags) exec(ctx context.Context, a *app, api api, target string, req caisson.ExecRequest) error {
	if s.Rm {
		m := sandboxCreator{app: a, api: api, login: s.registryLogin, flags: s.sandboxFlags}
		sb, err := m.create(ctx, target, caisson.CreateRequest{})
		if err != nil {
			return err
		}
		defer removeCreated(ctx, a, api, sb.ID)
		target = string(sb.ID)
	}
	err := execIn(ctx, a, api, target, req)
	if isNotFound(err) && !s.Rm {
		return caisson.Wrap(err, caisson.NotFound, "%s; to make one from a template or image for this program alone: --rm", newErrorReport(err).Message)
	}
	return err
}

// execCmd runs a program.
type execCmd struct {
	Target      string   `arg:"" name:"sandbox|template" help:"Sandbox; with --rm a template or image." complete:"sandbox"`
	Command     []string `arg:"" passthrough:"" help:"Program and arguments."`
	Interactive bool     `help:"Pass standard input to the program." short:"i"`
	TTY         bool     `name:"tty" help:"Allocate a terminal." short:"t"`
	Detach      bool     `help:"Run it in the background and print its process id; its output is discarded." short:"d"`
	// DetachKeys has no default, unlike the flag of caisson attach: without it, the program ends with this command.
	DetachKeys detachKeys `help:"With -it: keys that detach from the program, such as ctrl-p,ctrl-q. It continues to run, even if this command is killed; caisson attach attaches to it again." placeholder:"KEYS"`
	startFlags
}

func (c *execCmd) Help() string {
	return `The exit code is the program's: 128 plus the signal's number if a signal ended it, 124 after --timeout.
Without a terminal, Ctrl-C is passed on as SIGINT; a second one kills the program.

` + examples("caisson exec --rm host -- sh -c 'id; uname -a'", "caisson exec -it web -- bash", "caisson exec -it --detach-keys ctrl-p,ctrl-q web -- bash",
		"tar c src | caisson exec -i web -- tar x -C /work", "caisson exec --rm --timeout 1m debian:12 -- apt-get --version",
		"caisson exec -d web -- python3 -m http.server")
}

// ProvideRequest returns the request that the flags specify.
func (c *execCmd) ProvideRequest(a *app) (caisson.ExecRequest, error) {
	req := caisson.ExecRequest{Command: trimDashes(c.Command), TTY: c.TTY, Stdin: c.Interactive, Detach: c.Detach}
	switch {
	case len(req.Command) == 0:
		return req, usagef("exec", "there is no command to run; write it after --")
	case c.Detach && (c.TTY || c.Interactive):
		return req, usagef("exec", "-d excludes -i and -t")
	case c.Detach && c.Rm:
		return req, usagef("exec", "-d and --rm exclude each other: the sandbox would be removed at once")
	case c.DetachKeys != "" && (!c.TTY || !c.Interactive):
		return req, usagef("exec", "--detach-keys needs -it")
	case c.DetachKeys != "" && (c.Rm || c.Timeout != 0):
		return req, usagef("exec", "--detach-keys excludes --rm and --timeout: the program is to run on")
	case c.TTY && c.Interactive && !isTerminal(a.in):
		return req, usagef("exec", "standard input is not a terminal; leave out -t")
	}
	return c.request(a, "exec", req)
}

func (c *execCmd) Run(ctx context.Context, a *app, req caisson.ExecRequest, api api) error {
	if c.DetachKeys != "" {
		return execAtTerminal(ctx, a, api, c.Target, req, c.DetachKeys)
	}
	return c.exec(ctx, a, api, c.Target, req)
}

// shellCmd opens a shell.
type shellCmd struct {
	Target string `arg:"" name:"sandbox|template" help:"Sandbox; with --rm a template or image." complete:"sandbox"`
	Shell  string `help:"Program; default bash where there is one, else sh." placeholder:"PROGRAM"`
	startFlags
}

func (c *shellCmd) Help() string {
	return examples("caisson shell web", "caisson shell --rm host", "caisson shell --shell zsh -u 1000 web")
}

// ProvideRequest returns the request that the flags specify.
func (c *shellCmd) ProvideRequest(a *app) (caisson.ExecRequest, error) {
	command := []string{"/bin/sh", "-c", "command -v bash >/dev/null 2>&1 && exec bash -l; exec sh -l"}
	if c.Shell != "" {
		command = []string{c.Shell}
	}
	return c.request(a, "shell", caisson.ExecRequest{Command: command, Stdin: true, TTY: isTerminal(a.in)})
}

func (c *shellCmd) Run(ctx context.Context, a *app, req caisson.ExecRequest, api api) error {
	return c.exec(ctx, a, api, c.Target, req)
}

// removeCreated removes a sandbox that this command has created, even if the command was interrupted.
func removeCreated(ctx context.Context, a *app, api api, id caisson.ID) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	if err := api.Remove(ctx, string(id)); err != nil && caisson.KindOf(err) != caisson.NotFound {
		a.infof("caisson: sandbox %s is still there: %s", id, newErrorReport(err).Message)
	}
}

// execIn runs req in a sandbox, connected to this program's streams. If the process fails, it returns a [processExit].
func execIn(ctx context.Context, a *app, api api, ref string, req caisson.ExecRequest) error {
	if req.TTY {
		req.Rows, req.Cols = terminalSize(a.in, a.out)
	}
	p, err := api.Exec(ctx, ref, req)
	if err != nil {
		return err
	}
	if req.Detach {
		defer p.Close()
		return printDone(a, startedProcess{p.PID()}, fmt.Sprint(p.PID()))
	}
	status, err := console{a}.attach(ctx, p, req)
	if err != nil {
		return err
	}
	return console{a}.exitError(status)
}

// startedProcess is the output of exec -d with -o json.
type startedProcess struct {
	PID int `json:"pid"`
}

// exitError returns the error of this command for the exit status of a process: nil if the process succeeded, a [processExit] if
// it failed or was killed, another error if the status is unknown.
func (a console) exitError(s caisson.ExitStatus) error {
	switch {
	case s.Unknown && s.Reason != "":
		return errors.New(s.Reason)
	case s.Unknown:
		return errors.New("the exit status of the process is unknown")
	case s.Reason == "time limit":
		a.infof("caisson: the process reached its time limit")
		return processExit(exitTimeout)
	case s.Reason != "":
		a.infof("caisson: the process was killed: %s", safetext.Escape(s.Reason))
	}
	switch {
	case s.Signal != 0:
		return processExit(128 + s.Signal)
	case s.Code != 0:
		return processExit(s.Code & 0xff)
	}
	return nil
}

// attach connects p to this program's streams until p exits, and returns the exit status of p.
func (a console) attach(ctx context.Context, p caisson.Process, req caisson.ExecRequest) (caisson.ExitStatus, error) {
	defer p.Close()
	if req.TTY && req.Stdin {
		restore, err := a.rawTerminal(ctx, p)
		if err != nil {
			return caisson.ExitStatus{}, err
		}
		defer restore()
	} else {
		defer a.forwardInterrupts(ctx, p)()
	}
	if req.Stdin {
		go a.copyInput(p)
	}
	mode := safetext.Log
	if req.TTY {
		mode = safetext.Screen
	}
	errs := make(chan error, 2)
	go func() { errs <- a.copyOutput(a.out, p, p.Stdout(), mode) }()
	go func() { errs <- a.copyOutput(a.err, p, p.Stderr(), mode) }()
	if err := errors.Join(<-errs, <-errs); err != nil {
		return caisson.ExitStatus{}, err
	}
	return p.Wait(ctx)
}
