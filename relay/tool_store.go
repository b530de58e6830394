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

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/refname"
	"github.com/caisson-dev/caisson/worker"
)

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

// Init makes an empty directory a bare repository without refs.
func (t *Tool) Init(ctx context.Context, dir *os.File) error {
	return t.run.Run(ctx, worker.Request{
		Job: jobInit, Args: noArgs{}, Programs: true, Root: dir, Access: worker.WriteAsOwner, Limits: limits(quick),
	}, nil)
}

// Fetch brings a mirror up to date with the remote at the other end of link, and returns what it has then. If it fails, no ref of the mirror
// has changed. Nothing else may use the mirror meanwhile. Errors are Denied and NotFound as the remote answers, Unavailable if it
// cannot be had now, Exhausted beyond the limits.
func (t *Tool) Fetch(ctx context.Context, mirror, link *os.File, req FetchRequest) (*Remote, error) {
	args := fetchArgs{Transport: req.Transport, Limits: req.Limits.withDefaults()}
	var progress func(json.RawMessage)
	if req.Progress != nil {
		progress = func(raw json.RawMessage) {
			var line string
			if json.Unmarshal(raw, &line) == nil {
				req.Progress(plain(line, 200))
			}
		}
	}
	return t.refs(ctx, worker.Request{
		Job: jobFetch, Args: args, Programs: true, Root: mirror, Access: worker.WriteAsOwner, Files: []*os.File{link},
		Limits: limits(args.Limits.Time), Progress: progress,
	})
}

// Refs returns the branches and tags of a mirror, view or store.
func (t *Tool) Refs(ctx context.Context, dir *os.File) (*Remote, error) {
	return t.refs(ctx, worker.Request{Job: jobRefs, Args: noArgs{}, Programs: true, Root: dir, Limits: limits(quick)})
}

// refs runs a job that answers with refs in its last descriptor.
func (t *Tool) refs(ctx context.Context, req worker.Request) (*Remote, error) {
	fd, err := unix.MemfdCreate("refs", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	out := os.NewFile(uintptr(fd), "refs")
	defer out.Close()
	req.Files = append(req.Files, out)
	var reply fetchReply
	if err := t.run.Run(ctx, req, &reply); err != nil {
		return nil, err
	}
	if _, err := out.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	refs, err := readRefs(out)
	if err != nil {
		return nil, caisson.Wrap(err, caisson.Internal, "the list of refs cannot be read")
	}
	hasHead := func(r Ref) bool { return r.Name == reply.Head && strings.HasPrefix(r.Name, "refs/heads/") }
	if reply.Head != "" && !slices.ContainsFunc(refs, hasHead) {
		return nil, caisson.Errorf(caisson.Internal, "the job's HEAD is none of its refs")
	}
	return &Remote{Head: reply.Head, Refs: refs}, nil
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

// View makes view, an empty directory, a repository of exactly refs and what they reach in the mirror. Nothing may change the mirror
// meanwhile. Conflict if the mirror does not have them (any more).
func (t *Tool) View(ctx context.Context, mirror, view *os.File, refs []Ref) error {
	if err := checkRefs(refs); err != nil {
		return err
	}
	return t.run.Run(ctx, worker.Request{
		Job: jobView, Args: noArgs{}, Input: bytes.NewReader(appendRefs(nil, refs)), Programs: true, Root: view, Access: worker.WriteAsOwner,
		Mounts: []worker.Mount{{Dir: mirror, At: mirrorDir}}, Limits: limits(copying),
	}, nil)
}

// Store makes store, an empty directory, a sandbox's repository: it begins with refs, which the view must have, and borrows the view's
// objects. head is the branch that clones check out, in full; it need not exist.
func (t *Tool) Store(ctx context.Context, store, view *os.File, refs []Ref, head string) error {
	if err := checkRefs(refs); err != nil {
		return err
	}
	return t.run.Run(ctx, worker.Request{
		Job: jobStore, Args: storeArgs{Head: head}, Input: bytes.NewReader(appendRefs(nil, refs)), Programs: true, Root: store,
		Access: worker.WriteAsOwner, Mounts: overMount(view), Limits: limits(quick),
	}, nil)
}

func overMount(view *os.File) []worker.Mount { return []worker.Mount{{Dir: view, At: viewDir}} }

// Serve answers one request of git-upload-pack, smart HTTP's: it reads the request's body from conn, a stream socket, until its end,
// writes the whole body of the answer, and has closed the connection when it returns. It ends early if the other end closes or
// stalls. What goes wrong is told to the client, too. The caller still closes conn itself.
func (t *Tool) Serve(ctx context.Context, store, view, conn *os.File, req ServeRequest) error {
	if req.Time <= 0 {
		req.Time = time.Hour
	}
	return t.run.Run(ctx, worker.Request{
		Job: jobServe, Args: req, Programs: true, Root: store, Mounts: overMount(view), Files: []*os.File{conn}, Limits: limits(req.Time),
	}, nil)
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
	pushed := &Pushed{}
	err := t.run.Run(ctx, worker.Request{
		Job: jobPush, Args: req, Programs: true, Root: store, Mounts: overMount(view), Files: []*os.File{link}, Limits: limits(req.Time),
	}, pushed)
	if err != nil {
		return nil, err
	}
	pushed.Said = plain(pushed.Said, 300)
	return pushed, nil
}
