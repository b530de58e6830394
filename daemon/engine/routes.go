package engine

import (
	"context"
	"crypto/ed25519"
	"path/filepath"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/credential"
	"github.com/caisson-dev/caisson/daemon/models"
	"github.com/caisson-dev/caisson/daemon/routes"
)

// newRoutes constructs the core of routes.
func newRoutes(e *Engine) (*routes.Core, error) {
	seed, _, err := credential.LoadKeyFile(filepath.Join(e.cfg.Data.Dir, "route.key"))
	if err != nil {
		return nil, err
	}
	address := ""
	if e.gateway.ingress != nil {
		if address, err = listenerAddr(e.gateway.ingress); err != nil {
			return nil, err
		}
	}
	owners := models.NewOwners(e.data.store)
	return routes.New(routes.Config{
		Settings: e.cfg.Access.Ingress, Address: address, Key: ed25519.NewKeyFromSeed([]byte(seed.Reveal())), Store: e.data.store.Routes(),
		Sandboxes: func() routes.Sandboxes { return e.sandboxes.Sandboxes() },
		Used:      func(sandbox caisson.ID, active bool) { e.sandboxes.RecordRequests(sandbox, active) },
		Owner: func(_ context.Context, sandbox caisson.ID) (string, error) {
			return owners.AccountOf(caisson.Guest{Sandbox: sandbox})
		},
		Dialer: e.drivers.Dialer, Wire: e.gateway.manager, Events: e.events, Log: e.cfg.Log.With("component", "routes"),
	}), nil
}

// wireSettings returns the settings of the wire process with the routes of the ingress.
func (e *Engine) wireSettings(ctx context.Context) (*caisson.GatewayConfig, error) {
	cfg, err := e.gateway.settings.Current(ctx)
	if err != nil {
		return nil, err
	}
	with := *cfg // a copy, because Current may return the same settings again
	with.Ingress, err = e.gateway.routes.Table.Compile(ctx)
	return &with, err
}
