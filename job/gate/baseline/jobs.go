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

// jobScan records its root, the host's directory, in a manifest, which it writes to its file descriptor.
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

// RunScan records the directory root in manifest, in a worker job with the rights of root's owner; see [Scan]. hide and show
// are the patterns of the mask.
func RunScan(ctx context.Context, run worker.Starter, root *os.File, hide, show []string, manifest *os.File) (ScanResult, error) {
	return jobScan.Run(ctx, run, maskArgs{hide, show}, worker.RunInput{Root: root, Files: []*os.File{manifest}})
}

// jobSearch looks for secrets in the visible files of its root, the host's directory. Its file descriptor is the manifest.
var jobSearch = worker.Job[SearchLimits, SearchResult]{
	Name: "gate.search", Root: true, Files: 1, Limits: fsat.ReadLimits,
	Do: func(ctx context.Context, c *worker.Call, limits SearchLimits) (SearchResult, error) {
		return Search(ctx, c.Root, c.Files[0], limits)
	},
}

// RunSearch looks for secrets in the visible files of root, in a worker job with the rights of root's owner; see [Search].
func RunSearch(ctx context.Context, run worker.Starter, root, manifest *os.File, limits SearchLimits) (SearchResult, error) {
	return jobSearch.Run(ctx, run, limits, worker.RunInput{Root: root, Files: []*os.File{manifest}})
}

// jobCover creates whiteouts in its root, a layer, for the hidden paths of the manifest, which is its file descriptor.
var jobCover = worker.Job[worker.None, worker.None]{
	Name: "gate.cover", Root: true, Files: 1, Access: worker.WriteAsOwner, Limits: fsat.ReadLimits,
	Do: func(ctx context.Context, c *worker.Call, none worker.None) (worker.None, error) {
		return none, Cover(ctx, c.Files[0], c.Root)
	},
}

// RunCover creates whiteouts in layer for the hidden paths of manifest, in a worker job; see [Cover]. layer must belong to the
// guest's root user.
func RunCover(ctx context.Context, run worker.Starter, manifest, layer *os.File) error {
	_, err := jobCover.Run(ctx, run, worker.None{}, worker.RunInput{Root: layer, Files: []*os.File{manifest}})
	return err
}

// jobBase stores small text files of its root, the host's directory. Its file descriptors are the manifest and the base.
var jobBase = worker.Job[Limits, worker.None]{
	Name: "gate.base", Root: true, Files: 2, Limits: fsat.ReadLimits,
	Do: func(ctx context.Context, c *worker.Call, limits Limits) (worker.None, error) {
		return worker.None{}, SaveBase(ctx, c.Root, c.Files[0], c.Files[1], limits)
	},
}

// RunSaveBase stores small text files of root in the base directory dst, in a worker job with the rights of root's owner, who
// also owns dst while the job runs; see [SaveBase].
func RunSaveBase(ctx context.Context, run worker.Starter, root, manifest, dst *os.File, limits Limits) error {
	_, err := fsat.Lend(ctx, run, jobBase, limits, worker.RunInput{Root: root, Files: []*os.File{manifest, dst}}, dst)
	return err
}

// jobRebase records the applied paths in its input in a base directory, its file descriptor. Its root is the host's directory.
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

// RunRebase records the applied paths and their states in the base directory base, in a worker job with the rights of host's
// owner, who also owns base while the job runs; see [Rebase].
func RunRebase(ctx context.Context, run worker.Starter, host, base *os.File, applied []AppliedPath) error {
	var in bytes.Buffer
	if err := worker.WriteRows(&in, applied); err != nil {
		return err
	}
	_, err := fsat.Lend(ctx, run, jobRebase, worker.None{}, worker.RunInput{Root: host, Files: []*os.File{base}, Input: &in}, base)
	return err
}

// jobCopy copies the visible entries of its root, the host's directory. Its file descriptors are the manifest and the copy.
var jobCopy = worker.Job[CopyLimits, CopyResult]{
	Name: "gate.copy", Root: true, Files: 2, Limits: fsat.ReadLimits,
	Do: func(ctx context.Context, c *worker.Call, limits CopyLimits) (CopyResult, error) {
		return Copy(ctx, c.Root, c.Files[0], c.Files[1], limits)
	},
}

// RunCopy copies the visible entries of root to dst, in a worker job with the rights of root's owner, who must own dst; see
// [Copy].
func RunCopy(ctx context.Context, run worker.Starter, root, manifest, dst *os.File, limits CopyLimits) (CopyResult, error) {
	return jobCopy.Run(ctx, run, limits, worker.RunInput{Root: root, Files: []*os.File{manifest, dst}})
}

// jobBaseOfCopy stores small text files of its root, a sandbox's copy of a host directory, in a base; see [SaveBaseOfCopy].
var jobBaseOfCopy = worker.Job[Limits, worker.None]{
	Name: "gate.base-of-copy", Root: true, Files: 2, Limits: fsat.ReadLimits,
	Do: func(ctx context.Context, c *worker.Call, limits Limits) (worker.None, error) {
		return worker.None{}, SaveBaseOfCopy(ctx, c.Root, c.Files[0], c.Files[1], limits)
	},
}

// RunSaveBaseOfCopy stores small text files of copied, a sandbox's copy of a host directory, in the base directory dst, in a
// worker job with the rights of the copy's owner, who owns dst while the job runs; see [SaveBaseOfCopy].
func RunSaveBaseOfCopy(ctx context.Context, run worker.Starter, copied, manifest, dst *os.File, limits Limits) error {
	_, err := fsat.Lend(ctx, run, jobBaseOfCopy, limits, worker.RunInput{Root: copied, Files: []*os.File{manifest, dst}}, dst)
	return err
}

// jobForget removes the applied states of the paths in its input from a base directory, which is its file descriptor.
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

// RunForget removes the applied states of paths from the base directory base, in a worker job with the rights of the owner of
// copied, the sandbox's copy of the host directory, who also owns base while the job runs; see [Forget].
func RunForget(ctx context.Context, run worker.Starter, copied, base *os.File, paths []string) error {
	in, err := json.Marshal(paths)
	if err != nil {
		return err
	}
	given := worker.RunInput{Root: copied, Files: []*os.File{base}, Input: bytes.NewReader(in)}
	_, err = fsat.Lend(ctx, run, jobForget, worker.None{}, given, base)
	return err
}
