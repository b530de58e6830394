package overlay

import (
	"context"
	"io"
	"os"

	"github.com/caisson-dev/caisson/job/gate/fsat"
	"github.com/caisson-dev/caisson/job/worker"
)

// freezeReply is what a job reports of the copy that it has made.
type freezeReply struct {
	Entries int
	Cut     bool
}

// Job freezes a layer, which is its root.
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

// RunFreeze runs [Mark] in this process, which must be root's, and [Freeze] with the rights of the guest that upper belongs to.
// dst is an empty directory of the caller's. [OpenFrozen] reads the result.
func RunFreeze(
	ctx context.Context, run worker.Starter, upper, dst *os.File, limits FreezeLimits,
) (entries int, cut bool, err error) {
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
	got, err := fsat.Lend(ctx, run, Job, limits, worker.Given{Root: upper, Files: []*os.File{marks, dst}}, dst)
	return got.Entries, got.Cut, err
}
