package engine

import (
	"context"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/repos"
	"github.com/caisson-dev/caisson/daemon/runs"
	"github.com/caisson-dev/caisson/internal/smallfile"
)

// RelayConfig configures the relay.
type RelayConfig struct {
	CA    string        // PEM file of CAs to trust for remotes and forges, in addition to the host's; "" for none
	First time.Duration // delay between the first two tries of a delivery; 0 means 5 s
	Tries time.Duration // time for which a delivery is tried; 0 means 3 days
	Keep  time.Duration // time for which undelivered commits are kept; 0 means 30 days
	Space caisson.Size  // maximum size in bytes of an account's repositories; 0 means 20 GiB
}

// newRepos constructs the core of the relay.
func newRepos(e *Engine) (*repos.Core, error) {
	roots := ""
	if e.cfg.Relay.CA != "" {
		pem, err := smallfile.Read(e.cfg.Relay.CA)
		if err != nil {
			return nil, caisson.Wrap(err, caisson.Invalid, "the CA file for the relay cannot be read")
		}
		roots = string(pem)
	}
	return repos.New(repos.Config{
		Dir: e.cfg.Dir, Store: e.data.store, Jobs: e.on.Worker, Events: e.events,
		Remote: repos.RemoteConfig{Transport: e.on.Transport, Forge: e.on.Forge, Secrets: e.gateway.vault, Roots: roots, Own: e.cfg.ownAddresses()},
		Exec:   e.sandboxes.Processes().Exec, Rules: e.cfg.Workspaces.Rules,
		Limits: repos.Limits{First: e.cfg.Relay.First, Tries: e.cfg.Relay.Tries, Keep: e.cfg.Relay.Keep, Space: e.cfg.Relay.Space},
		Settled: func(ctx context.Context, d *caisson.Delivery) {
			runs.UpdateDelivery(ctx, e.data.store.Runs(), e.cfg.Log.With("component", "runs"), d)
		},
		Log: e.cfg.Log.With("component", "relay"),
	})
}
