package gate

import (
	"bytes"
	"context"
	"io"
	"os"

	"github.com/caisson-dev/caisson/worker"
)

const jobLayer = "gate.layer"

// LayerJobs are the jobs that make layers of workspaces, beside those of [ReadJobs].
func LayerJobs() []worker.Job {
	return []worker.Job{{Name: jobLayer, Run: runLayer}}
}

func runLayer(ctx context.Context, c *worker.Call) (any, error) {
	var args struct{}
	layer, files, err := given(c, &args, 2)
	if err != nil {
		return nil, err
	}
	defer layer.Close()
	plan, err := DecodePlan(c.Input())
	if err != nil {
		return nil, err
	}
	return nil, Layer(ctx, plan, files[0], layer, func(hash string) (io.ReadCloser, error) { return openFrozenObject(files[1], hash) })
}

// Layer is [Layer] with the rights of the guest's root, whose layer is. frozen is what [Freeze] has written.
func (t *Tool) Layer(ctx context.Context, manifest, frozen, layer *os.File, plan *Plan) error {
	if err := plan.Validate(); err != nil {
		return err
	}
	var text bytes.Buffer
	if err := plan.Encode(&text); err != nil {
		return err
	}
	return t.run.Run(ctx, worker.Request{
		Job: jobLayer, Args: struct{}{}, Files: []*os.File{manifest, frozen}, Input: &text, Root: layer, Access: worker.WriteAsOwner,
		Limits: readLimits,
	}, nil)
}
