package guestd

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/terminal"
)

// Exit codes of "guestd terminal".
const (
	ExitNoTerminal = 3 // there is no terminal with the given id
	ExitFull       = 4 // there are as many terminals as a sandbox can have
)

// A TerminalCommand has the arguments of "guestd terminal new" and "guestd terminal serve".
type TerminalCommand struct {
	ID         caisson.ID // id of the terminal
	Rows, Cols uint16     // size of the terminal
	Keep       bool       // whether the terminal is kept after its program's end, until it is removed
	Launch     *RunArgs   // command of the terminal's program, and its user and directory
}

// Args returns t as command-line arguments, which [ParseTerminal] parses.
func (t *TerminalCommand) Args() []string {
	args := []string{string(t.ID), strconv.Itoa(int(t.Rows)), strconv.Itoa(int(t.Cols))}
	if t.Keep {
		args = append(args, "--keep")
	}
	return append(args, t.Launch.args()...)
}

// args returns l as command-line arguments, which [ParseLaunch] parses. Detach and Log are left out.
func (l *RunArgs) args() (args []string) {
	if l.User != "" {
		args = append(args, "--user", l.User)
	}
	if l.Dir != "" {
		args = append(args, "--cwd", l.Dir)
	}
	return append(append(args, "--"), l.Command...)
}

// ParseTerminal parses the arguments of "guestd terminal new" and "guestd terminal serve". Returns Invalid if they are malformed.
func ParseTerminal(args []string) (*TerminalCommand, error) {
	if len(args) < 3 {
		return nil, caisson.Errorf(caisson.Invalid, "terminal: ID, ROWS, COLS and a command are needed")
	}
	id, err := caisson.ParseID(caisson.TerminalPrefix, args[0])
	if err != nil {
		return nil, err
	}
	rows, err1 := strconv.ParseUint(args[1], 10, 16)
	cols, err2 := strconv.ParseUint(args[2], 10, 16)
	if err1 != nil || err2 != nil || rows == 0 || cols == 0 {
		return nil, caisson.Errorf(caisson.Invalid, "terminal: %.20q by %.20q is not a size", args[1], args[2])
	}
	args = args[3:]
	keep := len(args) > 0 && args[0] == "--keep"
	if keep {
		args = args[1:]
	}
	l, err := ParseLaunch(args)
	if err != nil {
		return nil, err
	}
	return &TerminalCommand{ID: id, Rows: uint16(rows), Cols: uint16(cols), Keep: keep, Launch: l}, nil
}

// runTerminal implements "guestd terminal new" and "guestd terminal serve"; role is "new" or "serve".
func runTerminal(role string, args []string) int {
	t, err := ParseTerminal(args)
	if err == nil {
		if role == "new" {
			return newTerminal(t)
		}
		err = serveTerminal(t)
	}
	return failTerminal(os.Stderr, err)
}

// failTerminal prints err, unless it is nil, and returns the exit code of "guestd terminal" for it.
func failTerminal(w io.Writer, err error) int {
	if err == nil {
		return 0
	}
	printError(w, errors.New(message(err)))
	switch caisson.KindOf(err) {
	case caisson.NotFound:
		return ExitNoTerminal
	case caisson.Exhausted:
		return ExitFull
	}
	return exitUsage
}

// readyFD is the descriptor of the pipe on which "guestd terminal new" receives the report that the new terminal can be used.
const readyFD = 3

// newTerminal starts "guestd terminal serve" in a new session of processes, so that it outlives this process, and waits until it
// serves the terminal. The new process prints the pid of the terminal's program, or an error, to the streams of this process.
func newTerminal(t *TerminalCommand) int {
	exe, err := os.Executable()
	if err != nil {
		return failTerminal(os.Stderr, err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return failTerminal(os.Stderr, err)
	}
	ready, report, err := os.Pipe()
	if err != nil {
		return failTerminal(os.Stderr, err)
	}
	p, err := os.StartProcess(exe, append([]string{exe, "terminal", "serve"}, t.Args()...), &os.ProcAttr{
		Env: os.Environ(), Dir: "/", Files: []*os.File{null, os.Stdout, os.Stderr, report}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	report.Close()
	if err != nil {
		return failTerminal(os.Stderr, err)
	}
	if n, _ := ready.Read(make([]byte, 1)); n == 1 {
		return 0
	}
	state, err := p.Wait()
	if err != nil || state.ExitCode() <= 0 {
		return exitUsage
	}
	return state.ExitCode()
}

// serveTerminal starts a program at a new terminal, and serves the terminal's viewers until the terminal ends.
func serveTerminal(t *TerminalCommand) error {
	uid := os.Getuid()
	if t.Launch.User != "" {
		id, err := resolveUser(os.DirFS("/etc"), t.Launch.User)
		if err != nil {
			return err
		}
		uid = id.uid
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	ln, err := terminal.Sockets(terminal.Dir).Listen(t.ID)
	if err != nil {
		return err
	}
	cmd := exec.Command(exe, append([]string{"run"}, t.Launch.args()...)...)
	cmd.Dir = "/"
	cmd.Env = append([]string{"TERM=xterm-256color"}, os.Environ()...) // TERM in the environment overrides the first value
	program, err := terminal.Start(cmd, t.Rows, t.Cols, uid)
	if err != nil {
		return errors.Join(err, ln.Close())
	}
	os.Stdout.WriteString(strconv.Itoa(program.PID()) + "\n")
	if err := dropStreams(); err != nil {
		program.Kill()
		return errors.Join(err, ln.Close())
	}
	terminal.NewServer(t.ID, t.Launch.Command, program, t.Rows, t.Cols, t.Keep).Serve(ln)
	return nil
}

// dropStreams replaces the standard output and error of this process by /dev/null, because the host reads them to their end, and
// reports on readyFD that the terminal can be used.
func dropStreams() error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	for _, fd := range []int{1, 2} {
		if err := unix.Dup3(int(null.Fd()), fd, 0); err != nil {
			return err
		}
	}
	report := os.NewFile(readyFD, "ready")
	defer report.Close()
	_, err = report.Write([]byte{1})
	return err
}

// manageTerminals implements "guestd terminal list" and "guestd terminal remove".
func manageTerminals(p *ProcessEnv) int {
	sockets := terminal.Sockets(p.Root.Name() + terminal.Dir)
	var err error
	switch {
	case len(p.Args) == 1 && p.Args[0] == "list":
		var list []caisson.Terminal
		if list, err = sockets.List(); err == nil {
			err = terminal.WriteList(p.Out, list)
		}
	case len(p.Args) == 2 && p.Args[0] == "remove":
		var id caisson.ID
		if id, err = caisson.ParseID(caisson.TerminalPrefix, p.Args[1]); err == nil {
			err = sockets.Remove(id)
		}
	default:
		return p.fail(exitUsage, "terminal: list, or remove ID")
	}
	return failTerminal(p.Err, err)
}
