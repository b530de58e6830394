package apply

import (
	"context"
	"os"

	"github.com/caisson-dev/caisson/job/gate"
	"github.com/caisson-dev/caisson/job/gate/fsat"
	"github.com/caisson-dev/caisson/job/gate/overlay"
	"github.com/caisson-dev/caisson/job/worker"
)

// jobLayer reads the plan from its input. Its root is the layer.
var jobLayer = worker.Job[worker.None, worker.None]{
	Name: "gate.layer", Root: true, Files: 2, Access: worker.WriteAsOwner, Limits: fsat.ReadLimits,
	Do: func(ctx context.Context, c *worker.Call, none worker.None) (worker.None, error) {
		plan, err := gate.DecodePlan(c.Input())
		if err != nil {
			return none, err
		}
		all, err := overlay.OpenContents(c.Files[1])
		if err != nil {
			return none, err
		}
		defer all.Close()
		return none, Layer(ctx, plan, c.Files[0], c.Root, all.Open)
	},
}

// RunLayer runs [Layer] as a worker job with the rights of the guest's root user, who owns layer. frozen is the file
// that [overlay.Freeze] has written.
func RunLayer(ctx context.Context, run worker.Starter, manifest, frozen, layer *os.File, plan *gate.Plan) error {
	text, err := plan.Input()
	if err != nil {
		return err
	}
	_, err = jobLayer.Run(ctx, run, worker.None{}, worker.Given{Root: layer, Files: []*os.File{manifest, frozen}, Input: text})
	return err
}
