package git

import (
	"context"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/refname"
	"github.com/caisson-dev/caisson/job/worker"
)

// gitMemory limits the private memory of each program of a job, in bytes. The packs that git maps into memory do not count.
const gitMemory = 4 << 30

// JobLimits returns the limits of a job that runs git for at most the time t.
func JobLimits(t time.Duration) worker.Limits {
	return worker.Limits{Time: t, CPU: 2 * t, Memory: gitMemory}
}

// ShortTime is the time limit of jobs that use no remote and copy no objects.
const ShortTime = 5 * time.Minute

// CopyTime is the time limit of jobs that copy the objects of a repository.
const CopyTime = 30 * time.Minute

// WorkRepo returns the repository at /work, which is the one that a job works on.
func WorkRepo() Repo { return Repo{Dir: workDir, Tmp: "/tmp"} }

// StoreRepo returns the repository of a job that works on a sandbox's store, which borrows a view's objects.
func StoreRepo() Repo { return Repo{Dir: workDir, View: viewDir, Tmp: "/tmp"} }

// ViewMount returns the mount that shows a view at /view, to jobs that work on a store which borrows the view's objects.
func ViewMount(view *os.File) []worker.Mount { return []worker.Mount{{Dir: view, At: viewDir}} }

// ReplyRefs writes the refs of remote to out and returns its HEAD, which is the job's reply. If err is not nil, it only returns
// err.
func ReplyRefs(out *os.File, remote *Remote, err error) (head string, _ error) {
	if err != nil {
		return "", err
	}
	_, err = out.Write(AppendRefs(nil, remote.Refs))
	return remote.Head, err
}

// RunRefsJob runs a job that writes refs to its last descriptor, a file that RunRefsJob appends to given.Files, and replies with
// the name of HEAD. It checks both and returns them.
func RunRefsJob[Args any](ctx context.Context, run worker.Starter, job worker.Job[Args, string], args Args, given worker.RunInput) (*Remote, error) {
	out, err := worker.NewMemFile("refs")
	if err != nil {
		return nil, err
	}
	defer out.Close()
	given.Files = append(given.Files, out)
	head, err := job.Run(ctx, run, args, given)
	if err != nil {
		return nil, err
	}
	refs, err := ReadRefs(io.NewSectionReader(out, 0, MaxRefs*maxRefLine))
	if err != nil {
		return nil, caisson.Wrap(err, caisson.Internal, "the list of refs cannot be read")
	}
	isHead := func(r Ref) bool { return r.Name == head && strings.HasPrefix(r.Name, "refs/heads/") }
	if head != "" && !slices.ContainsFunc(refs, isHead) {
		return nil, caisson.Errorf(caisson.Internal, "the job's HEAD is none of its refs")
	}
	return &Remote{Head: head, Refs: refs}, nil
}

// maxRefLine is an upper bound of the length of a line "<id> <name>" in a list of refs, in bytes.
const maxRefLine = HexSHA256 + refname.MaxLength + 20

// ReadRefs reads a list of refs, with lines "<id> <name>", and validates it as untrusted input.
func ReadRefs(r io.Reader) ([]Ref, error) {
	text, err := io.ReadAll(io.LimitReader(r, MaxRefs*maxRefLine))
	if err != nil {
		return nil, err
	}
	refs, err := ParseRefs(text)
	if err != nil {
		return nil, err
	}
	return refs, CheckRefs(refs)
}
