package drive

import (
	"context"
	"io"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/task"
)

// execDriver is the driver [caisson.DriverExec]: the standard output of the program is the answer, and exit code 0 means success.
type execDriver struct{}

// Run implements [Driver]: it runs t's command, whose standard output is the answer.
func (execDriver) Run(ctx context.Context, t *task.Task, out Out) (TurnResult, error) {
	return runOnce(ctx, t, out, nil, func(r io.Reader) {
		buf := make([]byte, 16<<10)
		for {
			n, err := r.Read(buf)
			if n > 0 {
				out.Log(caisson.LogStdout, buf[:n])
				out.Text(string(buf[:n]))
			}
			if err != nil {
				return
			}
		}
	})
}

// runOnce runs t's command and passes its standard output to read. If the command has not exited exitTimeout after done was
// closed, it is ended. If the command cannot be started, or fails, the TurnResult contains the error.
func runOnce(ctx context.Context, t *task.Task, out Out, done <-chan struct{}, read func(io.Reader)) (TurnResult, error) {
	args, input, remove, err := CommandWithPrompt(t)
	defer remove()
	if err != nil {
		return TurnResult{Error: newError(caisson.RunInvalid, err.Error())}, nil
	}
	p, err := Start(t, args, input != "")
	if err != nil {
		return TurnResult{Error: newError(caisson.RunAgentError, err.Error())}, nil
	}
	defer p.Close()
	out.Mark(task.MarkStarted)
	out.Status("running", "")
	if input == "" {
		out.Mark(task.MarkPrompt)
	} else {
		go func() {
			// A failed write is no error, because a program may exit or close its input without reading all of it.
			if _, err := io.WriteString(p.Stdin, input); err == nil {
				out.Mark(task.MarkPrompt)
			}
			p.Stdin.Close()
		}()
	}
	tail := p.Output(ctx, out, time.Duration(t.Grace), done, read)
	end := TurnResult{Exit: p.Exit()}
	if !end.Exit.Success() {
		end.Error = newError(caisson.RunAgentError, exitMessage(args[0], end.Exit, tail))
	}
	return end, nil
}
