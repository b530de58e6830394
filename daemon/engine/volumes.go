package engine

import (
	"context"
	"slices"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/volumes"
)

// newVolumes constructs the core of volumes.
func newVolumes(e *Engine) (*volumes.Core, error) {
	return volumes.New(volumes.Config{
		Dir: e.cfg.Data.Dir, Store: e.data.store, Events: e.events, Log: e.cfg.Log.With("component", "volumes"),
		HasProcesses: func(ctx context.Context, sandbox caisson.ID) (bool, error) {
			list, err := e.drivers.Runtime.List(ctx)
			return slices.ContainsFunc(list, func(s caisson.RuntimeSandbox) bool { return s.ID == sandbox && s.Running }), err
		},
	})
}
