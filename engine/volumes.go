package engine

import (
	"context"
	"slices"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/volumes"
)

// newVolumes constructs the core of volumes. Its events go to the record that the lifecycle core keeps.
func newVolumes(e *Engine) (*volumes.Core, error) {
	return volumes.New(volumes.Config{
		Dir: e.cfg.Dir, Store: e.Store, Log: e.cfg.Log.With("component", "volumes"),
		Record: func(ctx context.Context, list []*caisson.Event) error { return e.Core.RecordAll(ctx, list) },
		Runs: func(ctx context.Context, sandbox caisson.ID) (bool, error) {
			list, err := e.runtime.List(ctx)
			return slices.ContainsFunc(list, func(s caisson.RuntimeSandbox) bool { return s.ID == sandbox && s.Running }), err
		},
	})
}
