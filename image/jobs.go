package image

import (
	"context"
	"os"

	"github.com/caisson-dev/caisson/worker"
)

// Names of the jobs.
const (
	jobResolve = "image.resolve"
	jobFetch   = "image.fetch"
	jobUnpack  = "image.unpack"
	jobArchive = "image.archive"
)

// Jobs returns the worker jobs of this package, for the table that the binary passes to [worker.Main].
func Jobs() []worker.Job {
	return []worker.Job{
		{Name: jobResolve, Run: runResolve},
		{Name: jobFetch, Run: runFetch},
		{Name: jobUnpack, Run: runUnpack},
		{Name: jobArchive, Run: runArchive},
	}
}

// received is the progress of a job: the number of bytes read so far.
type received struct{ Bytes int64 }

func runUnpack(_ context.Context, c *worker.Call) (any, error) {
	var args unpackArgs
	if err := c.Args(&args); err != nil {
		return nil, err
	}
	root, err := os.Open("/")
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return unpack(root, c.Input(), args, func(n int64) { c.Progress(received{n}) })
}

func runArchive(_ context.Context, c *worker.Call) (any, error) {
	out, err := c.File(0)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot("/")
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return archive(root, out)
}
