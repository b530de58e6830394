package drive

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/task"
)

// Drivers returns the drivers of this package by their names in the catalog.
func Drivers() map[string]Driver {
	return map[string]Driver{
		caisson.DriverExec:  execDriver{},
		caisson.DriverJSONL: jsonlDriver{},
		caisson.DriverACP:   acpDriver{},
		caisson.DriverCodex: codexDriver{},
	}
}

// The causes with which the context of a task is cancelled, when the task is ended before its agent has finished.
var (
	errTimeout    = errors.New("the agent's time is over")
	errCancelled  = errors.New("the run was cancelled")
	errReaderGone = errors.New("the reader of the agent's output has closed the stream")
)

// returnTimeout is how long a driver may take to return after the end of the agent's grace period.
const returnTimeout = 5 * time.Second

// Main reads a task from stdin, runs it with one of the drivers, and writes its output to stdout, each line a [task.Line]. It
// returns the exit code: 0 if the last line was written. It permanently changes the signal handling and the working directory of
// this process, makes it a subreaper, and must be called only once. When it returns, all processes that the task has started have
// exited, except programs in the task's Background and processes that cannot be killed.
func Main(_ []string, stdin io.Reader, stdout io.Writer, drivers map[string]Driver) int {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	w := task.NewWriter(stdout)
	t, err := readTask(stdin)
	if err == nil && drivers[t.Driver] == nil {
		err = fmt.Errorf("there is no driver %.40q", t.Driver)
	}
	if err != nil {
		return writeEnd(w, TurnResult{Error: newError(caisson.RunInvalid, err.Error())}, false)
	}
	watchSignals(cancel)
	if f, ok := stdout.(*os.File); ok {
		watchReader(f, cancel)
	}
	if err := becomeSubreaper(); err != nil {
		return writeEnd(w, TurnResult{Error: newError(caisson.RunInternal, "adopt orphans: "+err.Error())}, false)
	}
	if len(t.Background) > 0 {
		background.Store(&t.Background)
	}
	limited, stop := context.WithTimeoutCause(ctx, time.Duration(t.Time), errTimeout)
	defer stop()
	out := newOutput(w, t.Output, func(error) { cancel(errReaderGone) })
	finished := make(chan int, 1)
	go func() { finished <- runTask(limited, t, drivers[t.Driver], w, out) }()
	select {
	case code := <-finished:
		return code
	case <-limited.Done():
	}
	// runTask may be blocked because the reader of the output is slow. If it does not return in time, no result can be reported,
	// so only the processes are killed.
	select {
	case code := <-finished:
		return code
	case <-time.After(time.Duration(t.Grace) + 2*returnTimeout + killTimeout + scanTimeout):
		_ = killDescendants(os.Getpid())
		return 1
	}
}

// runTask runs t with the driver d and writes the last lines of the output, of the types assistant_final, changes and end. It
// returns the exit code of this process.
func runTask(ctx context.Context, t *task.Task, d Driver, w *task.Writer, out *output) int {
	track, end, unready := runDriver(ctx, t, d, out)
	survivors := killDescendants(os.Getpid())
	out.Mark(task.MarkAnswer)
	cut := out.close()
	switch cause := context.Cause(ctx); {
	case cause == nil:
	case errors.Is(cause, errTimeout) && unready != nil:
		end.Error = newError(caisson.RunTimeout, unready.Error())
	case errors.Is(cause, errTimeout):
		end.Error = newError(caisson.RunTimeout, t.TimeoutMessage())
	case errors.Is(cause, errCancelled):
		end.Error = newError(caisson.RunAborted, errCancelled.Error())
	case errors.Is(cause, errReaderGone):
		return 1
	}
	switch {
	case survivors != nil && end.Error == nil:
		end.Error = newError(caisson.RunInternal, survivors.Error())
	case survivors != nil:
		end.Error = newError(end.Error.Code, end.Error.Message+"; "+survivors.Error())
	}
	if end.Error == nil {
		if _, err := w.Write(task.Line{RunEvent: caisson.RunEvent{Type: caisson.EventFinal}}); err != nil {
			return 1
		}
	}
	if l, ok := track.changes(); ok {
		if _, err := w.Write(l); err != nil {
			return 1
		}
	}
	return writeEnd(w, end, cut)
}

// runDriver writes the task's files, waits for the agent's service and runs the driver. unready is the error if the service did
// not become ready. track compares the tracked directory with its state before the driver was run.
func runDriver(ctx context.Context, t *task.Task, d Driver, out *output) (track *tracker, end TurnResult, unready error) {
	if err := prepare(t); err != nil {
		return nil, TurnResult{Error: newError(caisson.RunInternal, err.Error())}, nil
	}
	scanned := make(chan struct{})
	go func() { // scans the directory while the agent's service starts
		defer close(scanned)
		track = newTracker(t)
	}()
	if t.Ready != "" {
		unready = waitReady(ctx, t.Ready, time.Duration(t.ReadyTime))
	}
	<-scanned
	if unready != nil {
		return track, TurnResult{Error: newError(caisson.RunAgentError, unready.Error())}, unready
	}
	type outcome struct {
		end TurnResult
		err error
	}
	done := make(chan outcome, 1)
	go func() {
		end, err := d.Run(ctx, t, out)
		done <- outcome{end, err}
	}()
	var o outcome
	select {
	case o = <-done:
	case <-closedAfter(ctx, time.Duration(t.Grace)+returnTimeout):
		o.err = errors.New("the driver does not return")
	}
	if o.err != nil {
		o.end.Error = newError(caisson.RunInternal, o.err.Error())
	}
	return track, o.end, nil
}

// closedAfter returns a channel that is closed when the duration after has passed since ctx is done.
func closedAfter(ctx context.Context, after time.Duration) <-chan struct{} {
	c := make(chan struct{})
	context.AfterFunc(ctx, func() { time.AfterFunc(after, func() { close(c) }) })
	return c
}

// writeEnd writes the last line of the output, and returns the exit code. cut reports whether the output was truncated.
func writeEnd(w *task.Writer, end TurnResult, cut bool) int {
	l := task.Line{RunEvent: caisson.RunEvent{Type: task.LineEnd, Error: end.Error}, Cut: cut, Exit: end.Exit, Agent: shortLine(end.Agent)}
	if _, err := w.Write(l); err != nil {
		return 1
	}
	return 0
}

// readTask reads a task from the first line of r. The line need not end with a newline.
func readTask(r io.Reader) (*task.Task, error) {
	b, err := bufio.NewReader(io.LimitReader(r, task.MaxTask+2)).ReadBytes('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return task.Decode(bytes.TrimSuffix(b, []byte("\n")))
}

// watchSignals makes termination signals cancel the task. SIGPIPE is caught and not ignored: children inherit ignored signals.
func watchSignals(cancel context.CancelCauseFunc) {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGPIPE)
	go func() {
		for s := range signals {
			if s == syscall.SIGPIPE {
				cancel(errReaderGone)
			} else {
				cancel(errCancelled)
			}
		}
	}()
}

// watchReader cancels the task when the reading end of the pipe or socket f is closed, even while nothing is written to it. Its
// goroutine runs until this process exits.
func watchReader(f *os.File, cancel context.CancelCauseFunc) {
	fd := int32(f.Fd())
	go func() {
		if waitForHangup(fd) {
			cancel(errReaderGone)
		}
	}()
}
