package relay

import (
	"context"
	"os"
	"slices"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/worker"
)

// Names of the jobs that make, read and send repositories.
const (
	jobInit  = "relay.init"
	jobFetch = "relay.fetch"
	jobRefs  = "relay.refs"
	jobView  = "relay.view"
	jobStore = "relay.store"
	jobServe = "relay.serve"
	jobPush  = "relay.push"
)

// StoreJobs are the jobs of this package but those of pushes from sandboxes, for the table that the binary gives to [worker.Main].
func StoreJobs() []worker.Job {
	return []worker.Job{
		{Name: jobInit, Run: runInit},
		{Name: jobFetch, Run: runFetch},
		{Name: jobRefs, Run: runRefs},
		{Name: jobView, Run: runView},
		{Name: jobStore, Run: runStore},
		{Name: jobServe, Run: runServe},
		{Name: jobPush, Run: runPush},
	}
}

// Arguments of the jobs. Lists of refs come as input, because they may be long.
type (
	noArgs    struct{}
	fetchArgs struct {
		Transport Transport
		Limits    FetchLimits
	}
	storeArgs struct{ Head string }
)

// fetchReply is what a fetch answers; the refs are in a file.
type fetchReply struct{ Head string }

// begin decodes the arguments of a job and returns its first n descriptors.
func begin(c *worker.Call, args any, n int) ([]*os.File, error) {
	if err := c.Args(args); err != nil {
		return nil, err
	}
	return c.Files(n)
}

// here is the repository of a job.
func here() repo { return repo{dir: workDir, tmp: "/tmp"} }

// overView is a job's repository that borrows a view's objects.
func overView() repo { return repo{dir: workDir, view: viewDir, tmp: "/tmp"} }

func runInit(_ context.Context, c *worker.Call) (any, error) {
	if _, err := begin(c, &noArgs{}, 0); err != nil {
		return nil, err
	}
	return nil, here().make(hexSHA1)
}

func runFetch(ctx context.Context, c *worker.Call) (any, error) {
	var args fetchArgs
	files, err := begin(c, &args, 2)
	if err != nil {
		return nil, err
	}
	f, err := newForwarder(files[0], args.Transport)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	remote, err := here().fetch(ctx, f, args.Limits, func(line string) { c.Progress(line) })
	return giveRefs(files[1], remote, err)
}

func runRefs(ctx context.Context, c *worker.Call) (any, error) {
	files, err := begin(c, &noArgs{}, 1)
	if err != nil {
		return nil, err
	}
	remote, err := here().refs(ctx)
	return giveRefs(files[0], remote, err)
}

// giveRefs writes refs to out, and returns the rest of the answer.
func giveRefs(out *os.File, remote *Remote, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	_, err = out.Write(appendRefs(nil, remote.Refs))
	return fetchReply{Head: remote.Head}, err
}

func runView(ctx context.Context, c *worker.Call) (any, error) {
	if _, err := begin(c, &noArgs{}, 0); err != nil {
		return nil, err
	}
	refs, err := readRefs(c.Input())
	if err != nil {
		return nil, err
	}
	return nil, here().makeView(ctx, mirrorDir, refs)
}

func runStore(_ context.Context, c *worker.Call) (any, error) {
	var args storeArgs
	if _, err := begin(c, &args, 0); err != nil {
		return nil, err
	}
	refs, err := readRefs(c.Input())
	if err != nil {
		return nil, err
	}
	return nil, overView().makeStore(refs, args.Head)
}

func runServe(ctx context.Context, c *worker.Call) (any, error) {
	var args ServeRequest
	files, err := begin(c, &args, 1)
	if err != nil {
		return nil, err
	}
	p, err := newPeer(files[0])
	if err != nil {
		return nil, err
	}
	return nil, overView().serve(ctx, p, args)
}

func runPush(ctx context.Context, c *worker.Call) (any, error) {
	var args PushRequest
	files, err := begin(c, &args, 1)
	if err != nil {
		return nil, err
	}
	f, err := newForwarder(files[0], args.Transport)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	pushed, err := overView().push(ctx, f, args)
	if err != nil {
		return nil, err
	}
	if pushed == nil {
		return nil, caisson.Errorf(caisson.Internal, "a push without a result")
	}
	return pushed, nil
}

// Jobs are all jobs of this package, for the table that the binary gives to [worker.Main].
func Jobs() []worker.Job { return slices.Concat(StoreJobs(), ReceiveJobs()) }
