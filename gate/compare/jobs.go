package compare

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/gate"
	"github.com/caisson-dev/caisson/gate/fsat"
	"github.com/caisson-dev/caisson/gate/overlay"
	"github.com/caisson-dev/caisson/worker"
)

// Jobs are the jobs of this package, for the table that the binary gives to [worker.Main].
func Jobs() []worker.Declared {
	return []worker.Declared{jobCompare, jobPart}
}

// A Tool runs the functions of this package as confined jobs. It has no state of its own and is safe for concurrent use. Its
// methods keep none of the descriptors that they are given.
type Tool struct{ run worker.Starter }

// NewTool returns a Tool whose jobs r runs. The binary that r starts must have the jobs of this package in its table.
func NewTool(r worker.Starter) Tool { return Tool{run: r} }

// compareReply is the reply of a comparison; the differences are in a file.
type compareReply struct {
	Count int
	Cut   bool
}

// jobCompare writes differences to its last descriptor. Its root is the host's directory.
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

// Compare is [Changes] with the rights of host's owner. The directories are the caller's.
func (t Tool) Compare(ctx context.Context, host, manifest, base, frozen *os.File, opts Options) (*Result, error) {
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
	reply, err := fsat.Lend(ctx, t.run, jobCompare, opts, given, merged)
	if err != nil {
		return nil, err
	}
	return readComparison(io.NewSectionReader(out, 0, maxComparison), reply)
}

// maxComparison bounds what a comparison job may write.
const maxComparison = 1 << 30

func readComparison(r io.Reader, reply compareReply) (*Result, error) {
	diffs, err := worker.ReadRows[Difference](r, 2*maxDifferences, maxComparison)
	if err != nil || len(diffs) != reply.Count || slices.ContainsFunc(diffs, func(d Difference) bool { return !d.possible() }) {
		return nil, errors.Join(caisson.Errorf(caisson.Internal, "the comparison cannot be read; try again"), err)
	}
	return &Result{Differences: diffs, Cut: reply.Cut}, nil
}

// possible reports whether d has what whoever chooses among differences goes by: one step or two, or none, with paths beneath a directory. A
// job may answer anything; whether a step can be applied is asked when it is to be.
func (d *Difference) possible() bool {
	return len(d.Steps) <= 2 && !slices.ContainsFunc(d.Steps, func(s gate.Step) bool { return !fs.ValidPath(s.Path) || s.Path == "." })
}

type partArgs struct {
	Step   gate.Step
	Chosen []int
}

// partReply is the step, or that the host's file has changed: a *Moved does not cross as an error.
type partReply struct {
	Step  gate.Step
	Moved bool
}

// jobPart takes a change apart. Its root is the host's directory.
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

// Part is [Part] with the rights of host's owner. frozen is the caller's.
func (t Tool) Part(ctx context.Context, host, frozen *os.File, step gate.Step, chosen []int) (gate.Step, error) {
	merged, err := overlay.OpenMerged(frozen)
	if err != nil {
		return step, err
	}
	defer merged.Close()
	reply, err := fsat.Lend(ctx, t.run, jobPart, partArgs{step, chosen}, worker.Given{Root: host, Files: []*os.File{frozen, merged}}, merged)
	if err != nil {
		return step, err
	}
	if reply.Moved {
		return step, (&gate.Moved{Paths: []string{step.Path}}).Conflict()
	}
	// A job is believed what the file's content is to be, and nothing else.
	part := step
	part.After.Hash = reply.Step.After.Hash
	return part, part.Validate()
}
