package gate

import (
	"bufio"
	"context"
	"encoding/json"
	"os"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/worker"
)

// Names of the jobs that read.
const (
	jobScan    = "gate.scan"
	jobSearch  = "gate.search"
	jobCover   = "gate.cover"
	jobBase    = "gate.base"
	jobRebase  = "gate.rebase"
	jobFreeze  = "gate.freeze"
	jobCompare = "gate.compare"
)

// ReadJobs are the jobs of this package that read trees, for the table that the binary gives to [worker.Main].
func ReadJobs() []worker.Job {
	return []worker.Job{
		{Name: jobScan, Run: runScan},
		{Name: jobSearch, Run: runSearch},
		{Name: jobCover, Run: runCover},
		{Name: jobBase, Run: runBase},
		{Name: jobRebase, Run: runRebase},
		{Name: jobFreeze, Run: runFreeze},
		{Name: jobCompare, Run: runCompare},
	}
}

// maskArgs are the patterns of a mask.
type maskArgs struct{ Hide, Show []string }

// rootOf opens the job's root directory.
func rootOf() (*os.File, error) { return os.Open("/") }

// given decodes the arguments of a job and returns its root directory and descriptors.
func given(c *worker.Call, args any, n int) (root *os.File, files []*os.File, err error) {
	if err := c.Args(args); err != nil {
		return nil, nil, err
	}
	if files, err = c.Files(n); err != nil {
		return nil, nil, err
	}
	root, err = rootOf()
	return root, files, err
}

func runScan(ctx context.Context, c *worker.Call) (any, error) {
	var args maskArgs
	root, files, err := given(c, &args, 1)
	if err != nil {
		return nil, err
	}
	mask, err := NewMask(args.Hide, args.Show)
	if err != nil {
		return nil, err
	}
	return Scan(ctx, root, mask, files[0])
}

func runSearch(ctx context.Context, c *worker.Call) (any, error) {
	var args SearchLimits
	root, files, err := given(c, &args, 1)
	if err != nil {
		return nil, err
	}
	return Search(ctx, root, files[0], args)
}

func runCover(ctx context.Context, c *worker.Call) (any, error) {
	var args struct{}
	root, files, err := given(c, &args, 1)
	if err != nil {
		return nil, err
	}
	return nil, Cover(ctx, files[0], root)
}

func runBase(ctx context.Context, c *worker.Call) (any, error) {
	var args BaseLimits
	root, files, err := given(c, &args, 2)
	if err != nil {
		return nil, err
	}
	return nil, Base(ctx, root, files[0], files[1], args)
}

func runRebase(ctx context.Context, c *worker.Call) (any, error) {
	var args struct{}
	root, files, err := given(c, &args, 1)
	if err != nil {
		return nil, err
	}
	var applied []Applied
	lines := bufio.NewScanner(c.Input())
	lines.Buffer(make([]byte, 4096), maxPlanLine)
	for lines.Scan() {
		var a Applied
		if err := strictJSON(lines.Bytes(), &a); err != nil {
			return nil, caisson.Wrap(err, caisson.Internal, "the list of what was applied is malformed")
		}
		applied = append(applied, a)
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	return nil, Rebase(ctx, root, files[0], applied)
}

// frozenSummary is what a job says of what it has frozen.
type frozenSummary struct {
	Entries int
	Cut     bool
}

func runFreeze(ctx context.Context, c *worker.Call) (any, error) {
	var args FreezeLimits
	root, files, err := given(c, &args, 2)
	if err != nil {
		return nil, err
	}
	f, err := Freeze(ctx, root, files[0], files[1], args)
	if err != nil {
		return nil, err
	}
	return frozenSummary{Entries: len(f.Entries()), Cut: f.Cut()}, f.Close()
}

// comparisonEnd is the last line of what a comparison writes.
type comparisonEnd struct {
	Count int  `json:"count"`
	Cut   bool `json:"cut"`
}

func runCompare(ctx context.Context, c *worker.Call) (any, error) {
	var args CompareOptions
	root, files, err := given(c, &args, 5)
	if err != nil {
		return nil, err
	}
	result, err := Compare(ctx, root, files[0], files[1], files[2], files[3], args)
	if err != nil {
		return nil, err
	}
	out := bufio.NewWriter(files[4])
	enc := json.NewEncoder(out)
	for i := range result.Differences {
		if err := enc.Encode(&result.Differences[i]); err != nil {
			return nil, err
		}
	}
	return comparisonEnd{Count: len(result.Differences), Cut: result.Cut}, out.Flush()
}
