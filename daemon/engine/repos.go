package engine

import (
	"context"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/repos"
	"github.com/caisson-dev/caisson/daemon/runs"
)

// newRepos constructs the core of the relay.
func newRepos(e *Engine) (*repos.Core, error) {
	return repos.New(repos.Config{
		Dir: e.cfg.Data.Dir, Store: e.data.store, Jobs: e.drivers.Worker, Events: e.events,
		Remote: repos.RemoteConfig{Transport: e.drivers.Transport, Forge: e.drivers.Forge, Secrets: e.gateway.vault, Own: e.cfg.ownAddresses()},
		Exec:   e.sandboxes.Processes().Exec, Rules: e.cfg.Work.Workspaces.Rules, Settings: e.cfg.Work.Relay,
		Settled: func(ctx context.Context, d *caisson.Delivery) {
			runs.UpdateDelivery(ctx, e.data.store.Runs(), e.cfg.Log.With("component", "runs"), d)
		},
		Log: e.cfg.Log.With("component", "relay"),
	})
}
