package relay

import (
	"bytes"
	"context"
	"os"
	"slices"

	"github.com/caisson-dev/caisson/relay/fetch"
	"github.com/caisson-dev/caisson/relay/git"
	"github.com/caisson-dev/caisson/relay/prepare"
	"github.com/caisson-dev/caisson/relay/push"
	"github.com/caisson-dev/caisson/relay/receive"
	"github.com/caisson-dev/caisson/relay/serve"
	"github.com/caisson-dev/caisson/worker"
)

// Jobs are all jobs of this package and of those below it but link, for the table that the binary gives to [worker.Main].
func Jobs() []worker.Declared {
	return slices.Concat([]worker.Declared{jobInit, jobRefs, jobView, jobStore},
		fetch.Jobs(), serve.Jobs(), push.Jobs(), receive.Jobs(), prepare.Jobs())
}

// Names under which the embedded types do not hide one another.
type (
	fetchTool   = fetch.Tool
	serveTool   = serve.Tool
	pushTool    = push.Tool
	receiveTool = receive.Tool
	prepareTool = prepare.Tool
)

// A Tool runs this package's functions as confined jobs. It has no state of its own and is safe for concurrent use; what must not
// happen at the same time is said at the methods. Its methods keep none of the descriptors they are given. Directories are opened
// for reading, and belong to one uid that nothing else of the host has.
type Tool struct {
	run worker.Starter
	fetchTool
	serveTool
	pushTool
	receiveTool
	prepareTool
}

// NewTool returns a Tool whose jobs r runs; the binary that r starts must have the jobs of [Jobs] in its table.
func NewTool(r worker.Starter) *Tool {
	return &Tool{r, fetch.NewTool(r), serve.NewTool(r), push.NewTool(r), receive.NewTool(r), prepare.NewTool(r)}
}

var jobInit = worker.Job[worker.None, worker.None]{
	Name: "relay.init", Programs: true, Access: worker.WriteAsOwner, Limits: git.JobLimits(git.ShortTime),
	Do: func(context.Context, *worker.Call, worker.None) (worker.None, error) {
		return worker.None{}, git.JobRepo().Make(git.HexSHA1)
	},
}

// Init makes an empty directory a bare repository without refs.
func (t *Tool) Init(ctx context.Context, dir *os.File) error {
	_, err := jobInit.Run(ctx, t.run, worker.None{}, worker.Given{Root: dir})
	return err
}

var jobRefs = worker.Job[worker.None, string]{
	Name: "relay.refs", Programs: true, Files: 1, Limits: git.JobLimits(git.ShortTime),
	Do: func(ctx context.Context, c *worker.Call, _ worker.None) (string, error) {
		remote, err := git.JobRepo().Refs(ctx)
		return git.GiveRefs(c.Files[0], remote, err)
	},
}

// Refs returns the branches and tags of a mirror, view or store.
func (t *Tool) Refs(ctx context.Context, dir *os.File) (*git.Remote, error) {
	return git.RunForRefs(ctx, t.run, jobRefs, worker.None{}, worker.Given{Root: dir})
}

var jobView = worker.Job[worker.None, worker.None]{
	Name: "relay.view", Programs: true, Access: worker.WriteAsOwner, Limits: git.JobLimits(git.CopyTime),
	Do: func(ctx context.Context, c *worker.Call, _ worker.None) (worker.None, error) {
		refs, err := git.ReadRefs(c.Input())
		if err != nil {
			return worker.None{}, err
		}
		return worker.None{}, git.MakeView(ctx, git.JobRepo(), git.MirrorDir, refs)
	},
}

// View makes view, an empty directory, a repository of exactly refs and what they reach in the mirror. Nothing may change the mirror
// meanwhile. Conflict if the mirror does not have them (any more).
func (t *Tool) View(ctx context.Context, mirror, view *os.File, refs []git.Ref) error {
	if err := git.CheckRefs(refs); err != nil {
		return err
	}
	_, err := jobView.Run(ctx, t.run, worker.None{}, worker.Given{
		Root: view, Mounts: []worker.Mount{{Dir: mirror, At: git.MirrorDir}}, Input: bytes.NewReader(git.AppendRefs(nil, refs)),
	})
	return err
}

// jobStore has the name of the HEAD as its argument.
var jobStore = worker.Job[string, worker.None]{
	Name: "relay.store", Programs: true, Access: worker.WriteAsOwner, Limits: git.JobLimits(git.ShortTime),
	Do: func(_ context.Context, c *worker.Call, head string) (worker.None, error) {
		refs, err := git.ReadRefs(c.Input())
		if err != nil {
			return worker.None{}, err
		}
		return worker.None{}, git.MakeStore(git.JobStore(), refs, head)
	},
}

// Store makes store, an empty directory, a sandbox's repository: it begins with refs, which the view must have, and borrows the view's
// objects. head is the branch that clones check out, in full; it need not exist.
func (t *Tool) Store(ctx context.Context, store, view *os.File, refs []git.Ref, head string) error {
	if err := git.CheckRefs(refs); err != nil {
		return err
	}
	_, err := jobStore.Run(ctx, t.run, head, worker.Given{Root: store, Mounts: git.ViewMount(view), Input: bytes.NewReader(git.AppendRefs(nil, refs))})
	return err
}
