package fake

import (
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
	// Run returns the process's exit code. ctx ends when a signal ends the process; Run must return soon then, and all
	// methods of p that block do.
	Run(ctx context.Context, p *Proc) int
}

// A Func is a Program that keeps nothing in memory. A checkpoint cannot capture it.
type Func func(ctx context.Context, p *Proc) int

// Run implements [Program].
func (f Func) Run(ctx context.Context, p *Proc) int { return f(ctx, p) }

// A Rememberer is a Program whose memory a checkpoint can capture. It changes that memory only within [Proc.Step].
type Rememberer interface {
	Program
	// Memory returns what the program has in memory. It is called between two steps.
	Memory() ([]byte, error)
	// Remember takes such bytes over, before Run is called in a restored process.
	Remember(memory []byte) error
}

// A Proc is a process as its program sees it. Its methods are safe for concurrent use by goroutines that Run waits for.
type Proc struct {
	sandbox *sandbox
	program Program
	ctx     context.Context // ends with the process: it is the process's life, not a call's
	cancel  context.CancelFunc
	exited  chan struct{}      // closed when status is set
	status  caisson.ExitStatus // valid once exited is closed

	pid  int
	args []string
	env  []string
	dir  string
	user owner

	tty         *tty  // nil without a terminal
	stdin       *pipe // nil if it is empty
	out, errOut output
	log         string // where a logOutput writes to, absolute

	// Guarded by sandbox.mu.
	ppid    int
	origin  origin
	ended   *caisson.ExitStatus // what ended it, before it has ended
	caught  map[syscall.Signal]chan syscall.Signal
	memory  int64
	started time.Time
}

// An origin says whether a process outlives a checkpoint.
type origin string

const (
	ofCommand origin = "command" // init, the command, and what they started
	ofExec    origin = "exec"    // an exec session, and what shares it
	ofSetsid  origin = "setsid"  // a session of its own
)

// PID is the process's number.
func (p *Proc) PID() int { return p.pid }

// Args are the program's arguments, its name first.
func (p *Proc) Args() []string { return p.args }

// Env is the environment, KEY=value.
func (p *Proc) Env() []string { return p.env }

// Dir is the working directory inside the sandbox.
func (p *Proc) Dir() string { return p.dir }

// User returns the process's user and group inside the sandbox.
func (p *Proc) User() (uid, gid int) { return p.user.uid, p.user.gid }

// Hostname is the sandbox's host name.
func (p *Proc) Hostname() string { return p.sandbox.spec.Hostname }

// Root is the host directory with the sandbox's root file system. Mounts are not in it.
func (p *Proc) Root() string { return p.sandbox.tree.dir }

// Stdin returns the standard input.
func (p *Proc) Stdin() io.Reader { return procReader{p} }

// Stdout returns the standard output.
func (p *Proc) Stdout() io.Writer { return procWriter{p, p.out} }

// Stderr returns the standard error, which with a terminal is the terminal.
func (p *Proc) Stderr() io.Writer { return procWriter{p, p.errOut} }

// Step calls f while the sandbox can be neither frozen nor captured. f must not block or call methods of p. On error,
// which means that the process has been ended, f was not called.
func (p *Proc) Step(f func()) error {
	if err := p.sandbox.gate.enter(p.ctx); err != nil {
		return err
	}
	defer p.sandbox.gate.leave()
	f()
	return nil
}

// Sleep waits for d and while the sandbox is frozen. An error means that the process has been ended.
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

// TerminalSize returns the size of the terminal; ENOTTY without one.
func (p *Proc) TerminalSize() (rows, cols uint16, err error) {
	if p.tty == nil {
		return 0, 0, syscall.ENOTTY
	}
	rows, cols = p.tty.size()
	return rows, cols, nil
}

// Catch makes signals arrive at the channel, at most one of them waiting there, instead of doing what they do otherwise.
// SIGKILL cannot be caught. SIGWINCH says that the terminal's size has changed.
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

// Alloc uses n more bytes of memory until the process ends. Beyond the sandbox's limit the process is killed.
func (p *Proc) Alloc(n int64) error {
	if err := p.Step(func() { p.sandbox.alloc(p, n) }); err != nil {
		return err
	}
	return p.ctx.Err()
}

// A Child is a process to start. Zero fields are as the parent has them.
type Child struct {
	Args    []string // the program first; required
	User    string   // as of RuntimeExec
	Dir     string
	Session bool   // in a session of its own, without the parent's outputs
	Log     string // with Session: where output goes, a path inside; "" discards it
	Input   bool   // with the parent's standard input; else it is empty
}

// Spawn starts a child. The error is EAGAIN at the sandbox's limit of processes, or Invalid with the field at fault.
func (p *Proc) Spawn(child Child) (*Proc, error) {
	if err := p.Step(func() {}); err != nil {
		return nil, err
	}
	e := caisson.RuntimeExec{Command: child.Args, Env: p.env, Workdir: child.Dir, User: child.User}
	if e.Workdir == "" {
		e.Workdir = p.dir
	}
	c, err := p.sandbox.prepare(e)
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
	case child.Session && p.origin == ofExec:
		c.origin = ofSetsid
	case !child.Session:
		c.tty = p.tty
		if c.out, err = p.out.share(); err != nil {
			return nil, err
		}
		if c.errOut, err = p.errOut.share(); err != nil {
			c.out.release()
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

// Kill ends the process as SIGKILL does.
func (p *Proc) Kill() {
	p.sandbox.mu.Lock()
	defer p.sandbox.mu.Unlock()
	p.sandbox.signal(p, syscall.SIGKILL)
}

// ExitCode is the code that the process ended with, once it has.
func (p *Proc) ExitCode() int {
	<-p.exited
	return p.status.Code
}

// Exited is closed when the process has ended.
func (p *Proc) Exited() <-chan struct{} { return p.exited }

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

type procWriter struct {
	p   *Proc
	out output
}

func (w procWriter) Write(b []byte) (int, error) {
	if err := w.p.Step(func() {}); err != nil {
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
