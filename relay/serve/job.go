package serve

import (
	"context"
	"os"
	"time"

	"github.com/caisson-dev/caisson/relay/git"
	"github.com/caisson-dev/caisson/worker"
)

// Jobs are the jobs of this package, for the table that the binary gives to [worker.Main].
func Jobs() []worker.Declared { return []worker.Declared{jobServe} }

// A Tool runs the job of this package. It has no state of its own and is safe for concurrent use. It keeps none of the descriptors
// that it is given.
type Tool struct{ run worker.Starter }

// NewTool returns a Tool whose jobs r runs. The binary that r starts must have the jobs of this package in its table.
func NewTool(r worker.Starter) Tool { return Tool{run: r} }

var jobServe = worker.Job[Request, worker.None]{
	Name: "relay.serve", Programs: true, Files: 1,
	Do: func(ctx context.Context, c *worker.Call, req Request) (worker.None, error) {
		p, err := git.NewPeer(c.Files[0])
		if err != nil {
			return worker.None{}, err
		}
		return worker.None{}, serve(ctx, git.JobStore(), p, req)
	},
}

// Serve answers one request of git-upload-pack, smart HTTP's: it reads the request's body from conn, a stream socket, until its end,
// writes the whole body of the answer, and has closed the connection when it returns. It ends early if the other end closes or
// stalls. What goes wrong is told to the client, too. The caller still closes conn itself.
func (t Tool) Serve(ctx context.Context, store, view, conn *os.File, req Request) error {
	if req.Time <= 0 {
		req.Time = time.Hour
	}
	_, err := jobServe.Run(ctx, t.run, req, worker.Given{Root: store, Mounts: git.ViewMount(view), Files: []*os.File{conn}, Limits: git.JobLimits(req.Time)})
	return err
}
