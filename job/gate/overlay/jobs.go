package overlay

import (
	"context"
	"io"
	"os"

	"github.com/caisson-dev/caisson/job/gate/fsat"
	"github.com/caisson-dev/caisson/job/worker"
)

// freezeReply is the reply of a freezing job.
type freezeReply struct {
	Entries int  // number of entries of the frozen copy
	Cut     bool // entries were left out
}

// Job runs [Freeze] for the layer that is the root of the job.
var Job = worker.Job[FreezeLimits, freezeReply]{
	Name: "gate.freeze", Root: true, Files: 2, Access: worker.ReadGuest, Limits: fsat.ReadLimits,
	Do: func(ctx context.Context, c *worker.Call, limits FreezeLimits) (freezeReply, error) {
		f, err := Freeze(ctx, c.Root, c.Files[0], c.Files[1], limits)
		if err != nil {
			return freezeReply{}, err
		}
		return freezeReply{Entries: len(f.Entries()), Cut: f.Cut()}, f.Close()
	},
}

// RunFreeze runs [Mark] in this process, which must run as root, and then [Freeze] as a worker job, which may read all files of
// the guest that owns upper. dst is an empty directory that the caller owns. [OpenFrozen] reads the result.
func RunFreeze(
	ctx context.Context, run worker.Starter, upper, dst *os.File, limits FreezeLimits,
) (entries int, cut bool, err error) {
	marks, err := worker.NewMemFile("marks")
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
	got, err := fsat.Lend(ctx, run, Job, limits, worker.RunInput{Root: upper, Files: []*os.File{marks, dst}}, dst)
	return got.Entries, got.Cut, err
}
