package push

import (
	"context"
	"os"
	"time"

	"github.com/caisson-dev/caisson/relay/git"
	"github.com/caisson-dev/caisson/relay/remote"
	"github.com/caisson-dev/caisson/worker"
)

// Jobs are the jobs of this package, for the table that the binary gives to [worker.Main].
func Jobs() []worker.Declared { return []worker.Declared{jobPush} }

// A Tool runs the job of this package. It has no state of its own and is safe for concurrent use. It keeps none of the descriptors
// that it is given.
type Tool struct{ run worker.Starter }

// NewTool returns a Tool whose jobs r runs. The binary that r starts must have the jobs of this package in its table.
func NewTool(r worker.Starter) Tool { return Tool{run: r} }

var jobPush = worker.Job[Request, Result]{
	Name: "relay.push", Programs: true, Files: 1,
	Do: func(ctx context.Context, c *worker.Call, req Request) (Result, error) {
		f, err := remote.NewForwarder(c.Files[0], req.Transport)
		if err != nil {
			return Result{}, err
		}
		defer f.Close()
		return worker.Value(push(ctx, git.JobStore(), f, req))
	},
}

// Push makes a branch of the remote at the other end of link what req says. If the remote has the commit there already, that is a
// success. Errors are Conflict if the branch is not where it was expected, Denied or NotFound as the remote answers, Unavailable if
// it cannot be had now or what became of the push is not known; each with the remote's own words.
func (t Tool) Push(ctx context.Context, store, view, link *os.File, req Request) (*Result, error) {
	if err := req.check(); err != nil {
		return nil, err
	}
	if req.Time <= 0 {
		req.Time = 30 * time.Minute
	}
	given := worker.Given{Root: store, Mounts: git.ViewMount(view), Files: []*os.File{link}, Limits: git.JobLimits(req.Time)}
	pushed, err := jobPush.Run(ctx, t.run, req, given)
	if err != nil {
		return nil, err
	}
	pushed.Said = git.Plain(pushed.Said, 300)
	return &pushed, nil
}
