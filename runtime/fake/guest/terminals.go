package guest

import (
	"cmp"
	"context"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/guestd"
	"github.com/caisson-dev/caisson/guest/terminal"
	"github.com/caisson-dev/caisson/runtime/fake"
)

// terminals are the terminals of all sandboxes. A checkpoint cannot capture them.
type terminals struct {
	mu     sync.Mutex
	served map[string]*terminal.Server // servers by key: the sandbox's root directory and the terminal's id; guarded by mu
	opened map[string]chan struct{}    // channels, closed when the terminal is served, by the key of served; guarded by mu
}

// program returns the implementation of guestd's subcommand terminal with the action args[2], for one process.
func (t *terminals) program(args []string) fake.Program {
	switch arg(args, 2) {
	case "new":
		return fake.Func(t.create)
	case "serve":
		return fake.Func(t.serve)
	}
	return fake.Func(t.listOrRemove)
}

// openedChannel returns the channel that is closed when the terminal with the key is served, and creates it if necessary.
func (t *terminals) openedChannel(key string) chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.opened[key] == nil {
		t.opened[key] = make(chan struct{})
	}
	return t.opened[key]
}

// create starts the process that serves a terminal, and prints the pid of the program in the terminal.
func (t *terminals) create(ctx context.Context, p *fake.Proc) int {
	c, err := guestd.ParseTerminal(p.Args()[3:])
	if err != nil {
		return fail(p, exitUsage, err)
	}
	if len(t.list(p.Root())) >= caisson.MaxTerminals {
		return fail(p, guestd.ExitFull, caisson.Errorf(caisson.Exhausted, "too many"))
	}
	key := p.Root() + string(c.ID)
	opened := t.openedChannel(key)
	child, err := p.Spawn(fake.Child{Args: append([]string{Path, "terminal", "serve"}, p.Args()[3:]...), Session: true})
	if err != nil {
		return fail(p, exitUsage, err)
	}
	select {
	case <-opened:
	case <-child.Exited():
		return fail(p, exitUsage, caisson.Errorf(caisson.Invalid, "the terminal could not be opened"))
	case <-ctx.Done():
		return exitFailure
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.served[key]; s != nil {
		io.WriteString(p.Stdout(), strconv.Itoa(s.Info().PID)+"\n")
	}
	return 0
}

// serve starts a program in a terminal, and serves the terminal until the server ends.
func (t *terminals) serve(ctx context.Context, p *fake.Proc) int {
	c, err := guestd.ParseTerminal(p.Args()[3:])
	if err != nil {
		return fail(p, exitUsage, err)
	}
	ln, err := fake.Listen(p, "unix", terminal.Socket(c.ID), caisson.MaxTerminalViewers)
	if err != nil {
		return fail(p, exitUsage, err)
	}
	defer ln.Close()
	session, err := fake.SpawnTerminal(p, fake.Child{Args: c.Launch.Command, User: c.Launch.User, Dir: c.Launch.Dir}, c.Rows, c.Cols)
	if err != nil {
		return fail(p, exitUsage, err)
	}
	s := terminal.NewServer(c.ID, c.Launch.Command, ttyProgram{session}, c.Rows, c.Cols, c.Keep)
	defer context.AfterFunc(ctx, s.Kill)()
	key := p.Root() + string(c.ID)
	opened := t.openedChannel(key)
	t.mu.Lock()
	t.served[key] = s
	t.mu.Unlock()
	close(opened)
	s.Serve(ln)
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.served, key)
	delete(t.opened, key)
	return 0
}

// list returns the terminals of a sandbox, oldest first.
func (t *terminals) list(root string) (list []caisson.Terminal) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, s := range t.served {
		if strings.HasPrefix(key, root) {
			list = append(list, s.Info())
		}
	}
	slices.SortFunc(list, func(a, b caisson.Terminal) int {
		return cmp.Or(a.StartedAt.Compare(b.StartedAt), cmp.Compare(a.ID, b.ID))
	})
	return list
}

// listOrRemove executes the command list, which lists the terminals of the sandbox, or remove, which removes one.
func (t *terminals) listOrRemove(_ context.Context, p *fake.Proc) int {
	switch arg(p.Args(), 2) {
	case "list":
		if err := terminal.WriteList(p.Stdout(), t.list(p.Root())); err != nil {
			return fail(p, exitFailure, err)
		}
		return 0
	case "remove":
		t.mu.Lock()
		s := t.served[p.Root()+arg(p.Args(), 3)]
		t.mu.Unlock()
		if s == nil {
			return fail(p, guestd.ExitNoTerminal, caisson.Errorf(caisson.NotFound, "no such terminal"))
		}
		s.Kill()
		return 0
	}
	return exitUsage
}

// A ttyProgram implements [terminal.Program] with a program at a terminal of the fake runtime.
type ttyProgram struct{ session caisson.Process }

func (p ttyProgram) PID() int                       { return p.session.PID() }
func (p ttyProgram) Read(b []byte) (int, error)     { return p.session.Stdout().Read(b) }
func (p ttyProgram) Write(b []byte) (int, error)    { return p.session.Stdin().Write(b) }
func (p ttyProgram) Resize(rows, cols uint16) error { return p.session.Resize(rows, cols) }
func (p ttyProgram) Close() error                   { return p.session.Close() }
func (p ttyProgram) Kill()                          { _ = p.Signal(int(syscall.SIGKILL)) }

func (p ttyProgram) Signal(signal int) error { return p.session.Signal(context.Background(), signal) }

func (p ttyProgram) Exit() caisson.ExitStatus {
	status, err := p.session.Wait(context.Background())
	if err != nil {
		return caisson.ExitStatus{Code: exitFailure}
	}
	return status
}
