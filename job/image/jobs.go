package image

import (
	"context"
	"os"
	"time"

	"github.com/caisson-dev/caisson/job/worker"
)

// Jobs are the jobs of this package, for the table that the binary gives to [worker.Main].
func Jobs() []worker.Declared { return []worker.Declared{jobResolve, jobFetch, jobUnpack, jobArchive} }

// jobResolve requests the description of an image from its registry.
var jobResolve = worker.Job[source, resolved]{
	Name: "image.resolve", Network: true, Limits: worker.Limits{Time: 5 * time.Minute, CPU: time.Minute},
	Do: func(ctx context.Context, _ *worker.Call, src source) (resolved, error) {
		r, err := resolve(ctx, src)
		return worker.Value(r, registryError(err, src.Reference))
	},
}

// jobFetch fetches a blob from a registry and writes it to its first descriptor.
var jobFetch = worker.Job[fetchArgs, worker.None]{
	Name: "image.fetch", Network: true, Files: 1,
	Do: func(ctx context.Context, c *worker.Call, args fetchArgs) (worker.None, error) {
		return worker.None{}, registryError(fetch(ctx, args, c.Files[0]), args.Source.Reference)
	},
}

// jobProgress is the progress of a job: the number of bytes read so far.
type jobProgress struct{ Bytes int64 }

// jobUnpack unpacks the archive in its input into its root directory.
var jobUnpack = worker.Job[unpackArgs, unpackResult]{
	Name: "image.unpack", Access: worker.Populate, Root: true,
	Do: func(_ context.Context, c *worker.Call, args unpackArgs) (unpackResult, error) {
		return worker.Value(unpack(c.Root, c.Input(), args, func(n int64) { c.Progress(jobProgress{n}) }))
	},
	Valid: func(args unpackArgs, u *unpackResult) bool {
		return u.Size >= 0 && u.Entries >= 0 && u.InSize >= 0 && digestForm.MatchString(u.DiffID) && digestForm.MatchString(u.In) &&
			(!args.Content || digestForm.MatchString(u.Content))
	},
}

// jobArchive writes the contents of its root directory as a tar archive to its first descriptor.
var jobArchive = worker.Job[worker.None, archiveResult]{
	Name: "image.archive", Access: worker.ReadAsOwner, Files: 1,
	Do: func(_ context.Context, c *worker.Call, _ worker.None) (archiveResult, error) {
		root, err := os.OpenRoot("/")
		if err != nil {
			return archiveResult{}, err
		}
		defer root.Close()
		return worker.Value(archive(root, c.Files[0]))
	},
}
