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

// Job makes a frozen copy of its root, a layer; see [Freeze]. Its file descriptors are the output of [Mark] and the copy.
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

// RunFreeze makes a frozen copy of upper, the upper directory of an overlay, in dst, an empty directory that the caller owns.
// It runs [Mark] in this process, which must run as root, and then [Freeze] in a worker job that may read all files of the
// guest that owns upper. [OpenFrozen] opens the copy. cut means that entries were left out of it.
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
