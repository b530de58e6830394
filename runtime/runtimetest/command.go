package runtimetest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/caisson-dev/caisson"
)

var commandTests = []test{
	{"CommandRuns", testCommandRuns},
	{"CommandGivenEverything", testCommandGiven},
	{"CommandEnds", testCommandEnds},
	{"CommandWaitedForByMany", testCommandWait},
	{"CommandNone", testCommandNone},
	{"CommandNotExecutable", testCommandNotExecutable},
	{"ReaderGoesAway", testReaderGoesAway},
}

// outputFIFO creates a FIFO, sets it as the standard output of the sandbox's command in b.spec, and returns its reading end. Both
// ends are closed at the end of the test.
func outputFIFO(b *box) (r *os.File) {
	b.t.Helper()
	name := filepath.Join(b.t.TempDir(), "stdout")
	must(b.t, "make a FIFO", syscall.Mkfifo(name, 0o600))
	w, err := os.OpenFile(name, os.O_RDWR, 0)
	must(b.t, "open a FIFO", err)
	b.t.Cleanup(func() { w.Close() })
	b.spec.Stdout = w
	r, err = os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	must(b.t, "open a FIFO", err)
	b.t.Cleanup(func() { r.Close() })
	return r
}

// testCommandRuns checks that a sandbox's command runs as a child of init, and that its output arrives.
func testCommandRuns(t *testing.T, s *suite) {
	b := s.newBox(t)
	b.spec.Command = s.argv("ignore-term")
	out := outputFIFO(b)
	b.create()
	wantLine(b, lines(out), "ready")
	list := b.processes()
	if len(list) != 2 {
		t.Fatalf("%d processes, want init and the command: %v", len(list), list)
	}
	for pid, p := range list {
		if pid != 1 && p.PPID != 1 {
			t.Errorf("the command is %+v, no child of init", p)
		}
	}
}

// testCommandGiven checks that a sandbox's command gets the user, the working directory and the environment in the spec.
func testCommandGiven(t *testing.T, s *suite) {
	b := s.newBox(t)
	b.spec.Command, b.spec.User, b.spec.Workdir = s.argv("fill", "here", "1"), "agent", "/shared"
	b.create()
	if got, err := s.Runtime.WaitCommand(b.ctx(), b.id); err != nil || !got.Success() {
		t.Errorf("WaitCommand = %v, %v", got, err)
	}
	b.wantOutput("file 0644 1234 1235 1", "stat", "/shared/here")
	b = s.newBox(t)
	b.spec.Command, b.spec.Env = s.argv("env"), []string{"KEY=value"}
	out := outputFIFO(b)
	b.create()
	wantLine(b, lines(out), "KEY=value")
}

// testCommandEnds checks that the exit status of a sandbox's command can be read repeatedly.
func testCommandEnds(t *testing.T, s *suite) {
	b := s.create(t, "exit", "7")
	for range 2 {
		if got, err := s.Runtime.WaitCommand(b.ctx(), b.id); err != nil || got != (caisson.ExitStatus{Code: 7}) {
			t.Errorf("WaitCommand = %+v, %v", got, err)
		}
	}
	// The sandbox keeps running when its command has exited.
	b.wantAlive()
	b.wantRunning()
}

// testCommandWait checks that WaitCommand returns to several concurrent callers, and when its context is cancelled.
func testCommandWait(t *testing.T, s *suite) {
	b := s.create(t, "sleep", "1h")
	ctx, cancel := context.WithCancel(b.ctx())
	cancel()
	if _, err := s.Runtime.WaitCommand(ctx, b.id); !errors.Is(err, context.Canceled) {
		t.Errorf("WaitCommand with a cancelled context: %v", err)
	}
	ctx = b.ctx()
	var g errgroup.Group
	for range 8 {
		g.Go(func() error {
			got, err := s.Runtime.WaitCommand(ctx, b.id)
			if err == nil && got.Signal != sigTerm {
				err = errors.New("ended otherwise: " + got.String())
			}
			return err
		})
	}
	must(t, "Signal", s.Runtime.Signal(ctx, b.id, -1, sigTerm))
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}

// testCommandNone calls WaitCommand for a sandbox without a command.
func testCommandNone(t *testing.T, s *suite) {
	b := s.create(t)
	_, err := s.Runtime.WaitCommand(b.ctx(), b.id)
	wantKind(t, "WaitCommand", err, caisson.Conflict)
}

// testCommandNotExecutable creates sandboxes with a command that cannot be executed. A runtime may detect that in Create, or
// inside the sandbox; then the exit code must be 126 or 127.
func testCommandNotExecutable(t *testing.T, s *suite) {
	for command, codes := range map[string][]int{"/no/such-program": {127}, "no-such-program": {127}, "/lower/text": {126, 127}} {
		b := s.newBox(t)
		b.spec.Command = []string{command, "argument"}
		if err := s.Runtime.Create(b.ctx(), b.id, b.spec); err != nil {
			wantKind(t, "Create", err, caisson.Invalid, command)
			b.wantNotListed()
			continue
		}
		if got, err := s.Runtime.WaitCommand(b.ctx(), b.id); err != nil || !slices.Contains(codes, got.Code) {
			t.Errorf("%s: WaitCommand = %v, %v; want one of the codes %v", command, got, err, codes)
		}
	}
}

// testReaderGoesAway closes both ends of a sandbox's output, as the exit of the daemon does, and checks that the command
// continues and its output arrives at a new reader.
func testReaderGoesAway(t *testing.T, s *suite) {
	b := s.newBox(t)
	b.spec.Command = s.argv("ignore-term") // this test program prints "ignored" for every SIGTERM
	out := outputFIFO(b)
	b.create()
	wantLine(b, lines(out), "ready")
	out.Close()
	b.spec.Stdout.Close()
	must(t, "Signal", s.Runtime.Signal(b.ctx(), b.id, -1, sigTerm))
	again, err := os.Open(b.spec.Stdout.Name())
	must(t, "open the FIFO again", err)
	defer again.Close()
	wantLine(b, lines(again), "ignored")
	if len(b.processes()) != 2 {
		t.Error("the command has ended")
	}
}
