package relay

import (
	"context"
	"os"
	"time"

	"github.com/caisson-dev/caisson/worker"
)

// serveJobs are the jobs of this package, for the table that the binary gives to [worker.Main].
func serveJobs() []worker.Declared { return []worker.Declared{jobServe} }

// A serveTool runs the job of this package. It has no state of its own and is safe for concurrent use. It keeps none of the descriptors
// that it is given.
type serveTool struct{ run worker.Starter }

// newServeTool returns a Tool whose jobs r runs. The binary that r starts must have the jobs of this package in its table.
func newServeTool(r worker.Starter) serveTool { return serveTool{run: r} }

var jobServe = worker.Job[ServeRequest, worker.None]{
	Name: "relay.serve", Programs: true, Files: 1,
	Do: func(ctx context.Context, c *worker.Call, req ServeRequest) (worker.None, error) {
		p, err := newPeer(c.Files[0])
		if err != nil {
			return worker.None{}, err
		}
		return worker.None{}, serve(ctx, overView(), p, req)
	},
}

// Serve answers one request of git-upload-pack, smart HTTP's: it reads the request's body from conn, a stream socket, until its end,
// writes the whole body of the answer, and has closed the connection when it returns. It ends early if the other end closes or
// stalls. What goes wrong is told to the client, too. The caller still closes conn itself.
func (t serveTool) Serve(ctx context.Context, store, view, conn *os.File, req ServeRequest) error {
	if req.Time <= 0 {
		req.Time = time.Hour
	}
	_, err := jobServe.Run(ctx, t.run, req, worker.Given{Root: store, Mounts: overMount(view), Files: []*os.File{conn}, Limits: limits(req.Time)})
	return err
}
