// Command caisson runs AI agents in sealed sandboxes. One binary is the command line, the daemon, and all helper processes that
// the daemon starts.
//
// The command line only uses the API; if no daemon is running for the data directory, it starts one in the background.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/caisson-dev/caisson/wire"
	"github.com/caisson-dev/caisson/wire/wireproc"
)

// stdio contains the streams, environment and signals of the program; tests replace them.
type stdio struct {
	in       io.Reader
	out, err io.Writer
	getenv   func(string) string
	signals  <-chan os.Signal // signals, as [os/signal.Notify] delivers them; nil for none
}

func main() {
	dispatchRole()
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	// If SIGPIPE were not handled, writing to a closed pipe, for example with "| head", would kill the program before it has
	// cleaned up. With a handler, the write returns EPIPE.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	os.Exit(run(context.Background(), os.Args[1:], stdio{
		in: os.Stdin, out: os.Stdout, err: os.Stderr, getenv: os.Getenv, signals: signals,
	}))
}

// dispatchRole runs this process as the wire process, and does not return, if argv[0] is the name of that role. It is called
// before everything else: the wire process must start fast and must not depend on the rest of the program.
func dispatchRole() {
	if wire.IsWire() {
		os.Exit(wire.Main(wireproc.Process()))
	}
}

// run executes the command line args and returns the exit code of the program.
func run(ctx context.Context, args []string, io stdio) int {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a := &app{stdio: io, interrupts: newInterrupts(cancel)}
	go a.interrupts.run(ctx, io.signals)
	return a.exitCode(a.main(ctx, args))
}
