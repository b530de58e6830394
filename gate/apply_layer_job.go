package gate

import (
	"context"
	"os"

	"github.com/caisson-dev/caisson/worker"
)

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
func (t applyTool) Layer(ctx context.Context, manifest, frozen, layer *os.File, plan *Plan) error {
	text, err := plan.encode()
	if err != nil {
		return err
	}
	_, err = jobLayer.Run(ctx, t.run, worker.None{}, worker.Given{Root: layer, Files: []*os.File{manifest, frozen}, Input: text})
	return err
}
