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

// compareReply is the reply of jobCompare, which writes the differences to a file.
type compareReply struct {
	Count int  // number of differences in the file
	Cut   bool // there are more changes, which are not in the file
}

// jobCompare writes the changes of a sandbox to its last file descriptor; see [Changes]. Its root is the host's directory.
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

// RunChanges returns the changes of a sandbox, which a worker job with the rights of host's owner finds; see [Changes]. The
// user of this process owns the other directories.
func RunChanges(ctx context.Context, run worker.Starter, host, manifest, base, frozen *os.File, opts Options) (*Result, error) {
	merged, err := overlay.OpenMerged(frozen)
	if err != nil {
		return nil, err
	}
	defer merged.Close()
	out, err := worker.NewMemFile("differences")
	if err != nil {
		return nil, err
	}
	defer out.Close()
	given := worker.RunInput{Root: host, Files: []*os.File{manifest, base, frozen, merged, out}}
	reply, err := fsat.Lend(ctx, run, jobCompare, opts, given, merged)
	if err != nil {
		return nil, err
	}
	return readComparison(io.NewSectionReader(out, 0, maxComparison), reply)
}

// maxComparison is the maximum number of bytes that a comparison job may write.
const maxComparison = 1 << 30

// readComparison reads and validates the differences that a comparison job has written.
func readComparison(r io.Reader, reply compareReply) (*Result, error) {
	diffs, err := worker.ReadRows[Difference](r, 2*maxDifferences, maxComparison)
	if err != nil || len(diffs) != reply.Count || slices.ContainsFunc(diffs, func(d Difference) bool { return !d.hasValidSteps() }) {
		return nil, errors.Join(caisson.Errorf(caisson.Internal, "the comparison cannot be read; try again"), err)
	}
	return &Result{Differences: diffs, Cut: reply.Cut}, nil
}

// hasValidSteps reports whether d, which comes from an untrusted job, has at most two steps, with valid relative paths. Whether
// a step can be applied is checked only when it is applied.
func (d *Difference) hasValidSteps() bool {
	return len(d.Steps) <= 2 && !slices.ContainsFunc(d.Steps, func(s gate.Step) bool { return !fs.ValidPath(s.Path) || s.Path == "." })
}

// partArgs are the arguments of jobPart, which makes a step that applies only some hunks of the change of a text file.
type partArgs struct {
	Step   gate.Step // the change of a text file
	Chosen []int     // indexes, from 0, of the hunks to apply
}

// partReply is the reply of jobPart: a step that applies only the chosen hunks of a change, or Moved if the host's file has
// changed, because a [*gate.Moved] error cannot be passed between processes.
type partReply struct {
	Step  gate.Step // the step that applies the chosen hunks
	Moved bool      // the host's file has changed
}

// jobPart makes a step that applies only some hunks of another one; see [Part]. Its root is the host's directory.
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

// RunPart returns a step that applies only the chosen hunks of step, which a worker job with the rights of host's owner makes;
// see [Part]. The user of this process owns frozen.
func RunPart(ctx context.Context, run worker.Starter, host, frozen *os.File, step gate.Step, chosen []int) (gate.Step, error) {
	merged, err := overlay.OpenMerged(frozen)
	if err != nil {
		return step, err
	}
	defer merged.Close()
	reply, err := fsat.Lend(ctx, run, jobPart, partArgs{step, chosen}, worker.RunInput{Root: host, Files: []*os.File{frozen, merged}}, merged)
	if err != nil {
		return step, err
	}
	if reply.Moved {
		return step, (&gate.Moved{Paths: []string{step.Path}}).Conflict()
	}
	// Only the hash of the new content is taken from the job's untrusted reply.
	part := step
	part.After.Hash = reply.Step.After.Hash
	return part, part.Validate()
}
