// Package guestd is the program that Caisson runs in sandboxes, and the host's client for it.
//
// A sandbox's files exist only inside the sandbox, so the host accesses them through a process of "guestd files" in the sandbox,
// which executes the requests that [Client] writes to its standard input. The program is trusted when it starts, but other
// programs in the sandbox are untrusted and may have all privileges there; so the client treats every answer as hostile.
//
// [Main] is the program. [Run] executes a part of it as a function, for runtimes without processes.
package guestd

import (
	"context"
	"io"
	"os"
	"path"
	"strings"
	"syscall"
)

// Exit codes of guestd, which are like those of env(1) and timeout(1).
const (
	exitFailure       = 1
	exitUsage         = 125 // wrong arguments, or the program could not start its work
	exitNotExecutable = 126
	exitNotFound      = 127
)

const usage = `usage: caisson-guestd files
       caisson-guestd run [--user USER[:GROUP]] [--cwd DIR] [--log FILE] [--detach] -- COMMAND [ARG...]
       caisson-guestd services
       caisson-guestd session [COMMAND]
       caisson-guestd sftp
       caisson-guestd connect tcp HOST:PORT
       caisson-guestd terminal new ID ROWS COLS [--user USER[:GROUP]] [--cwd DIR] -- COMMAND [ARG...]
       caisson-guestd terminal list
       caisson-guestd terminal remove ID
       caisson-guestd test PROGRAM [ARG...]
`

// A ProcessEnv is the environment in which [Run] executes the program. In, Out, Err and Root are required.
type ProcessEnv struct {
	Args []string  // arguments without the name of the program
	Env  []string  // environment variables, as KEY=value
	In   io.Reader // standard input
	Out  io.Writer // standard output
	Err  io.Writer // standard error
	Root *os.Root  // directory that is the program's "/"
	Dir  string    // working directory, absolute; "" means "/"

	// Notify makes the given signals arrive on the returned channel, instead of their default action. If it is nil, the program
	// receives no signals.
	Notify func(signals ...syscall.Signal) <-chan syscall.Signal
	// TerminalSize returns the size of the program's terminal. It is nil if there is no terminal.
	TerminalSize func() (rows, cols uint16, err error)
	// Spawn starts a child process that sleeps until kill is called. It is nil if child processes are not supported.
	Spawn func() (kill func(), err error)
	// Listen listens at an address: a port of the loopback device for network "tcp" or "tcp6", a path for "unix". It is nil if
	// there is no network.
	Listen func(network, address string, backlog int) (Listener, error)
}

// Main is the program guestd. args are its arguments without the program's name. It returns the exit code.
func Main(args []string) int {
	if len(args) > 0 {
		switch args[0] { // commands that need real processes; Run lacks them, because it is also for sandboxes of the fake runtime
		case "run":
			return runCommand(args[1:])
		case "session":
			return runSession(args[1:])
		case "sftp":
			return runSFTP()
		case "connect":
			return runConnect(args[1:])
		case "services":
			return report(startSupervisor())
		case "supervise":
			return report(supervise())
		}
	}
	if len(args) > 1 && args[0] == "terminal" && (args[1] == "new" || args[1] == "serve") {
		return runTerminal(args[1], args[2:])
	}
	root, err := os.OpenRoot("/")
	if err != nil {
		printError(os.Stderr, err)
		return exitUsage
	}
	defer root.Close()
	dir, err := os.Getwd()
	if err != nil {
		dir = "/"
	}
	syscall.Umask(0) // files get exactly the modes in the requests
	return Run(context.Background(), &ProcessEnv{
		Args: args, Env: os.Environ(), In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Root: root, Dir: dir,
		Notify: notify, TerminalSize: terminalSize, Spawn: spawn, Listen: listen,
	})
}

// report prints err, unless it is nil, to standard error, and returns the exit code for it.
func report(err error) int {
	if err == nil {
		return 0
	}
	printError(os.Stderr, err)
	return exitUsage
}

// Run executes "guestd files", "guestd test", "guestd terminal list" or "guestd terminal remove" as a function. It returns the
// exit code when that has ended, at the latest soon after ctx has ended and p.In was closed. The other commands need
// real processes; the fake runtime, which has none, implements some of them itself, with [ParseLaunch] and [ParseTerminal].
func Run(ctx context.Context, p *ProcessEnv) int {
	if len(p.Args) > 0 {
		sub := *p
		sub.Args = p.Args[1:]
		switch p.Args[0] {
		case "files":
			return serveFiles(ctx, &sub)
		case "terminal":
			return manageTerminals(&sub)
		case "test":
			return runTestProgram(ctx, &sub)
		}
	}
	io.WriteString(p.Err, usage)
	return exitUsage
}

// absPath returns the absolute path for name, which may be relative to the working directory.
func (p *ProcessEnv) absPath(name string) string {
	if strings.HasPrefix(name, "/") {
		return name
	}
	return path.Join("/", p.Dir, name)
}

// printError writes err to w, preceded by the program's name.
func printError(w io.Writer, err error) {
	io.WriteString(w, "caisson-guestd: "+err.Error()+"\n")
}
