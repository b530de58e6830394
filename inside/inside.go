// Package inside is the program that Caisson runs within sandboxes, and the host's side of talking to it.
//
// A sandbox's files exist only inside the sandbox, so whatever the host wants with them is done in there: by "inside
// files", which executes requests that it reads from its standard input, on behalf of [Client]. The program is trusted
// when it starts, but it runs among programs that are not and that may have all rights there; so the client takes every
// answer as hostile.
//
// [Main] is the program as a process. [Run] is the same as a function, for runtimes without processes.
package inside

import (
	"context"
	"io"
	"os"
	"path"
	"strings"
	"syscall"
)

// Exit codes of the program itself, as env(1) and timeout(1) have them.
const (
	exitFailure       = 1
	exitUsage         = 125 // the program itself could not do its work
	exitNotExecutable = 126
	exitNotFound      = 127
)

const usage = `usage: caisson-inside files
       caisson-inside run [--user USER[:GROUP]] [--cwd DIR] [--log FILE] [--detach] -- COMMAND [ARG...]
       caisson-inside test PROGRAM [ARG...]
`

// A Proc is what a program sees of its process. In, Out, Err and Root are required.
type Proc struct {
	Args []string // without the name of the program
	Env  []string // KEY=value
	In   io.Reader
	Out  io.Writer
	Err  io.Writer
	Root *os.Root // what the program sees as "/"
	Dir  string   // working directory, absolute; "" is "/"

	// Notify makes signals arrive on the channel instead of doing what they do by default. Nil: none ever arrives.
	Notify func(signals ...syscall.Signal) <-chan syscall.Signal
	// TerminalSize returns the size of the terminal that the program runs on. Nil: it runs on none.
	TerminalSize func() (rows, cols uint16, err error)
	// Spawn starts a child that sleeps until kill is called. Nil: no child can be started.
	Spawn func() (kill func(), err error)
}

// Main is the program: it does what args, without the program's name, say, and returns its exit code.
func Main(args []string) int {
	if len(args) > 0 && args[0] == "run" {
		return execute(args[1:])
	}
	root, err := os.OpenRoot("/")
	if err != nil {
		complain(os.Stderr, err)
		return exitUsage
	}
	defer root.Close()
	dir, err := os.Getwd()
	if err != nil {
		dir = "/"
	}
	syscall.Umask(0) // modes are what the requests say
	return Run(context.Background(), &Proc{
		Args: args, Env: os.Environ(), In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Root: root, Dir: dir,
		Notify: notify, TerminalSize: terminalSize, Spawn: spawn,
	})
}

// Run is the program as a function: the roles "files" and "test". It returns the exit code when the program has ended, at
// the latest soon after ctx has and p.In has been closed. The role "run" needs a process to replace; see [ParseLaunch].
func Run(ctx context.Context, p *Proc) int {
	if len(p.Args) > 0 {
		sub := *p
		sub.Args = p.Args[1:]
		switch p.Args[0] {
		case "files":
			return serve(ctx, &sub)
		case "test":
			return test(ctx, &sub)
		}
	}
	io.WriteString(p.Err, usage)
	return exitUsage
}

// abs returns name as an absolute path.
func (p *Proc) abs(name string) string {
	if strings.HasPrefix(name, "/") {
		return name
	}
	return path.Join("/", p.Dir, name)
}

// complain writes err as the program's last words.
func complain(w io.Writer, err error) {
	io.WriteString(w, "caisson-inside: "+err.Error()+"\n")
}
