package compare

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/gate"
	"github.com/caisson-dev/caisson/job/gate/fsat"
	"github.com/caisson-dev/caisson/job/gate/overlay"
	"github.com/caisson-dev/caisson/job/worker"
)

// Jobs returns the worker jobs of this package, for the table that the binary passes to [worker.Main].
func Jobs() []worker.Declared {
	return []worker.Declared{jobCompare, jobPart}
}

// compareReply is the reply of a comparison job, which writes the differences to a file.
type compareReply struct {
	Count int // number of differences
	Cut   bool
}

// jobCompare writes the differences to its last file descriptor. Its root is the host's directory.
var jobCompare = worker.Job[Options, compareReply]{
	Name: "gate.compare", Root: true, Files: 5, Limits: fsat.ReadLimits,
	Do: func(ctx context.Context, c *worker.Call, opts Options) (compareReply, error) {
		result, err := Changes(ctx, c.Root, c.Files[0], c.Files[1], c.Files[2], c.Files[3], opts)
		if err != nil {
			return compareReply{}, err
		}
		return compareReply{Count: len(result.Differences), Cut: result.Cut}, worker.WriteRows(c.Files[4], result.Differences)
	},
}

// RunChanges runs [Changes] as a worker job with the rights of host's owner. The caller owns the other directories.
func RunChanges(ctx context.Context, run worker.Starter, host, manifest, base, frozen *os.File, opts Options) (*Result, error) {
	merged, err := overlay.OpenMerged(frozen)
	if err != nil {
		return nil, err
	}
	defer merged.Close()
	out, err := worker.Scratch("differences")
	if err != nil {
		return nil, err
	}
	defer out.Close()
	given := worker.Given{Root: host, Files: []*os.File{manifest, base, frozen, merged, out}}
	reply, err := fsat.Lend(ctx, run, jobCompare, opts, given, merged)
	if err != nil {
		return nil, err
	}
	return readComparison(io.NewSectionReader(out, 0, maxComparison), reply)
}

// maxComparison is the maximum number of bytes that a comparison job may write.
const maxComparison = 1 << 30

func readComparison(r io.Reader, reply compareReply) (*Result, error) {
	diffs, err := worker.ReadRows[Difference](r, 2*maxDifferences, maxComparison)
	if err != nil || len(diffs) != reply.Count || slices.ContainsFunc(diffs, func(d Difference) bool { return !d.possible() }) {
		return nil, errors.Join(caisson.Errorf(caisson.Internal, "the comparison cannot be read; try again"), err)
	}
	return &Result{Differences: diffs, Cut: reply.Cut}, nil
}

// possible reports whether the steps of d are well-formed: at most two, with valid relative paths. The job is untrusted;
// whether a step can be applied is checked when it is applied.
func (d *Difference) possible() bool {
	return len(d.Steps) <= 2 && !slices.ContainsFunc(d.Steps, func(s gate.Step) bool { return !fs.ValidPath(s.Path) || s.Path == "." })
}

type partArgs struct {
	Step   gate.Step
	Chosen []int // indexes of hunks
}

// partReply contains the step, or Moved if the host's file has changed: a *gate.Moved error cannot be passed between processes.
type partReply struct {
	Step  gate.Step
	Moved bool
}

// jobPart runs [Part]. Its root is the host's directory.
var jobPart = worker.Job[partArgs, partReply]{
	Name: "gate.part", Root: true, Files: 2, Limits: fsat.ReadLimits,
	Do: func(ctx context.Context, c *worker.Call, args partArgs) (partReply, error) {
		step, err := Part(ctx, c.Root, c.Files[0], c.Files[1], args.Step, args.Chosen)
		if _, ok := errors.AsType[*gate.Moved](err); ok {
			return partReply{Moved: true}, nil
		}
		return partReply{Step: step}, err
	},
}

// RunPart runs [Part] as a worker job with the rights of host's owner. The caller owns frozen.
func RunPart(ctx context.Context, run worker.Starter, host, frozen *os.File, step gate.Step, chosen []int) (gate.Step, error) {
	merged, err := overlay.OpenMerged(frozen)
	if err != nil {
		return step, err
	}
	defer merged.Close()
	reply, err := fsat.Lend(ctx, run, jobPart, partArgs{step, chosen}, worker.Given{Root: host, Files: []*os.File{frozen, merged}}, merged)
	if err != nil {
		return step, err
	}
	if reply.Moved {
		return step, (&gate.Moved{Paths: []string{step.Path}}).Conflict()
	}
	// Only the new content of the file is taken from the job's untrusted reply.
	part := step
	part.After.Hash = reply.Step.After.Hash
	return part, part.Validate()
}
