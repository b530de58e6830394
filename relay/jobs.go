package relay

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/refname"
	"github.com/caisson-dev/caisson/worker"
)

// Jobs are all jobs of this package, for the table that the binary gives to [worker.Main].
func Jobs() []worker.Declared {
	return []worker.Declared{jobInit, jobFetch, jobRefs, jobView, jobStore, jobServe, jobPush, jobReceive, jobPrepare}
}

// A Tool runs this package's functions as confined jobs. It has no state of its own and is safe for concurrent use; what must not
// happen at the same time is said at the methods. Its methods keep none of the descriptors they are given. Directories are opened
// for reading, and belong to one uid that nothing else of the host has.
type Tool struct {
	run worker.Starter
}

// NewTool returns a Tool whose jobs r runs; the binary that r starts must have the jobs of this package in its table.
func NewTool(r worker.Starter) *Tool { return &Tool{run: r} }

// gitMemory bounds the private memory of each program of a job. Git maps packs, which does not count.
const gitMemory = 4 << 30

// limits are those of a job that may take so long.
func limits(t time.Duration) worker.Limits {
	return worker.Limits{Time: t, CPU: 2 * t, Memory: gitMemory}
}

// quick is how long what depends on no remote and copies no objects may take.
const quick = 5 * time.Minute

// copying is how long it may take to copy the objects of a repository.
const copying = 30 * time.Minute

// here is the repository of a job.
func here() repo { return repo{dir: workDir, tmp: "/tmp"} }

// overView is a job's repository that borrows a view's objects: a sandbox's store.
func overView() repo { return repo{dir: workDir, view: viewDir, tmp: "/tmp"} }

func overMount(view *os.File) []worker.Mount { return []worker.Mount{{Dir: view, At: viewDir}} }

var jobInit = worker.Job[worker.None, worker.None]{
	Name: "relay.init", Programs: true, Access: worker.WriteAsOwner, Limits: limits(quick),
	Do: func(context.Context, *worker.Call, worker.None) (worker.None, error) {
		return worker.None{}, here().make(hexSHA1)
	},
}

// Init makes an empty directory a bare repository without refs.
func (t *Tool) Init(ctx context.Context, dir *os.File) error {
	_, err := jobInit.Run(ctx, t.run, worker.None{}, worker.Given{Root: dir})
	return err
}

type fetchArgs struct {
	Transport Transport
	Limits    FetchLimits
}

// jobFetch replies with the HEAD of the remote, and writes its refs to the last descriptor, as jobRefs does for a repository.
var jobFetch = worker.Job[fetchArgs, string]{
	Name: "relay.fetch", Programs: true, Access: worker.WriteAsOwner, Files: 2,
	Do: func(ctx context.Context, c *worker.Call, args fetchArgs) (string, error) {
		f, err := newForwarder(c.Files[0], args.Transport)
		if err != nil {
			return "", err
		}
		defer f.Close()
		remote, err := here().fetch(ctx, f, args.Limits, func(line string) { c.Progress(line) })
		return giveRefs(c.Files[1], remote, err)
	},
}

// Fetch brings a mirror up to date with the remote at the other end of link, and returns what it has then. If it fails, no ref of the mirror
// has changed. Nothing else may use the mirror meanwhile. Errors are Denied and NotFound as the remote answers, Unavailable if it
// cannot be had now, Exhausted beyond the limits.
func (t *Tool) Fetch(ctx context.Context, mirror, link *os.File, req FetchRequest) (*Remote, error) {
	args := fetchArgs{Transport: req.Transport, Limits: req.Limits.withDefaults()}
	given := worker.Given{Root: mirror, Files: []*os.File{link}, Limits: limits(args.Limits.Time)}
	if req.Progress != nil {
		given.Progress = func(raw json.RawMessage) {
			var line string
			if json.Unmarshal(raw, &line) == nil {
				req.Progress(plain(line, 200))
			}
		}
	}
	return runForRefs(ctx, t, jobFetch, args, given)
}

var jobRefs = worker.Job[worker.None, string]{
	Name: "relay.refs", Programs: true, Files: 1, Limits: limits(quick),
	Do: func(ctx context.Context, c *worker.Call, _ worker.None) (string, error) {
		remote, err := here().refs(ctx)
		return giveRefs(c.Files[0], remote, err)
	},
}

// Refs returns the branches and tags of a mirror, view or store.
func (t *Tool) Refs(ctx context.Context, dir *os.File) (*Remote, error) {
	return runForRefs(ctx, t, jobRefs, worker.None{}, worker.Given{Root: dir})
}

// giveRefs writes refs to out, and returns the rest of the reply.
func giveRefs(out *os.File, remote *Remote, err error) (head string, _ error) {
	if err != nil {
		return "", err
	}
	_, err = out.Write(appendRefs(nil, remote.Refs))
	return remote.Head, err
}

// runForRefs runs a job that replies as giveRefs does.
func runForRefs[Args any](ctx context.Context, t *Tool, job worker.Job[Args, string], args Args, given worker.Given) (*Remote, error) {
	out, err := worker.Scratch("refs")
	if err != nil {
		return nil, err
	}
	defer out.Close()
	given.Files = append(given.Files, out)
	head, err := job.Run(ctx, t.run, args, given)
	if err != nil {
		return nil, err
	}
	refs, err := readRefs(io.NewSectionReader(out, 0, maxRefs*maxRefLine))
	if err != nil {
		return nil, caisson.Wrap(err, caisson.Internal, "the list of refs cannot be read")
	}
	isHead := func(r Ref) bool { return r.Name == head && strings.HasPrefix(r.Name, "refs/heads/") }
	if head != "" && !slices.ContainsFunc(refs, isHead) {
		return nil, caisson.Errorf(caisson.Internal, "the job's HEAD is none of its refs")
	}
	return &Remote{Head: head, Refs: refs}, nil
}

// maxRefLine is more than an entry of appendRefs has.
const maxRefLine = hexSHA256 + refname.MaxLength + 20

// readRefs reads what appendRefs has made, and believes nothing of it.
func readRefs(r io.Reader) ([]Ref, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxRefs*maxRefLine))
	if err != nil {
		return nil, err
	}
	refs, err := parseRefs(text)
	if err != nil {
		return nil, err
	}
	return refs, checkRefs(refs)
}

var jobView = worker.Job[worker.None, worker.None]{
	Name: "relay.view", Programs: true, Access: worker.WriteAsOwner, Limits: limits(copying),
	Do: func(ctx context.Context, c *worker.Call, _ worker.None) (worker.None, error) {
		refs, err := readRefs(c.Input())
		if err != nil {
			return worker.None{}, err
		}
		return worker.None{}, here().makeView(ctx, mirrorDir, refs)
	},
}

// View makes view, an empty directory, a repository of exactly refs and what they reach in the mirror. Nothing may change the mirror
// meanwhile. Conflict if the mirror does not have them (any more).
func (t *Tool) View(ctx context.Context, mirror, view *os.File, refs []Ref) error {
	if err := checkRefs(refs); err != nil {
		return err
	}
	_, err := jobView.Run(ctx, t.run, worker.None{}, worker.Given{
		Root: view, Mounts: []worker.Mount{{Dir: mirror, At: mirrorDir}}, Input: bytes.NewReader(appendRefs(nil, refs)),
	})
	return err
}

// jobStore has the name of the HEAD as its argument.
var jobStore = worker.Job[string, worker.None]{
	Name: "relay.store", Programs: true, Access: worker.WriteAsOwner, Limits: limits(quick),
	Do: func(_ context.Context, c *worker.Call, head string) (worker.None, error) {
		refs, err := readRefs(c.Input())
		if err != nil {
			return worker.None{}, err
		}
		return worker.None{}, overView().makeStore(refs, head)
	},
}

// Store makes store, an empty directory, a sandbox's repository: it begins with refs, which the view must have, and borrows the view's
// objects. head is the branch that clones check out, in full; it need not exist.
func (t *Tool) Store(ctx context.Context, store, view *os.File, refs []Ref, head string) error {
	if err := checkRefs(refs); err != nil {
		return err
	}
	_, err := jobStore.Run(ctx, t.run, head, worker.Given{Root: store, Mounts: overMount(view), Input: bytes.NewReader(appendRefs(nil, refs))})
	return err
}

var jobServe = worker.Job[ServeRequest, worker.None]{
	Name: "relay.serve", Programs: true, Files: 1,
	Do: func(ctx context.Context, c *worker.Call, req ServeRequest) (worker.None, error) {
		p, err := newPeer(c.Files[0])
		if err != nil {
			return worker.None{}, err
		}
		return worker.None{}, overView().serve(ctx, p, req)
	},
}

// Serve answers one request of git-upload-pack, smart HTTP's: it reads the request's body from conn, a stream socket, until its end,
// writes the whole body of the answer, and has closed the connection when it returns. It ends early if the other end closes or
// stalls. What goes wrong is told to the client, too. The caller still closes conn itself.
func (t *Tool) Serve(ctx context.Context, store, view, conn *os.File, req ServeRequest) error {
	if req.Time <= 0 {
		req.Time = time.Hour
	}
	_, err := jobServe.Run(ctx, t.run, req, worker.Given{Root: store, Mounts: overMount(view), Files: []*os.File{conn}, Limits: limits(req.Time)})
	return err
}

var jobPush = worker.Job[PushRequest, Pushed]{
	Name: "relay.push", Programs: true, Files: 1,
	Do: func(ctx context.Context, c *worker.Call, req PushRequest) (Pushed, error) {
		f, err := newForwarder(c.Files[0], req.Transport)
		if err != nil {
			return Pushed{}, err
		}
		defer f.Close()
		return worker.Value(overView().push(ctx, f, req))
	},
}

// Push makes a branch of the remote at the other end of link what req says. If the remote has the commit there already, that is a
// success. Errors are Conflict if the branch is not where it was expected, Denied or NotFound as the remote answers, Unavailable if
// it cannot be had now or what became of the push is not known; each with the remote's own words.
func (t *Tool) Push(ctx context.Context, store, view, link *os.File, req PushRequest) (*Pushed, error) {
	if err := req.check(); err != nil {
		return nil, err
	}
	if req.Time <= 0 {
		req.Time = 30 * time.Minute
	}
	given := worker.Given{Root: store, Mounts: overMount(view), Files: []*os.File{link}, Limits: limits(req.Time)}
	pushed, err := jobPush.Run(ctx, t.run, req, given)
	if err != nil {
		return nil, err
	}
	pushed.Said = plain(pushed.Said, 300)
	return &pushed, nil
}
