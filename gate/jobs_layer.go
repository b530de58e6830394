package gate

import (
	"bytes"
	"context"
	"encoding/json"
	"os"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/worker"
)

// Names of the jobs that make layers.
const (
	jobLayer      = "gate.layer"
	jobCopy       = "gate.copy"
	jobBaseOfCopy = "gate.base-of-copy"
	jobForget     = "gate.forget"
)

// LayerJobs are the jobs that make layers of workspaces, beside those of [ReadJobs].
func LayerJobs() []worker.Job {
	return []worker.Job{
		{Name: jobLayer, Run: runLayer}, {Name: jobCopy, Run: runCopy}, {Name: jobBaseOfCopy, Run: runBaseOfCopy},
		{Name: jobForget, Run: runForget},
	}
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
	all, err := openFrozenContents(files[1])
	if err != nil {
		return nil, err
	}
	defer all.close()
	return nil, Layer(ctx, plan, files[0], layer, all.open)
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

func runCopy(ctx context.Context, c *worker.Call) (any, error) {
	var args CopyLimits
	root, files, err := given(c, &args, 2)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return Copy(ctx, root, files[0], files[1], args)
}

// Copy is [Copy] with the rights of root's owner, whose dst is and stays.
func (t *Tool) Copy(ctx context.Context, root, manifest, dst *os.File, limits CopyLimits) (Copied, error) {
	var result Copied
	err := t.run.Run(ctx, worker.Request{
		Job: jobCopy, Args: limits, Files: []*os.File{manifest, dst}, Root: root, Limits: readLimits,
	}, &result)
	return result, err
}

func runBaseOfCopy(ctx context.Context, c *worker.Call) (any, error) {
	var args BaseLimits
	root, files, err := given(c, &args, 2)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return nil, BaseOfCopy(ctx, root, files[0], files[1], args)
}

// BaseOfCopy is [BaseOfCopy] with the rights of the copy's owner. dst is the caller's.
func (t *Tool) BaseOfCopy(ctx context.Context, copied, manifest, dst *os.File, limits BaseLimits) error {
	return lend(copied, []*os.File{dst}, func() error {
		return t.run.Run(ctx, worker.Request{
			Job: jobBaseOfCopy, Args: limits, Files: []*os.File{manifest, dst}, Root: copied, Limits: readLimits,
		}, nil)
	})
}

func runForget(_ context.Context, c *worker.Call) (any, error) {
	var args struct{}
	root, files, err := given(c, &args, 1)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	var paths []string
	if err := json.NewDecoder(c.Input()).Decode(&paths); err != nil {
		return nil, caisson.Wrap(err, caisson.Internal, "the list of what is forgotten is malformed")
	}
	return nil, Forget(files[0], paths)
}

// Forget is [Forget] with the rights of the copy's owner. base is the caller's.
func (t *Tool) Forget(ctx context.Context, copied, base *os.File, paths []string) error {
	var in bytes.Buffer
	if err := json.NewEncoder(&in).Encode(paths); err != nil {
		return err
	}
	return lend(copied, []*os.File{base}, func() error {
		return t.run.Run(ctx, worker.Request{
			Job: jobForget, Args: struct{}{}, Files: []*os.File{base}, Input: &in, Root: copied, Limits: readLimits,
		}, nil)
	})
}
