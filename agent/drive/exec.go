package drive

import (
	"context"
	"io"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/agent/task"
)

// execDriver is [caisson.DriverExec]: what the program writes to standard output is the answer, and exit code 0 is success.
type execDriver struct{}

func (execDriver) Run(ctx context.Context, t *task.Task, out Out) (End, error) {
	return once(ctx, t, out, nil, func(r io.Reader) {
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

// once runs t's command to its end. Standard output is given to read; a command that could not be started or did not succeed is an error of
// the agent's.
func once(ctx context.Context, t *task.Task, out Out, done <-chan struct{}, read func(io.Reader)) (End, error) {
	args, input, remove, err := command(t)
	defer remove()
	if err != nil {
		return End{Error: fault(caisson.RunInvalid, err.Error())}, nil
	}
	p, err := Start(t, args, input != "")
	if err != nil {
		return End{Error: fault(caisson.RunAgentError, err.Error())}, nil
	}
	defer p.Close()
	out.Mark(task.MarkStarted)
	out.Status("running", "")
	if input == "" {
		out.Mark(task.MarkPrompt)
	} else {
		go func() {
			// A program that ends, or closes its input, without reading all of it has a right to.
			if _, err := io.WriteString(p.Stdin, input); err == nil {
				out.Mark(task.MarkPrompt)
			}
			p.Stdin.Close()
		}()
	}
	tail := p.Output(ctx, out, time.Duration(t.Grace), done, read)
	end := End{Exit: p.Exit()}
	if !end.Exit.Success() {
		end.Error = fault(caisson.RunAgentError, ended(args[0], end.Exit, tail))
	}
	return end, nil
}
