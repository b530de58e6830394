package push

import (
	"cmp"
	"context"
	"os"
	"time"

	"github.com/caisson-dev/caisson/job/relay/git"
	"github.com/caisson-dev/caisson/job/relay/remote"
	"github.com/caisson-dev/caisson/job/worker"
)

// Job pushes a commit of the store at /work to a branch of a remote.
var Job = worker.Job[Request, Result]{
	Name: "relay.push", Programs: true, Files: 1,
	Do: func(ctx context.Context, c *worker.Call, req Request) (Result, error) {
		f, err := remote.NewForwarder(c.Files[0], req.Transport)
		if err != nil {
			return Result{}, err
		}
		defer f.Close()
		return worker.Value(push(ctx, git.StoreRepo(), f, req))
	},
}

// Run moves a branch of the remote at the other end of link, a socket to the transport, as req specifies. It succeeds if the
// branch is at the commit already. Errors are Conflict if the branch is not where req.Expect says, Denied or NotFound as the
// remote answers, and Unavailable if the remote cannot be reached or the result of the push is unknown. Errors contain the
// remote's message.
func Run(ctx context.Context, run worker.Starter, store, view, link *os.File, req Request) (*Result, error) {
	if err := req.check(); err != nil {
		return nil, err
	}
	req.Time = cmp.Or(max(req.Time, 0), 30*time.Minute)
	given := worker.RunInput{Root: store, Mounts: git.ViewMount(view), Files: []*os.File{link}, Limits: git.JobLimits(req.Time)}
	pushed, err := Job.Run(ctx, run, req, given)
	if err != nil {
		return nil, err
	}
	pushed.RemoteMessage = git.OneLine(pushed.RemoteMessage, 300)
	return &pushed, nil
}
