package fetch

import (
	"context"
	"encoding/json"
	"os"

	"github.com/caisson-dev/caisson/job/relay/git"
	"github.com/caisson-dev/caisson/job/relay/remote"
	"github.com/caisson-dev/caisson/job/worker"
)

// fetchArgs are the arguments of the job that updates a mirror.
type fetchArgs struct {
	Transport remote.Protocol // protocol between the transport and the remote
	Limits    Limits
}

// Job updates the mirror at /work. It replies with the remote's HEAD and writes the remote's refs to its last descriptor.
var Job = worker.Job[fetchArgs, string]{
	Name: "relay.fetch", Programs: true, Access: worker.WriteAsOwner, Files: 2,
	Do: func(ctx context.Context, c *worker.Call, args fetchArgs) (string, error) {
		f, err := remote.NewForwarder(c.Files[0], args.Transport)
		if err != nil {
			return "", err
		}
		defer f.Close()
		remote, err := mirror{git.WorkRepo()}.fetch(ctx, f, args.Limits, func(line string) { c.Progress(line) })
		return git.ReplyRefs(c.Files[1], remote, err)
	},
}

// Run updates a mirror from the remote at the other end of link, a socket to the transport, and returns the refs that the
// mirror has then. If it fails, no ref of the mirror has changed. Nothing else may use the mirror during the call. Errors are
// Denied and NotFound as the remote answers, Unavailable if the remote cannot be reached, and Exhausted if a limit is exceeded.
func Run(ctx context.Context, run worker.Starter, mirror, link *os.File, req Request) (*git.Remote, error) {
	args := fetchArgs{Transport: req.Transport, Limits: req.Limits.withDefaults()}
	given := worker.RunInput{Root: mirror, Files: []*os.File{link}, Limits: git.JobLimits(args.Limits.Time)}
	if req.Progress != nil {
		given.Progress = func(raw json.RawMessage) {
			var line string
			if json.Unmarshal(raw, &line) == nil {
				req.Progress(git.OneLine(line, 200))
			}
		}
	}
	return git.RunRefsJob(ctx, run, Job, args, given)
}
