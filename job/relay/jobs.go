package relay

import (
	"bytes"
	"context"
	"os"

	"github.com/caisson-dev/caisson/job/relay/fetch"
	"github.com/caisson-dev/caisson/job/relay/git"
	"github.com/caisson-dev/caisson/job/relay/prepare"
	"github.com/caisson-dev/caisson/job/relay/push"
	"github.com/caisson-dev/caisson/job/relay/receive"
	"github.com/caisson-dev/caisson/job/relay/serve"
	"github.com/caisson-dev/caisson/job/worker"
)

// Jobs returns all jobs of this package and of the packages below it except transport, for the table that the binary passes to
// [worker.Main].
func Jobs() []worker.Declared {
	return []worker.Declared{jobInit, jobRefs, jobView, jobStore, fetch.Job, serve.Job, push.Job, receive.Job, prepare.Job}
}

// jobInit creates a bare repository without refs at /work.
var jobInit = worker.Job[worker.None, worker.None]{
	Name: "relay.init", Programs: true, Access: worker.WriteAsOwner, Limits: git.JobLimits(git.ShortTime),
	Do: func(context.Context, *worker.Call, worker.None) (worker.None, error) {
		return worker.None{}, git.WorkRepo().Init(git.HexSHA1)
	},
}

// Init creates a bare repository without refs in dir, which must be empty.
func Init(ctx context.Context, run worker.Starter, dir *os.File) error {
	_, err := jobInit.Run(ctx, run, worker.None{}, worker.RunInput{Root: dir})
	return err
}

// jobRefs replies with the HEAD of the repository at /work, and writes its refs to the file that it is given.
var jobRefs = worker.Job[worker.None, string]{
	Name: "relay.refs", Programs: true, Files: 1, Limits: git.JobLimits(git.ShortTime),
	Do: func(ctx context.Context, c *worker.Call, _ worker.None) (string, error) {
		remote, err := git.WorkRepo().Refs(ctx)
		return git.ReplyRefs(c.Files[0], remote, err)
	},
}

// Refs returns the branches, tags and HEAD of a mirror, view or store.
func Refs(ctx context.Context, run worker.Starter, dir *os.File) (*git.Remote, error) {
	return git.RunRefsJob(ctx, run, jobRefs, worker.None{}, worker.RunInput{Root: dir})
}

// jobView creates a view at /work, from the mirror at /mirror. Its input is the list of refs.
var jobView = worker.Job[worker.None, worker.None]{
	Name: "relay.view", Programs: true, Access: worker.WriteAsOwner, Limits: git.JobLimits(git.CopyTime),
	Do: func(ctx context.Context, c *worker.Call, _ worker.None) (worker.None, error) {
		refs, err := git.ReadRefs(c.Input())
		if err != nil {
			return worker.None{}, err
		}
		return worker.None{}, git.MakeView(ctx, git.WorkRepo(), git.MirrorDir, refs)
	},
}

// View creates a repository in view, which must be an empty directory, with exactly refs and the objects that they reach in the
// mirror. The mirror must not change during the call. It returns a Conflict error if the mirror does not have the refs, or no
// longer has them.
func View(ctx context.Context, run worker.Starter, mirror, view *os.File, refs []git.Ref) error {
	if err := git.CheckRefs(refs); err != nil {
		return err
	}
	_, err := jobView.Run(ctx, run, worker.None{}, worker.RunInput{
		Root: view, Mounts: []worker.Mount{{Dir: mirror, At: git.MirrorDir}}, Input: bytes.NewReader(git.AppendRefs(nil, refs)),
	})
	return err
}

// jobStore creates a store at /work. Its argument is the full name of the HEAD branch; its input is the list of refs.
var jobStore = worker.Job[string, worker.None]{
	Name: "relay.store", Programs: true, Access: worker.WriteAsOwner, Limits: git.JobLimits(git.ShortTime),
	Do: func(_ context.Context, c *worker.Call, head string) (worker.None, error) {
		refs, err := git.ReadRefs(c.Input())
		if err != nil {
			return worker.None{}, err
		}
		return worker.None{}, git.MakeStore(git.StoreRepo(), refs, head)
	},
}

// Store creates a sandbox's repository in store, which must be an empty directory. It starts with refs, which the view must have,
// and borrows the view's objects. head is the full name of the branch that clones check out; it need not exist.
func Store(ctx context.Context, run worker.Starter, store, view *os.File, refs []git.Ref, head string) error {
	if err := git.CheckRefs(refs); err != nil {
		return err
	}
	_, err := jobStore.Run(ctx, run, head, worker.RunInput{Root: store, Mounts: git.ViewMount(view), Input: bytes.NewReader(git.AppendRefs(nil, refs))})
	return err
}
