package serve

import (
	"cmp"
	"context"
	"os"
	"time"

	"github.com/caisson-dev/caisson/job/relay/git"
	"github.com/caisson-dev/caisson/job/worker"
)

// Job answers a request of a git client that clones or fetches from the store at /work.
var Job = worker.Job[Request, worker.None]{
	Name: "relay.serve", Programs: true, Files: 1,
	Do: func(ctx context.Context, c *worker.Call, req Request) (worker.None, error) {
		p, err := git.NewClientConn(c.Files[0])
		if err != nil {
			return worker.None{}, err
		}
		return worker.None{}, serve(ctx, git.StoreRepo(), p, req)
	},
}

// Run answers one request to git-upload-pack over smart HTTP. It reads the body of the request from conn, a stream socket,
// until its end, writes the complete body of the answer, and shuts the connection down. It returns early if the other end closes
// the connection or stalls. Errors are also reported to the client. The caller still has to close conn.
func Run(ctx context.Context, run worker.Starter, store, view, conn *os.File, req Request) error {
	req.Time = cmp.Or(max(req.Time, 0), time.Hour)
	_, err := Job.Run(ctx, run, req, worker.RunInput{Root: store, Mounts: git.ViewMount(view), Files: []*os.File{conn}, Limits: git.JobLimits(req.Time)})
	return err
}
