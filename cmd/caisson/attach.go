package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
)

// defaultDetachKeys are the keys that detach from a terminal unless a flag sets others.
const defaultDetachKeys = "ctrl-p,ctrl-q"

// detachKeys is the value of a flag: the keys that detach from a terminal.
type detachKeys string

// UnmarshalText implements [encoding.TextUnmarshaler].
func (k *detachKeys) UnmarshalText(b []byte) error {
	keys := ""
	for key := range strings.SplitSeq(string(b), ",") {
		name, ctrl := strings.CutPrefix(strings.ToLower(key), "ctrl-")
		switch {
		case len(name) == 1 && ctrl && name[0] >= 'a' && name[0] <= 'z', len(name) == 1 && ctrl && strings.Contains(`@[\]^_`, name):
			keys += string(rune(name[0] & 0x1f))
		case len(key) == 1 && key[0] > ' ' && key[0] < 0x7f:
			keys += key
		default:
			return caisson.Errorf(caisson.Invalid, "%.40q is not a key; write for example ctrl-p,ctrl-q", key)
		}
	}
	*k = detachKeys(keys)
	return nil
}

// attachFlags are the flags for attaching to a terminal.
type attachFlags struct {
	ReadOnly   bool       `help:"Only view the terminal; Ctrl-C detaches."`
	DetachKeys detachKeys `help:"Keys that detach from the terminal; the program continues to run." default:"${defaultDetachKeys}" placeholder:"KEYS"`
}

// attachCmd shows a run, or connects to a terminal.
type attachCmd struct {
	Target   string `arg:"" name:"run|sandbox" help:"Id of a run, or id or name of a sandbox." complete:"logged"`
	Terminal string `arg:"" optional:"" help:"Id of the terminal, if the sandbox has several; see terminal ls."`
	attachFlags
}

func (c *attachCmd) Help() string {
	return `A run is shown as by caisson run, with its exit code; Ctrl-C detaches, and the run continues. With an interactive run or a sandbox,
you are at its terminal until its program ends, whose exit code is then this one's, or until you detach with Ctrl-P Ctrl-Q. Input is taken
from the client that attached last without --read-only; the others only view.

` + examples("caisson attach rn-abcdefghijklmnop", "caisson attach rn-abcdefghijklmnop -o jsonl", "caisson attach web", "caisson attach --read-only web")
}

func (c *attachCmd) Run(ctx context.Context, a *app, api api) error {
	if strings.HasPrefix(c.Target, caisson.RunPrefix+"-") && c.Terminal == "" {
		id, err := parseRun(c.Target)
		if err != nil {
			return err
		}
		run, err := api.GetRun(ctx, id)
		if err != nil {
			return err
		}
		if run.Request.Interactive && !run.State.Ended() {
			return interactiveRun{a, api}.attach(ctx, run, c.attachFlags)
		}
		return runConsole{a, api}.follow(ctx, run, time.Time{})
	}
	target, err := runSandbox(ctx, api, c.Target)
	if err != nil {
		return err
	}
	id := caisson.ID(c.Terminal)
	if id == "" {
		t, err := onlyTerminal(ctx, api, target)
		if err != nil {
			return err
		}
		id = t.ID
	}
	return attachment{a, api}.attach(ctx, target, id, c.attachFlags)
}

// runSandbox returns the sandbox of the run with the id ref, or ref itself if ref is not the id of a run.
func runSandbox(ctx context.Context, api caisson.Runs, ref string) (string, error) {
	if !strings.HasPrefix(ref, caisson.RunPrefix+"-") {
		return ref, nil
	}
	id, err := parseRun(ref)
	if err != nil {
		return "", err
	}
	run, err := api.GetRun(ctx, id)
	switch {
	case err != nil:
		return "", err
	case run.Sandbox == "":
		return "", caisson.Errorf(caisson.NotFound, "run %s has no sandbox now; see caisson runs show %s", id, id)
	}
	return string(run.Sandbox), nil
}

// onlyTerminal returns the terminal of a sandbox. It returns an error unless the sandbox has exactly one.
func onlyTerminal(ctx context.Context, api caisson.Terminals, ref string) (*caisson.Terminal, error) {
	list, err := api.ListTerminals(ctx, ref)
	if err != nil {
		return nil, err
	}
	switch len(list) {
	case 0:
		return nil, caisson.Errorf(caisson.NotFound, "the sandbox has no terminal; make one with: caisson exec -it --detach-keys %s %.80s -- bash", defaultDetachKeys, ref)
	case 1:
		return &list[0], nil
	}
	return nil, caisson.Invalidf("terminal", "the sandbox has %d terminals; name one of those that caisson terminal ls %.80s shows", len(list), ref)
}

// An attachment connects the user's terminal with a terminal in a sandbox.
type attachment struct {
	*app
	terminals caisson.Terminals
}

// attach attaches to a terminal until its program ends or the user detaches. It returns a [processExit] if the program has
// failed.
func (s attachment) attach(ctx context.Context, ref string, id caisson.ID, flags attachFlags) error {
	status, left, err := s.attachTo(ctx, ref, id, flags)
	switch {
	case left:
		s.infof("caisson: the program continues to run; attach again with: caisson attach %s %s", ref, id)
		return nil
	case err != nil:
		return err
	}
	return console{s.app}.exitError(status)
}

// attachTo attaches to a terminal until its program ends or the user detaches. If the user has detached, left is true; otherwise
// status is the exit status of the program.
func (s attachment) attachTo(ctx context.Context, ref string, id caisson.ID, flags attachFlags) (status caisson.ExitStatus, left bool, err error) {
	req := caisson.AttachRequest{ReadOnly: flags.ReadOnly}
	if !req.ReadOnly {
		req.Rows, req.Cols = terminalSize(s.in, s.out)
	}
	p, err := s.terminals.AttachTerminal(ctx, ref, id, req)
	if err != nil {
		return status, false, err
	}
	return s.connectStreams(ctx, p, flags)
}

// connectStreams connects the process p in a sandbox to this program's streams until p ends or the user detaches. If the user has
// detached, left is true; otherwise status is the exit status of p.
func (s attachment) connectStreams(ctx context.Context, p caisson.Process, flags attachFlags) (status caisson.ExitStatus, left bool, err error) {
	defer p.Close()
	c := console{s.app}
	if !flags.ReadOnly && isTerminal(s.in) {
		restore, err := c.rawTerminal(ctx, p)
		if err != nil {
			return status, false, err
		}
		defer restore()
	} else {
		defer s.interrupts.setHandler(func(sig os.Signal) {
			s.interrupts.setCancelledBy(sig)
			_ = p.Close()
		})()
	}
	var leaving atomic.Bool
	leave := func() {
		leaving.Store(true)
		_ = p.Close()
	}
	go func() {
		defer s.restoreOnPanic()
		if in := p.Stdin(); in != nil {
			copyKeys(in, s.in, string(flags.DetachKeys), leave)
		}
	}()
	go s.copyNotices(p.Stderr())
	err = c.copyOutput(s.out, p, p.Stdout(), safetext.Screen)
	if leaving.Load() {
		return status, true, nil
	}
	if s.interrupts.exitCode() != 0 {
		return status, false, context.Canceled
	}
	if err != nil {
		return status, false, err
	}
	status, err = p.Wait(ctx)
	return status, false, err
}

// copyNotices prints the notices to a viewer, such as that output was missed, which it reads from r, one per line. The user's
// terminal may be in raw mode, so every line begins and ends with \r\n.
func (s attachment) copyNotices(r io.Reader) {
	defer s.restoreOnPanic()
	buf := make([]byte, 1024)
	for {
		n, err := r.Read(buf)
		for line := range strings.Lines(string(buf[:n])) {
			fmt.Fprintf(s.err, "\r\ncaisson: %s\r\n", safetext.Escape(strings.TrimSuffix(line, "\n")))
		}
		if err != nil {
			return
		}
	}
}

// copyKeys copies input until its end or until it contains the sequence keys; then it calls leave. Input that may be the
// beginning of keys is held back until the next input.
func copyKeys(to io.Writer, from io.Reader, keys string, leave func()) {
	buf := make([]byte, 32<<10)
	held := "" // the end of the input so far, if keys begins with it
	for {
		n, err := from.Read(buf)
		text := held + string(buf[:n])
		send, found := text, false
		if keys != "" {
			send, _, found = strings.Cut(text, keys)
			held = ""
			if !found {
				for i := min(len(keys)-1, len(text)); i > 0 && held == ""; i-- {
					if strings.HasSuffix(text, keys[:i]) {
						held = keys[:i]
					}
				}
				send = text[:len(text)-len(held)]
			}
		}
		if send != "" {
			if _, err := io.WriteString(to, send); err != nil {
				return
			}
		}
		if found {
			leave()
			return
		}
		if err != nil {
			return
		}
	}
}

// execAtTerminal runs req at a terminal in a sandbox, which the user can detach from and attach to again.
func execAtTerminal(ctx context.Context, a *app, api api, ref string, req caisson.ExecRequest, keys detachKeys) error {
	rows, cols := terminalSize(a.in, a.out)
	t, err := api.CreateTerminal(ctx, ref, caisson.TerminalRequest{
		Command: req.Command, Env: req.Env, Workdir: req.Workdir, User: req.User, Rows: rows, Cols: cols,
	})
	if err != nil {
		return err
	}
	return attachment{a, api}.attach(ctx, ref, t.ID, attachFlags{DetachKeys: keys})
}

// terminalCmd manages terminals.
type terminalCmd struct {
	Ls terminalLsCmd `cmd:"" help:"List the terminals of a sandbox."`
	Rm terminalRmCmd `cmd:"" help:"Kill the programs of terminals, and remove them."`
}

// terminalLsCmd lists terminals.
type terminalLsCmd struct {
	Target string `arg:"" name:"sandbox|run" help:"Id or name of a sandbox, or id of a run." complete:"logged"`
}

func (c *terminalLsCmd) Help() string {
	return "Terminals are what caisson exec --detach-keys and interactive runs make.\n\n" + examples("caisson terminal ls web")
}

func (c *terminalLsCmd) Run(ctx context.Context, a *app, api api) error {
	sandbox, err := runSandbox(ctx, api, c.Target)
	if err != nil {
		return err
	}
	return asList(a, []column[caisson.Terminal]{
		{name: "TERMINAL", value: func(t caisson.Terminal) string { return string(t.ID) }},
		{name: "PID", value: func(t caisson.Terminal) string { return strconv.Itoa(t.PID) }},
		{name: "SIZE", value: func(t caisson.Terminal) string { return fmt.Sprintf("%dx%d", t.Cols, t.Rows) }},
		{name: "VIEWERS", value: func(t caisson.Terminal) string { return strconv.Itoa(t.Viewers) }},
		{name: "STARTED", value: func(t caisson.Terminal) string { return ago(&t.StartedAt) }},
		{name: "STATUS", value: func(t caisson.Terminal) string { return cmp.Or(textOrEmpty(t.Exit), "running") }},
		{name: "COMMAND", value: func(t caisson.Terminal) string { return strings.Join(t.Command, " ") }},
	})(api.ListTerminals(ctx, sandbox))
}

// terminalRmCmd removes terminals.
type terminalRmCmd struct {
	sandboxArg
	Terminals []string `arg:"" name:"terminal" help:"Ids."`
}

func (c *terminalRmCmd) Help() string {
	return examples("caisson terminal rm web tm-abcdefghijklmnop", "caisson terminal rm web $(caisson terminal ls -q web)")
}

func (c *terminalRmCmd) Run(ctx context.Context, a *app, api api) error {
	return removeEach(ctx, a, c.Terminals, func(ctx context.Context, id string) error {
		return api.RemoveTerminal(ctx, c.Sandbox, caisson.ID(id))
	})
}
