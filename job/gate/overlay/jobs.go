package overlay

import (
	"context"
	"io"
	"os"

	"github.com/caisson-dev/caisson/job/gate/fsat"
	"github.com/caisson-dev/caisson/job/worker"
)

// Jobs returns the worker jobs of this package, for the table that the binary passes to [worker.Main].
func Jobs() []worker.Declared {
	return []worker.Declared{jobFreeze}
}

// A Tool runs the functions of this package as confined worker jobs. It is stateless and safe for concurrent use. Its methods
// do not retain the file descriptors that are passed to them.
type Tool struct{ run worker.Starter }

// NewTool returns a Tool that runs its jobs with r. The binary that r starts must have the jobs of this package in its table.
func NewTool(r worker.Starter) Tool { return Tool{run: r} }

// freezeReply describes the copy that a job has made.
type freezeReply struct {
	Entries int  // number of entries
	Cut     bool // entries were left out
}

var jobFreeze = worker.Job[FreezeLimits, freezeReply]{
	Name: "gate.freeze", Root: true, Files: 2, Access: worker.ReadGuest, Limits: fsat.ReadLimits,
	Do: func(ctx context.Context, c *worker.Call, limits FreezeLimits) (freezeReply, error) {
		f, err := Freeze(ctx, c.Root, c.Files[0], c.Files[1], limits)
		if err != nil {
			return freezeReply{}, err
		}
		return freezeReply{Entries: len(f.Entries()), Cut: f.Cut()}, f.Close()
	},
}

// Freeze runs [Mark] in this process, which must run as root, and then the function [Freeze] as a worker job with the rights of
// the guest that owns upper. dst is an empty directory that the caller owns. [OpenFrozen] reads the result.
func (t Tool) Freeze(ctx context.Context, upper, dst *os.File, limits FreezeLimits) (entries int, cut bool, err error) {
	marks, err := worker.Scratch("marks")
	if err != nil {
		return 0, false, err
	}
	defer marks.Close()
	if err := Mark(ctx, upper, marks); err != nil {
		return 0, false, err
	}
	if _, err := marks.Seek(0, io.SeekStart); err != nil {
		return 0, false, err
	}
	got, err := fsat.Lend(ctx, t.run, jobFreeze, limits, worker.Given{Root: upper, Files: []*os.File{marks, dst}}, dst)
	return got.Entries, got.Cut, err
}
