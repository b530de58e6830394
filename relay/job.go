package relay

import (
	"context"
	"io"
	"os"
	"slices"
	"strings"
	"time"

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

// here is the repository of a job.
func here() repo { return repo{dir: workDir, tmp: "/tmp"} }

// overView is a job's repository that borrows a view's objects: a sandbox's store.
func overView() repo { return repo{dir: workDir, view: viewDir, tmp: "/tmp"} }

func overMount(view *os.File) []worker.Mount { return []worker.Mount{{Dir: view, At: viewDir}} }

// giveRefs writes refs to out, and returns the rest of the reply.
func giveRefs(out *os.File, remote *Remote, err error) (head string, _ error) {
	if err != nil {
		return "", err
	}
	_, err = out.Write(appendRefs(nil, remote.Refs))
	return remote.Head, err
}

// runForRefs runs a job that replies as giveRefs does.
func runForRefs[Args any](ctx context.Context, run worker.Starter, job worker.Job[Args, string], args Args, given worker.Given) (*Remote, error) {
	out, err := worker.Scratch("refs")
	if err != nil {
		return nil, err
	}
	defer out.Close()
	given.Files = append(given.Files, out)
	head, err := job.Run(ctx, run, args, given)
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
