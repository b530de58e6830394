package engine

import (
	"context"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/forge"
	"github.com/caisson-dev/caisson/internal/smallfile"
	"github.com/caisson-dev/caisson/relay"
	"github.com/caisson-dev/caisson/relay/link"
	"github.com/caisson-dev/caisson/repos"
	"github.com/caisson-dev/caisson/runs"
)

// RelayConfig is about repositories and what is sent to their remotes.
type RelayConfig struct {
	CA    string        // PEM file of authorities to trust for remotes and forges besides the host's; "" for none
	First time.Duration // between the first two tries of a delivery; 0 is 5 s
	Tries time.Duration // for which a delivery is tried; 0 is 3 days
	Keep  time.Duration // for which what was not delivered is kept; 0 is 30 days
	Space caisson.Size  // that an account's repositories may take; 0 is 20 GiB
}

// newRepos constructs the core of the relay.
func newRepos(e *Engine) (*repos.Core, error) {
	roots := ""
	if e.cfg.Relay.CA != "" {
		pem, err := smallfile.Read(e.cfg.Relay.CA)
		if err != nil {
			return nil, caisson.Wrap(err, caisson.Invalid, "the file of the relay's authorities cannot be read")
		}
		roots = string(pem)
	}
	return repos.New(repos.Config{
		Dir: e.cfg.Dir, Store: e.Store, Git: relay.NewTool(e.runner), Link: link.NewTool(e.runner), Forge: forge.NewTool(e.runner),
		Secrets: e.vault, Events: e.Events, Exec: e.Core.Processes().Exec, Rules: e.cfg.Workspaces.Rules, Roots: roots, Own: e.cfg.host(),
		Limits: repos.Limits{First: e.cfg.Relay.First, Tries: e.cfg.Relay.Tries, Keep: e.cfg.Relay.Keep, Space: e.cfg.Relay.Space},
		Settled: func(ctx context.Context, d *caisson.Delivery) {
			runs.Delivered(ctx, e.Store.Runs(), e.cfg.Log.With("component", "runs"), d)
		},
		Log: e.cfg.Log.With("component", "relay"),
	})
}
