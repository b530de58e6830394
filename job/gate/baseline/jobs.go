package baseline

import (
	"bytes"
	"context"
	"encoding/json"
	"os"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/gate"
	"github.com/caisson-dev/caisson/job/gate/fsat"
	"github.com/caisson-dev/caisson/job/worker"
)

// Jobs returns the worker jobs of this package, for the table that the binary passes to [worker.Main].
func Jobs() []worker.Declared {
	return []worker.Declared{jobScan, jobSearch, jobCover, jobBase, jobRebase, jobCopy, jobBaseOfCopy, jobForget, jobArchive}
}

// maskArgs are the arguments of [NewMask]: the patterns of files to hide, and those of files to show nevertheless.
type maskArgs struct{ Hide, Show []string }

// jobScan runs [Scan].
var jobScan = worker.Job[maskArgs, ScanResult]{
	Name: "gate.scan", Root: true, Files: 1, Limits: fsat.ReadLimits,
	Do: func(ctx context.Context, c *worker.Call, args maskArgs) (ScanResult, error) {
		mask, err := NewMask(args.Hide, args.Show)
		if err != nil {
			return ScanResult{}, err
		}
		return Scan(ctx, c.Root, mask, c.Files[0])
	},
}

// RunScan runs [Scan] as a worker job with the rights of root's owner.
func RunScan(ctx context.Context, run worker.Starter, root *os.File, hide, show []string, manifest *os.File) (ScanResult, error) {
	return jobScan.Run(ctx, run, maskArgs{hide, show}, worker.RunInput{Root: root, Files: []*os.File{manifest}})
}

// jobSearch runs [Search].
var jobSearch = worker.Job[SearchLimits, SearchResult]{
	Name: "gate.search", Root: true, Files: 1, Limits: fsat.ReadLimits,
	Do: func(ctx context.Context, c *worker.Call, limits SearchLimits) (SearchResult, error) {
		return Search(ctx, c.Root, c.Files[0], limits)
	},
}

// RunSearch runs [Search] as a worker job with the rights of root's owner.
func RunSearch(ctx context.Context, run worker.Starter, root, manifest *os.File, limits SearchLimits) (SearchResult, error) {
	return jobSearch.Run(ctx, run, limits, worker.RunInput{Root: root, Files: []*os.File{manifest}})
}

// jobCover runs [Cover].
var jobCover = worker.Job[worker.None, worker.None]{
	Name: "gate.cover", Root: true, Files: 1, Access: worker.WriteAsOwner, Limits: fsat.ReadLimits,
	Do: func(ctx context.Context, c *worker.Call, none worker.None) (worker.None, error) {
		return none, Cover(ctx, c.Files[0], c.Root)
	},
}

// RunCover runs [Cover] as a worker job. layer must belong to the guest's root user.
func RunCover(ctx context.Context, run worker.Starter, manifest, layer *os.File) error {
	_, err := jobCover.Run(ctx, run, worker.None{}, worker.RunInput{Root: layer, Files: []*os.File{manifest}})
	return err
}

// jobBase runs [SaveBase].
var jobBase = worker.Job[Limits, worker.None]{
	Name: "gate.base", Root: true, Files: 2, Limits: fsat.ReadLimits,
	Do: func(ctx context.Context, c *worker.Call, limits Limits) (worker.None, error) {
		return worker.None{}, SaveBase(ctx, c.Root, c.Files[0], c.Files[1], limits)
	},
}

// RunSaveBase runs [SaveBase] as a worker job with the rights of root's owner, who also owns dst while the job runs.
func RunSaveBase(ctx context.Context, run worker.Starter, root, manifest, dst *os.File, limits Limits) error {
	_, err := fsat.Lend(ctx, run, jobBase, limits, worker.RunInput{Root: root, Files: []*os.File{manifest, dst}}, dst)
	return err
}

// jobRebase runs [Rebase]. It reads the applied paths from its input.
var jobRebase = worker.Job[worker.None, worker.None]{
	Name: "gate.rebase", Root: true, Files: 1, Limits: fsat.ReadLimits,
	Do: func(ctx context.Context, c *worker.Call, none worker.None) (worker.None, error) {
		applied, err := worker.ReadRows[AppliedPath](c.Input(), gate.MaxSteps, gate.MaxPlanLine)
		if err != nil {
			return none, caisson.Wrap(err, caisson.Internal, "the list of what was applied is malformed")
		}
		return none, Rebase(ctx, c.Root, c.Files[0], applied)
	},
}

// RunRebase runs [Rebase] as a worker job with the rights of host's owner, who also owns base while the job runs.
func RunRebase(ctx context.Context, run worker.Starter, host, base *os.File, applied []AppliedPath) error {
	var in bytes.Buffer
	if err := worker.WriteRows(&in, applied); err != nil {
		return err
	}
	_, err := fsat.Lend(ctx, run, jobRebase, worker.None{}, worker.RunInput{Root: host, Files: []*os.File{base}, Input: &in}, base)
	return err
}

// jobCopy runs [Copy].
var jobCopy = worker.Job[CopyLimits, CopyResult]{
	Name: "gate.copy", Root: true, Files: 2, Limits: fsat.ReadLimits,
	Do: func(ctx context.Context, c *worker.Call, limits CopyLimits) (CopyResult, error) {
		return Copy(ctx, c.Root, c.Files[0], c.Files[1], limits)
	},
}

// RunCopy runs [Copy] as a worker job with the rights of root's owner, who must own dst.
func RunCopy(ctx context.Context, run worker.Starter, root, manifest, dst *os.File, limits CopyLimits) (CopyResult, error) {
	return jobCopy.Run(ctx, run, limits, worker.RunInput{Root: root, Files: []*os.File{manifest, dst}})
}

// jobBaseOfCopy saves the base of a workspace of which the sandbox has a copy of the host directory: it runs [SaveBaseOfCopy].
var jobBaseOfCopy = worker.Job[Limits, worker.None]{
	Name: "gate.base-of-copy", Root: true, Files: 2, Limits: fsat.ReadLimits,
	Do: func(ctx context.Context, c *worker.Call, limits Limits) (worker.None, error) {
		return worker.None{}, SaveBaseOfCopy(ctx, c.Root, c.Files[0], c.Files[1], limits)
	},
}

// RunSaveBaseOfCopy runs [SaveBaseOfCopy] as a worker job with the rights of the copy's owner, who owns dst while the job runs.
func RunSaveBaseOfCopy(ctx context.Context, run worker.Starter, copied, manifest, dst *os.File, limits Limits) error {
	_, err := fsat.Lend(ctx, run, jobBaseOfCopy, limits, worker.RunInput{Root: copied, Files: []*os.File{manifest, dst}}, dst)
	return err
}

// jobForget runs [Forget]. It reads the paths from its input.
var jobForget = worker.Job[worker.None, worker.None]{
	Name: "gate.forget", Root: true, Files: 1, Limits: fsat.ReadLimits,
	Do: func(_ context.Context, c *worker.Call, none worker.None) (worker.None, error) {
		var paths []string
		if err := json.NewDecoder(c.Input()).Decode(&paths); err != nil {
			return none, caisson.Wrap(err, caisson.Internal, "the list of entries to forget is malformed")
		}
		return none, Forget(c.Files[0], paths)
	},
}

// RunForget runs [Forget] as a worker job with the rights of the copy's owner, who also owns base while the job runs.
func RunForget(ctx context.Context, run worker.Starter, copied, base *os.File, paths []string) error {
	in, err := json.Marshal(paths)
	if err != nil {
		return err
	}
	given := worker.RunInput{Root: copied, Files: []*os.File{base}, Input: bytes.NewReader(in)}
	_, err = fsat.Lend(ctx, run, jobForget, worker.None{}, given, base)
	return err
}
