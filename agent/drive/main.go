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
	"github.com/caisson-dev/caisson/agent/task"
)

// Drivers returns the drivers of this package by their names in the catalog.
func Drivers() map[string]Driver {
	return map[string]Driver{
		caisson.DriverExec:  execDriver{},
		caisson.DriverJSONL: jsonlDriver{},
		caisson.DriverACP:   acpDriver{},
	}
}

// Why a task ends before its agent does.
var (
	errTime      = errors.New("the agent's time is over")
	errCancelled = errors.New("the run was cancelled")
	errReader    = errors.New("nobody reads what the agent says")
)

// overtime is what a driver has to return once its agent's grace is over.
const overtime = 5 * time.Second

// Main reads a task from stdin, lets one of the drivers have it done, and says to stdout what happens. It returns the exit code: 0 if stdout has
// got its end. It changes this process for good (signals, working directory, orphans) and is called once. No process that the task has started
// runs any more when it returns, but those of its background.
func Main(_ []string, stdin io.Reader, stdout io.Writer, drivers map[string]Driver) int {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	w := task.NewWriter(stdout)
	t, err := readTask(stdin)
	if err == nil && drivers[t.Driver] == nil {
		err = fmt.Errorf("there is no driver %.40q", t.Driver)
	}
	if err != nil {
		return say(w, End{Error: fault(caisson.RunInvalid, err.Error())}, false)
	}
	watchSignals(cancel)
	if f, ok := stdout.(*os.File); ok {
		watchReader(f, cancel)
	}
	if err := adopt(); err != nil {
		return say(w, End{Error: fault(caisson.RunInternal, "adopt orphans: "+err.Error())}, false)
	}
	if len(t.Background) > 0 {
		spared.Store(&t.Background)
	}
	limited, stop := context.WithTimeoutCause(ctx, time.Duration(t.Time), errTime)
	defer stop()
	out := newOutput(w, t.Output, func(error) { cancel(errReader) })
	finished := make(chan int, 1)
	go func() { finished <- do(limited, t, drivers[t.Driver], w, out) }()
	select {
	case code := <-finished:
		return code
	case <-limited.Done():
	}
	// The reader may be there and take nothing. Then there is nobody to tell, and what is left is to leave nothing behind.
	select {
	case code := <-finished:
		return code
	case <-time.After(time.Duration(t.Grace) + 2*overtime + killTime + scanTime):
		_ = killBelow(os.Getpid())
		return 1
	}
}

// do does t and says so.
func do(ctx context.Context, t *task.Task, d Driver, w *task.Writer, out *output) int {
	track, end, unready := attempt(ctx, t, d, out)
	survivors := killBelow(os.Getpid())
	out.Mark(task.MarkAnswer)
	cut := out.close()
	switch cause := context.Cause(ctx); {
	case cause == nil:
	case errors.Is(cause, errTime) && unready != nil:
		end.Error = fault(caisson.RunTimeout, unready.Error())
	case errors.Is(cause, errTime):
		end.Error = fault(caisson.RunTimeout, "the agent was not done after "+t.Time.String())
	case errors.Is(cause, errCancelled):
		end.Error = fault(caisson.RunAborted, errCancelled.Error())
	case errors.Is(cause, errReader):
		return 1
	}
	switch {
	case survivors != nil && end.Error == nil:
		end.Error = fault(caisson.RunInternal, survivors.Error())
	case survivors != nil:
		end.Error = fault(end.Error.Code, end.Error.Message+"; "+survivors.Error())
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
	return say(w, end, cut)
}

// attempt prepares the sandbox and runs the driver. unready says why it did not: the agent's service never was ready, and its output is
// in the log.
func attempt(ctx context.Context, t *task.Task, d Driver, out *output) (track *tracker, end End, unready error) {
	if err := prepare(t); err != nil {
		return nil, End{Error: fault(caisson.RunInternal, err.Error())}, nil
	}
	scanned := make(chan struct{})
	go func() { // while the service starts
		defer close(scanned)
		track = newTracker(t)
	}()
	if t.Ready != "" {
		unready = ready(ctx, t.Ready, time.Duration(t.ReadyTime))
	} else {
		unready = service(ctx).failed()
	}
	<-scanned
	if unready != nil {
		if s := service(context.WithoutCancel(ctx)); s != nil {
			out.Log(caisson.LogStderr, s.Output)
		}
		return track, End{Error: fault(caisson.RunAgentError, unready.Error())}, unready
	}
	type outcome struct {
		end End
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
	case <-late(ctx, time.Duration(t.Grace)+overtime):
		o.err = errors.New("the driver does not end")
	}
	if o.err != nil {
		o.end.Error = fault(caisson.RunInternal, o.err.Error())
	}
	return track, o.end, nil
}

// late is closed some time after ctx has ended.
func late(ctx context.Context, after time.Duration) <-chan struct{} {
	c := make(chan struct{})
	context.AfterFunc(ctx, func() { time.AfterFunc(after, func() { close(c) }) })
	return c
}

// say writes the end.
func say(w *task.Writer, end End, cut bool) int {
	l := task.Line{RunEvent: caisson.RunEvent{Type: task.LineEnd, Error: end.Error}, Cut: cut, Exit: end.Exit, Agent: word(end.Agent)}
	if _, err := w.Write(l); err != nil {
		return 1
	}
	return 0
}

// readTask reads one line, or all if there is only one.
func readTask(r io.Reader) (*task.Task, error) {
	b, err := bufio.NewReader(io.LimitReader(r, task.MaxTask+2)).ReadBytes('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return task.Decode(bytes.TrimSuffix(b, []byte("\n")))
}

// watchSignals makes signals that end programs cancel the task. SIGPIPE is caught, not ignored: what is ignored stays so in what is started.
func watchSignals(cancel context.CancelCauseFunc) {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGPIPE)
	go func() {
		for s := range signals {
			if s == syscall.SIGPIPE {
				cancel(errReader)
			} else {
				cancel(errCancelled)
			}
		}
	}()
}

// watchReader cancels the task when nobody can read f any more, also while nothing is written to it. It waits until this process ends.
func watchReader(f *os.File, cancel context.CancelCauseFunc) {
	fd := int32(f.Fd())
	go func() {
		if gone(fd) {
			cancel(errReader)
		}
	}()
}
