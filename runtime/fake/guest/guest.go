// Package guest is the program /.caisson/inside (guestd) for the fake runtime. It uses those parts of package guestd that do not
// need a kernel, and implements the others with the fake runtime.
package guest

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/guestd"
	"github.com/caisson-dev/caisson/guest/terminal"
	"github.com/caisson-dev/caisson/runtime/fake"
)

// Path is the path of the program in every sandbox.
const Path = "/.caisson/inside"

// Exit codes of the program, the same as those of the real guestd.
const (
	exitFailure       = 1   // the subcommand failed
	exitUsage         = 125 // wrong arguments, or guestd itself has failed
	exitNotExecutable = 126 // the command cannot be executed
)

// Programs returns a value for fake.Config.Programs: the program at [Path], with those subcommands of guestd that its first
// argument selects: files, run, services, terminal and test.
func Programs() map[string]func(args []string) fake.Program {
	t := &terminals{served: map[string]*terminal.Server{}, opened: map[string]chan struct{}{}}
	return map[string]func([]string) fake.Program{Path: func(args []string) fake.Program {
		if arg(args, 1) == "terminal" {
			return t.program(args)
		}
		return program(args)
	}}
}

// program returns the implementation of guestd's subcommand args[1], for one process with the arguments args.
func program(args []string) fake.Program {
	switch arg(args, 1) {
	case "run":
		return fake.Func(run)
	case "services":
		return fake.Func(startSupervisor)
	case "supervise":
		return &supervisor{}
	case "test":
		if p := testProgram(args[2:]); p != nil {
			return p
		}
	}
	return fake.Func(runGuestd)
}

// arg returns args[i], or "" if there are fewer arguments.
func arg(args []string, i int) string {
	if i >= len(args) {
		return ""
	}
	return args[i]
}

// runGuestd runs the subcommand in the arguments of p with package guestd, which implements some subcommands without a kernel.
func runGuestd(ctx context.Context, p *fake.Proc) int {
	root, err := os.OpenRoot(p.Root())
	if err != nil {
		return fail(p, exitUsage, err)
	}
	defer root.Close()
	proc := &guestd.ProcessEnv{
		Args: p.Args()[1:], Env: p.Env(), In: p.Stdin(), Out: p.Stdout(), Err: p.Stderr(), Root: root, Dir: p.Dir(),
		Notify: p.Catch,
	}
	if _, _, err := p.TerminalSize(); err == nil {
		proc.TerminalSize = p.TerminalSize
	}
	proc.Listen = func(network, address string, backlog int) (guestd.Listener, error) {
		return fake.Listen(p, network, address, backlog)
	}
	proc.Spawn = func() (kill func(), err error) {
		c, err := p.Spawn(fake.Child{Args: []string{Path, "test", "sleep", "24h"}})
		if err != nil {
			return nil, err
		}
		return func() { c.Kill(); <-c.Exited() }, nil
	}
	return guestd.Run(ctx, proc)
}

// run implements guestd's subcommand run. Without --detach, the command runs as a child of p, because a Go function cannot exec.
func run(ctx context.Context, p *fake.Proc) int {
	l, err := guestd.ParseLaunch(p.Args()[2:])
	if err != nil {
		return fail(p, exitUsage, err)
	}
	c, err := p.Spawn(fake.Child{Args: l.Command, User: l.User, Dir: l.Dir, Session: l.Detach, Log: l.Log, Input: !l.Detach})
	switch {
	case caisson.FieldOf(err) == "command":
		return fail(p, exitNotExecutable, err)
	case err != nil:
		return fail(p, exitUsage, err)
	case l.Detach:
		io.WriteString(p.Stdout(), strconv.Itoa(c.PID())+"\n")
		return 0
	}
	select {
	case <-c.Exited():
		return c.ExitCode()
	case <-ctx.Done():
		c.Kill()
		<-c.Exited()
		return exitFailure
	}
}

// fail writes err to standard error and returns code.
func fail(p *fake.Proc, code int, err error) int {
	fmt.Fprintln(p.Stderr(), "caisson-guestd:", caisson.MessageOf(publicError(err)))
	return code
}

// publicError converts an internal error to one whose text caisson.MessageOf returns.
func publicError(err error) error {
	if caisson.KindOf(err) != caisson.Internal {
		return err
	}
	return caisson.Errorf(caisson.Internal, "%v", err)
}

// testProgram returns the test program that args, the arguments after guestd's subcommand test, select. It returns only programs
// that need the fake runtime: for memory that checkpoints capture, for memory that is limited, or for files with owners and a
// limit. For other arguments it returns nil, because package guestd implements those programs.
func testProgram(args []string) fake.Program {
	switch name := arg(args, 0); {
	case name == "alloc":
		return fake.Func(alloc)
	case name == "counter" && len(args) > 1:
		return &counter{}
	case name == "fill" && len(args) > 2:
		return fake.Func(fill)
	case name == "serve":
		return &server{}
	case name == "sleep" && len(args) > 1:
		return &sleeper{}
	case name == "stat" && len(args) > 1:
		return fake.Func(stat)
	}
	return nil
}

// numberArg returns argument i of p as a number. It returns an error if the argument is not a number, or is negative.
func numberArg(p *fake.Proc, i int) (int64, error) {
	n, err := strconv.ParseInt(arg(p.Args(), i), 10, 64)
	if err == nil && n < 0 {
		err = syscall.EINVAL
	}
	return n, err
}

// alloc is the test program that allocates memory, prints the number of bytes, and keeps the memory until EOF on its input.
func alloc(_ context.Context, p *fake.Proc) int {
	n, err := numberArg(p, 3)
	if err != nil {
		return fail(p, exitUsage, err)
	}
	if err := p.Alloc(n); err != nil {
		return exitFailure
	}
	fmt.Fprintln(p.Stdout(), n)
	_, _ = io.Copy(io.Discard, p.Stdin()) // returns at the latest when the process is terminated
	return 0
}

// fill is the test program that writes zeros to a file and prints how many bytes it has written, followed by the error, if any.
func fill(_ context.Context, p *fake.Proc) int {
	want, err := numberArg(p, 4)
	if err != nil {
		return fail(p, exitUsage, err)
	}
	name, zeros, done := p.Args()[3], make([]byte, 64<<10), int64(0)
	_, err = p.WriteFile(name, nil, false)
	for err == nil && done < want {
		var n int
		n, err = p.WriteFile(name, zeros[:min(want-done, int64(len(zeros)))], true)
		done += int64(n)
	}
	if err != nil {
		fmt.Fprintln(p.Stdout(), done, err)
		return exitFailure
	}
	fmt.Fprintln(p.Stdout(), done)
	return 0
}

// stat is the test program that prints type, mode, uid, gid, size and target of a file.
func stat(_ context.Context, p *fake.Proc) int {
	f, err := p.Lstat(p.Args()[3])
	if err != nil {
		return fail(p, exitFailure, err)
	}
	line := []any{fileType(f.Mode), fmt.Sprintf("%04o", chmodBits(f.Mode)), f.UID, f.GID, f.Size}
	if f.Target != "" {
		line = append(line, f.Target)
	}
	fmt.Fprintln(p.Stdout(), line...)
	return 0
}

// fileType returns the name of a file's type.
func fileType(m os.FileMode) string {
	i := slices.Index([]os.FileMode{0, os.ModeDir, os.ModeSymlink, os.ModeNamedPipe, os.ModeSocket}, m.Type())
	if i < 0 {
		return "other"
	}
	return []string{"file", "directory", "symlink", "fifo", "socket"}[i]
}

// chmodBits returns the permissions of a file, with setuid, setgid and sticky, as the bits that chmod(2) uses.
func chmodBits(m os.FileMode) uint32 {
	bits := uint32(m.Perm())
	for i, b := range []os.FileMode{os.ModeSticky, os.ModeSetgid, os.ModeSetuid} {
		if m&b != 0 {
			bits |= 0o1000 << i
		}
	}
	return bits
}

// counterInterval is the time between two increments of a counter.
const counterInterval = 20 * time.Millisecond

// A counter is the test program that increments a number in its memory every 20 ms and writes it to a file that it never reads.
type counter struct{ n int } // n is the number

// Run counts until the process is terminated. Its argument is the path of the file that gets the number.
func (c *counter) Run(_ context.Context, p *fake.Proc) int {
	name := p.Args()[3]
	for {
		if err := p.Step(func() { c.n++ }); err != nil {
			return exitFailure
		}
		if _, err := p.WriteFile(name, fmt.Appendln(nil, c.n), false); err != nil {
			return fail(p, exitFailure, err)
		}
		if p.Sleep(counterInterval) != nil {
			return exitFailure
		}
	}
}

func (c *counter) Memory() ([]byte, error) { return strconv.AppendInt(nil, int64(c.n), 10), nil } // for checkpoints: the number

func (c *counter) RestoreMemory(b []byte) (err error) {
	c.n, err = strconv.Atoi(string(b))
	return err
}

// A server is the test program that listens at an address. After a restore, it listens again, without the connections that it
// had.
type server struct{}

func (*server) Run(ctx context.Context, p *fake.Proc) int { return runGuestd(ctx, p) }
func (*server) Memory() ([]byte, error)                   { return nil, nil } // it has no memory that a checkpoint must contain
func (*server) RestoreMemory([]byte) error                { return nil }

// A sleeper is the test program that sleeps for a duration. After a restore, it sleeps for the full duration again.
type sleeper struct{}

func (*sleeper) Run(_ context.Context, p *fake.Proc) int {
	d, err := time.ParseDuration(p.Args()[3])
	if err != nil {
		return fail(p, exitUsage, err)
	}
	if p.Sleep(d) != nil {
		return exitFailure
	}
	return 0
}

func (*sleeper) Memory() ([]byte, error)    { return nil, nil } // it has no memory that a checkpoint must contain
func (*sleeper) RestoreMemory([]byte) error { return nil }
