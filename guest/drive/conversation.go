package drive

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/task"
)

// converse starts the program of t, connects rpc to its standard streams, and calls turn, which sends the requests of one turn.
// The context talk that turn gets ends some time after ctx, so that turn can cancel the agent's turn when ctx ends.
func converse(ctx context.Context, t *task.Task, state *turnState, rpc *rpc, turn func(ctx, talk context.Context) error) (TurnResult, error) {
	p, err := Start(t, t.Command, true)
	if err != nil {
		return TurnResult{Error: newError(caisson.RunAgentError, err.Error())}, nil
	}
	defer p.Close()
	state.out.Mark(task.MarkStarted)
	talk, hangUp := context.WithCancel(context.WithoutCancel(ctx))
	defer hangUp()
	go rpc.write(talk, p.Stdin)
	var said error
	var wg sync.WaitGroup
	done, over := make(chan struct{}), make(chan struct{})
	wg.Go(func() {
		defer close(done)
		if said = turn(ctx, talk); errors.Is(said, errClosed) {
			select {
			case <-p.Ended():
			case <-time.After(lingerTimeout):
				said = errors.New("the agent has closed its output without an answer")
			}
		}
		state.out.Mark(task.MarkAnswer)
		close(over)
		p.Stdin.Close() // makes most agents exit
	})
	// After the end of ctx, the agent can end its turn during the first half of the grace period, without a signal to the
	// program. During the second half, after SIGTERM, the program has to exit.
	grace := time.Duration(t.Grace) / 2
	patient, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		select {
		case <-over:
		case <-time.After(grace):
		}
		cancel()
		hangUp()
	})()
	tail := p.Output(patient, state.out, grace, done, func(r io.Reader) { rpc.read(talk, r) })
	hangUp()
	wg.Wait()
	end := TurnResult{Exit: p.Exit(), Agent: state.version}
	switch {
	case errors.Is(said, errClosed):
		end.Error = newError(caisson.RunAgentError, exitMessage(t.Command[0], end.Exit, tail))
	case said != nil:
		end.Error = newAgentError(said.Error())
	}
	return end, nil
}
