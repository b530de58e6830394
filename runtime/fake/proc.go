package fake

import (
	"cmp"
	"context"
	"io"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/caisson-dev/caisson"
)

// A Program is the code of one process.
type Program interface {
	// Run returns the process's exit code. When a signal terminates the process, ctx is cancelled and blocking methods of p
	// return; Run must then return soon.
	Run(ctx context.Context, p *Proc) int
}

// A Func is a Program without saved state. A checkpoint cannot capture it.
type Func func(ctx context.Context, p *Proc) int

// Run implements [Program].
func (f Func) Run(ctx context.Context, p *Proc) int { return f(ctx, p) }

// A StatefulProgram is a Program whose memory a checkpoint can capture. It may change that memory only within [Proc.Step].
type StatefulProgram interface {
	Program
	// Memory returns the program's memory in serialised form. It is called between two calls of [Proc.Step].
	Memory() ([]byte, error)
	// RestoreMemory restores the memory from the result of Memory. It is called before Run in a restored process.
	RestoreMemory(memory []byte) error
}

// A Proc is a process, as passed to its program. Its methods are safe for concurrent use by goroutines that Run waits for.
type Proc struct {
	sandbox *sandbox
	program Program
	ctx     context.Context    // cancelled when the process is terminated
	cancel  context.CancelFunc // cancels ctx
	exited  chan struct{}      // closed after status is set
	status  caisson.ExitStatus // how the process has ended; valid after exited is closed

	pid  int
	args []string
	env  []string
	dir  string // working directory in the sandbox
	user owner  // user and group of the process

	tty         *tty   // the process's terminal; nil if it has none
	stdin       *pipe  // the process's standard input; nil if it has none
	out, errOut output // standard output and standard error
	log         string // absolute path of the file in the sandbox that gets the output; "" if there is none

	// The following fields are guarded by sandbox.mu.

	ppid        int                                    // PID of the parent
	origin      origin                                 // how the process was started
	termination *caisson.ExitStatus                    // the status if the process was terminated, set before it exits
	caught      map[syscall.Signal]chan syscall.Signal // channels that Catch has returned, by signal
	memory      int64                                  // allocated bytes, see Alloc
}

// An origin is the way in which a process was started. A checkpoint contains all processes except those of originExec.
type origin string

const (
	originCommand origin = "command" // init, the command, and their descendants
	originExec    origin = "exec"    // the process of an exec session, and its descendants in the same Linux session
	originSetsid  origin = "setsid"  // descendants of an exec'd process in a new Linux session
)

// PID returns the process ID inside the sandbox.
func (p *Proc) PID() int { return p.pid }

// Args returns the program's arguments, starting with its path.
func (p *Proc) Args() []string { return p.args }

// Env returns the environment, as KEY=value.
func (p *Proc) Env() []string { return p.env }

// Dir returns the working directory inside the sandbox.
func (p *Proc) Dir() string { return p.dir }

// User returns the process's user and group inside the sandbox.
func (p *Proc) User() (uid, gid int) { return p.user.uid, p.user.gid }

// Hostname returns the sandbox's host name.
func (p *Proc) Hostname() string { return p.sandbox.spec.Hostname }

// Root returns the host directory with the sandbox's root file system and copies of the mounted directories.
func (p *Proc) Root() string { return p.sandbox.tree.dir }

// Stdin returns the standard input.
func (p *Proc) Stdin() io.Reader { return procReader{p} }

// CloseStdin closes the standard input: later writes to it fail.
func (p *Proc) CloseStdin() {
	if p.stdin != nil {
		p.stdin.closeRead()
	}
}

// Stdout returns the standard output.
func (p *Proc) Stdout() io.Writer { return procWriter{p, p.out} }

// Stderr returns the standard error, which is the terminal if there is one.
func (p *Proc) Stderr() io.Writer { return procWriter{p, p.errOut} }

// Step calls f while the sandbox can be neither frozen nor captured. f must not block or call methods of p. Returns an error,
// without calling f, if the process has been terminated.
func (p *Proc) Step(f func()) error {
	if err := p.sandbox.barrier.enter(p.ctx); err != nil {
		return err
	}
	defer p.sandbox.barrier.leave()
	f()
	return nil
}

// Sleep waits for d and then, if the sandbox is frozen, until it is thawed. Returns an error if the process has been terminated.
func (p *Proc) Sleep(d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return p.Step(func() {})
	case <-p.ctx.Done():
		return p.ctx.Err()
	}
}

// TerminalSize returns the size of the terminal, or ENOTTY if there is none.
func (p *Proc) TerminalSize() (rows, cols uint16, err error) {
	if p.tty == nil {
		return 0, 0, syscall.ENOTTY
	}
	rows, cols = p.tty.size()
	return rows, cols, nil
}

// Catch returns a channel that receives the signals, instead of their default action. The channel buffers one signal;
// further signals are dropped. SIGKILL cannot be caught. SIGWINCH reports a change of the terminal's size.
func (p *Proc) Catch(signals ...syscall.Signal) <-chan syscall.Signal {
	p.sandbox.mu.Lock()
	defer p.sandbox.mu.Unlock()
	ch := make(chan syscall.Signal, 1)
	for _, sig := range signals {
		if sig != syscall.SIGKILL {
			p.caught[sig] = ch
		}
	}
	return ch
}

// Alloc accounts for n more bytes of memory until the process exits. If the sandbox exceeds its limit, the process is killed.
func (p *Proc) Alloc(n int64) error {
	if err := p.Step(func() { p.sandbox.alloc(p, n) }); err != nil {
		return err
	}
	return p.ctx.Err()
}

// A Child describes a process to start. Zero fields User and Dir are inherited from the parent.
type Child struct {
	Args    []string // the program and its arguments; required
	User    string   // "USER" or "USER:GROUP", names or numbers
	Dir     string   // working directory in the sandbox
	Session bool     // starts the child in a new Linux session, without the parent's outputs and terminal
	Log     string   // with Session: path of a file in the sandbox to append the output to; "" discards it
	Input   bool     // the child reads the parent's standard input; otherwise its standard input is empty
}

// Spawn starts a child. Returns EAGAIN at the sandbox's limit of processes, or Invalid with the name of the invalid field.
func (p *Proc) Spawn(child Child) (*Proc, error) {
	if err := p.Step(func() {}); err != nil {
		return nil, err
	}
	c, err := p.sandbox.newProc(caisson.RuntimeExec{
		Command: child.Args, Env: p.env, Workdir: cmp.Or(child.Dir, p.dir), User: child.User,
	})
	if err != nil {
		return nil, err
	}
	if child.User == "" {
		c.user = p.user
	}
	c.ppid, c.origin, c.out, c.errOut = p.pid, p.origin, noOutput{}, noOutput{}
	if child.Input {
		c.stdin = p.stdin
	}
	switch {
	case child.Session && p.origin == originExec:
		c.origin = originSetsid
	case !child.Session:
		c.tty = p.tty
		if err := shareOutputs(c, p.out, p.errOut); err != nil {
			return nil, err
		}
	}
	if child.Session && child.Log != "" {
		c.log = p.Abs(child.Log)
		c.out, c.errOut = logOutput{c}, logOutput{c}
	}
	if err := p.sandbox.start(c); err != nil {
		c.out.release()
		c.errOut.release()
		return nil, err
	}
	return c, nil
}

// SpawnTerminal starts a child of p in a new Linux session with a terminal of its own, and returns the user's end of the
// terminal. An empty child.User means root here; child.Log and child.Input have no effect.
func SpawnTerminal(p *Proc, child Child, rows, cols uint16) (caisson.Process, error) {
	if err := p.Step(func() {}); err != nil {
		return nil, err
	}
	e := caisson.RuntimeExec{
		Command: child.Args, Env: p.env, Workdir: cmp.Or(child.Dir, p.dir), User: child.User, TTY: true, Rows: rows, Cols: cols, Stdin: true,
	}
	c, err := p.sandbox.newProc(e)
	if err != nil {
		return nil, err
	}
	c.ppid, c.origin = p.pid, p.origin
	s := newSession(c, e)
	if err := p.sandbox.start(c); err != nil {
		return nil, err
	}
	return s, nil
}

// Kill terminates the process as SIGKILL does.
func (p *Proc) Kill() {
	p.sandbox.mu.Lock()
	defer p.sandbox.mu.Unlock()
	p.sandbox.signal(p, syscall.SIGKILL)
}

// ExitCode waits until the process has exited and returns its exit code.
func (p *Proc) ExitCode() int {
	<-p.exited
	return p.status.Code
}

// Exited returns a channel that is closed when the process has exited.
func (p *Proc) Exited() <-chan struct{} { return p.exited }

// A procReader is the standard input of a process.
type procReader struct{ p *Proc }

func (r procReader) Read(b []byte) (int, error) {
	if r.p.stdin == nil {
		return 0, io.EOF
	}
	n, err := r.p.stdin.read(r.p.ctx, b)
	if stepErr := r.p.Step(func() {}); stepErr != nil {
		return 0, stepErr
	}
	return n, err
}

// A procWriter is the standard output or standard error of a process.
type procWriter struct {
	p   *Proc
	out output
}

func (w procWriter) Write(b []byte) (int, error) {
	// The mounted directories are flushed before the output is written, so that a reader of the output finds the files that
	// were written before.
	if err := w.p.Step(func() { _ = w.p.sandbox.tree.overlays.flush() }); err != nil {
		return 0, err
	}
	return w.out.write(w.p.ctx, b)
}

// getenv returns the last value of key in env.
func getenv(env []string, key string) string {
	for _, kv := range slices.Backward(env) {
		if k, v, _ := strings.Cut(kv, "="); k == key {
			return v
		}
	}
	return ""
}
