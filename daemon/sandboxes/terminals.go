package sandboxes

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/guestd"
	"github.com/caisson-dev/caisson/guest/terminal"
	"github.com/caisson-dev/caisson/internal/keylock"
)

// guestdPath is the path of guestd in every sandbox.
const guestdPath = "/.caisson/inside"

// attachTimeout is the time within which a terminal must answer a request to attach.
const attachTimeout = 10 * time.Second

// Terminals implements [caisson.Terminals]. The daemon stores nothing about terminals: it requests all data from guestd in the
// sandboxes, and does not trust the answers.
type Terminals struct {
	finder   finder    // finds sandboxes of the caller's account
	runtime  execer    // starts processes in sandboxes
	states   states    // stored records of sandboxes
	activity *activity // records uses of sandboxes
	// dial connects to a unix socket in a sandbox.
	dial   func(ctx context.Context, id caisson.ID, path string) (io.ReadWriteCloser, error)
	making keylock.Locks // locks by sandbox; held while a terminal is created
}

var _ caisson.Terminals = (*Terminals)(nil)

// NewTerminals returns the service that manages the terminals in the sandboxes of c.
func NewTerminals(c *Core, d caisson.Dialer) *Terminals {
	p := c.api.processes
	return &Terminals{
		finder: p.finder, runtime: p.runtime, states: p.states, activity: p.activity,
		dial: func(ctx context.Context, id caisson.ID, path string) (io.ReadWriteCloser, error) {
			return d.Dial(ctx, id, "unix", path)
		},
	}
}

// CreateTerminal implements [caisson.Terminals].
func (t *Terminals) CreateTerminal(ctx context.Context, ref string, req caisson.TerminalRequest) (*caisson.Terminal, error) {
	if err := cmp.Or(
		validateCommand("command", req.Command), validateEnv("env", req.Env), validatePath("workdir", req.Workdir), validateUser("user", req.User),
	); err != nil {
		return nil, err
	}
	if len(req.Command) == 0 {
		return nil, caisson.Invalidf("command", "name the program to run")
	}
	if req.Rows == 0 || req.Cols == 0 {
		req.Rows, req.Cols = 24, 80
	}
	sb, end, err := t.activity.use(ctx, t.finder, ref, caisson.VerbExec)
	if err != nil {
		return nil, err
	}
	defer end()
	command := guestd.TerminalCommand{
		ID: caisson.NewID(caisson.TerminalPrefix), Rows: req.Rows, Cols: req.Cols, Keep: req.Keep,
		Launch: &guestd.RunArgs{
			User: cmp.Or(req.User, sb.Spec.User), Command: req.Command,
			Dir: workdir(sb, &caisson.ExecRequest{Workdir: req.Workdir, User: req.User}),
		},
	}
	release, err := t.making.Acquire(ctx, string(sb.ID))
	if err != nil {
		return nil, err
	}
	defer release()
	out, err := t.run(ctx, sb.ID, env(sb.Spec.Env, req.Env), append([]string{"new"}, command.Args()...)...)
	if err != nil {
		return nil, err
	}
	pid, err := strconv.ParseUint(strings.TrimSpace(string(out)), 10, 31)
	if err != nil || pid == 0 {
		return nil, caisson.Errorf(caisson.Unavailable, "the sandbox did not report which process it started")
	}
	return &caisson.Terminal{
		ID: command.ID, Command: req.Command, PID: int(pid), Rows: req.Rows, Cols: req.Cols, StartedAt: now(),
	}, nil
}

// ListTerminals implements [caisson.Terminals].
func (t *Terminals) ListTerminals(ctx context.Context, ref string) ([]caisson.Terminal, error) {
	sb, err := t.finder.findFor(ctx, ref, caisson.VerbExec)
	if err != nil {
		return nil, err
	}
	out, err := t.run(ctx, sb.ID, nil, "list")
	if err != nil {
		return nil, err
	}
	list, err := terminal.ParseList(bytes.NewReader(out))
	return list, caisson.Wrap(err, caisson.Unavailable, "the sandbox's list of its terminals makes no sense")
}

// AttachTerminal implements [caisson.Terminals].
func (t *Terminals) AttachTerminal(ctx context.Context, ref string, id caisson.ID, req caisson.AttachRequest) (caisson.Process, error) {
	if _, err := caisson.ParseID(caisson.TerminalPrefix, string(id)); err != nil {
		return nil, err
	}
	sb, end, err := t.activity.use(ctx, t.finder, ref, caisson.VerbExec)
	if err != nil {
		return nil, err
	}
	p, err := t.attach(ctx, sb.ID, id, req)
	if err != nil {
		end()
		return nil, err
	}
	return reasonedProcess{p, t.states, sb.ID, end}, nil
}

// attach connects to a terminal of a sandbox.
func (t *Terminals) attach(ctx context.Context, sandbox, id caisson.ID, req caisson.AttachRequest) (caisson.Process, error) {
	ctx, cancel := context.WithTimeout(ctx, attachTimeout)
	defer cancel()
	conn, err := t.dial(ctx, sandbox, terminal.Socket(id))
	if kind := caisson.KindOf(err); kind == caisson.NotFound || kind == caisson.Unavailable {
		return nil, noTerminal(id)
	}
	if err != nil {
		return nil, err
	}
	return terminal.Attach(ctx, conn, req)
}

// RemoveTerminal implements [caisson.Terminals].
func (t *Terminals) RemoveTerminal(ctx context.Context, ref string, id caisson.ID) error {
	if _, err := caisson.ParseID(caisson.TerminalPrefix, string(id)); err != nil {
		return err
	}
	sb, err := t.finder.findFor(ctx, ref, caisson.VerbExec)
	if err != nil {
		return err
	}
	_, err = t.run(ctx, sb.ID, nil, "remove", string(id))
	if caisson.KindOf(err) == caisson.NotFound {
		return noTerminal(id)
	}
	return err
}

// noTerminal returns the error for a terminal that a sandbox does not have.
func noTerminal(id caisson.ID) error {
	return caisson.Errorf(caisson.NotFound, "the sandbox has no terminal %s; list them with: caisson terminal ls", id)
}

// run runs a command of guestd for terminals, as root in the sandbox, and returns its output.
func (t *Terminals) run(ctx context.Context, id caisson.ID, env []string, args ...string) ([]byte, error) {
	out, said, status, err := runGuestd(ctx, t.runtime, id, caisson.RuntimeExec{Command: append([]string{guestdPath, "terminal"}, args...), Env: env})
	switch {
	case err != nil:
		return nil, err
	case status.Success():
		return out, nil
	case status.Code == guestd.ExitNoTerminal:
		return nil, caisson.Errorf(caisson.NotFound, "%.200q", said)
	case status.Code == guestd.ExitFull:
		return nil, caisson.Errorf(caisson.Exhausted, "the sandbox has %d terminals already; remove one with: caisson terminal rm", caisson.MaxTerminals)
	}
	return nil, caisson.Errorf(caisson.Unavailable, "terminals of the sandbox cannot be used: %.200q", said)
}
