// Command caisson runs AI agents in sealed sandboxes: one binary that is the command line, the daemon, and every helper
// process the daemon starts.
//
// As a command line it speaks the API and nothing else; where no daemon runs on the data directory it starts one in the
// background.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// stdio is what the program has of the world around it; tests bring their own.
type stdio struct {
	in       io.Reader
	out, err io.Writer
	getenv   func(string) string
	signals  <-chan os.Signal // interrupts, as [os/signal.Notify] delivers them; nil for none
}

func main() {
	if dispatchRole() {
		return
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	// Without this a reader that goes away (| head) would end the program before it has cleaned up.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	os.Exit(run(context.Background(), os.Args[1:], stdio{
		in: os.Stdin, out: os.Stdout, err: os.Stderr, getenv: os.Getenv, signals: signals,
	}))
}

// run is the command line: it does what args say and returns the exit code.
func run(ctx context.Context, args []string, io stdio) int {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a := &app{stdio: io, interrupts: newInterrupts(cancel)}
	go a.interrupts.run(ctx, io.signals)
	return a.exitCode(a.main(ctx, args))
}
