package gate

import (
	"context"
	"io"
	"os"

	"github.com/caisson-dev/caisson/worker"
)

// freezeReply is what a job reports of the copy that it has made.
type freezeReply struct {
	Entries int
	Cut     bool
}

var jobFreeze = worker.Job[FreezeLimits, freezeReply]{
	Name: "gate.freeze", Root: true, Files: 2, Access: worker.ReadGuest, Limits: readLimits,
	Do: func(ctx context.Context, c *worker.Call, limits FreezeLimits) (freezeReply, error) {
		f, err := Freeze(ctx, c.Root, c.Files[0], c.Files[1], limits)
		if err != nil {
			return freezeReply{}, err
		}
		return freezeReply{Entries: len(f.Entries()), Cut: f.Cut()}, f.Close()
	},
}

// Freeze is [Mark] in this process, which must be root's, and [Freeze] with the rights of the guest that upper belongs to. dst is an
// empty directory of the caller's. [OpenFrozen] reads the result.
func (t *Tool) Freeze(ctx context.Context, upper, dst *os.File, limits FreezeLimits) (entries int, cut bool, err error) {
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
	got, err := lend(ctx, t, jobFreeze, limits, worker.Given{Root: upper, Files: []*os.File{marks, dst}}, dst)
	return got.Entries, got.Cut, err
}

// jobLayer reads the plan from its input. Its root is the layer.
var jobLayer = worker.Job[worker.None, worker.None]{
	Name: "gate.layer", Root: true, Files: 2, Access: worker.WriteAsOwner, Limits: readLimits,
	Do: func(ctx context.Context, c *worker.Call, none worker.None) (worker.None, error) {
		plan, err := DecodePlan(c.Input())
		if err != nil {
			return none, err
		}
		all, err := openFrozenContents(c.Files[1])
		if err != nil {
			return none, err
		}
		defer all.close()
		return none, Layer(ctx, plan, c.Files[0], c.Root, all.open)
	},
}

// Layer is [Layer] with the rights of the guest's root, whose layer is. frozen is what [Freeze] has written.
func (t *Tool) Layer(ctx context.Context, manifest, frozen, layer *os.File, plan *Plan) error {
	text, err := plan.encode()
	if err != nil {
		return err
	}
	_, err = jobLayer.Run(ctx, t.run, worker.None{}, worker.Given{Root: layer, Files: []*os.File{manifest, frozen}, Input: text})
	return err
}
