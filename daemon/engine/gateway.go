package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/agent/openclaw"
	"github.com/caisson-dev/caisson/daemon/credential"
	"github.com/caisson-dev/caisson/daemon/events"
	"github.com/caisson-dev/caisson/daemon/models"
	"github.com/caisson-dev/caisson/daemon/routes"
	"github.com/caisson-dev/caisson/daemon/runs"
	"github.com/caisson-dev/caisson/daemon/sandboxes"
	"github.com/caisson-dev/caisson/internal/smallfile"
	"github.com/caisson-dev/caisson/ledger"
	"github.com/caisson-dev/caisson/wire"
)

// gateway contains the parts of the daemon that serve and configure the wire process: the wires, the services for models, secrets
// and budgets, the settings of the process, and its listeners.
type gateway struct {
	manager  Wires                // manages the wires and the wire process
	wires    *models.Wires        // attaches wires to sandboxes, and registers sandboxes at a remote gateway
	remote   *models.RemoteClient // client of the model gateway of another machine; nil if the local gateway serves the sandboxes
	book     *ledger.Book         // leases budgets and reads the journals
	ledger   *ledger.Service      // API of the ledger
	vault    *credential.Vault    // stored credentials
	catalog  *models.Catalog      // models with their prices
	settings *models.Settings     // settings of the wire process
	runs     *models.GatewayRuns  // gateway runs: runs of other machines
	listener *os.File             // listens for model calls of other machines; nil for none
	ingress  *os.File             // listens for requests of routes; nil for none
	routes   *routes.Core         // core of routes; set by construct
}

// newGateway opens the listeners and constructs the services for the wire process, which is started later by [gateway.run].
func newGateway(cfg *Config, data *dataDir, hub *events.Hub, on *Drivers) (_ *gateway, err error) {
	g := &gateway{}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.Close())
		}
	}()
	for _, l := range []struct {
		setting, addr string
		to            **os.File
	}{{"gateway.listen", cfg.Models.Gateway.Listen, &g.listener}, {"ingress.listen", cfg.Access.Ingress.Listen, &g.ingress}} {
		if l.addr == "" {
			continue
		}
		if *l.to, err = listen(l.setting, l.addr); err != nil {
			return nil, err
		}
	}
	owners := models.NewOwners(data.store)
	if g.book, err = ledger.NewBook(ledger.BookConfig{
		Dir: data.root, Store: data.store.Ledger(), Owner: owners.AccountOf, Log: cfg.Log,
	}); err != nil {
		return nil, err
	}
	if g.manager, err = on.Wires(wire.Config{
		Exe: selfExe, NetNS: netNS(on.Runtime), Ledger: journals{g.book}, Record: data.openCallLog, Listen: g.listener, Ingress: g.ingress,
		Log: cfg.Log.With("component", "wire"),
	}); err != nil {
		return nil, err
	}
	key := cfg.Data.CredentialKey
	if key.File == "" && key.Value.IsZero() && len(key.Command) == 0 {
		key.File = filepath.Join(cfg.Data.Dir, "credential.key")
	}
	keys := &models.CredentialWatcher{Providers: func() []caisson.Provider { return g.catalog.Offered().Providers }, RunKeys: cfg.Models.Gateway.RunTokenKeys, Wire: g.manager, Log: cfg.Log}
	if g.vault, err = credential.New(credential.Config{
		Store: data.store.Credentials(), Key: key, Events: hub, Log: cfg.Log,
		Changed: keys.Changed,
		Check: func(account, name string, value caisson.Secret) error {
			return models.CheckRunKey(cfg.Models.Gateway.RunTokenKeys, account, name, value)
		},
	}); err != nil {
		return nil, err
	}
	roots := ""
	if cfg.Models.CA != "" {
		pem, err := smallfile.Read(cfg.Models.CA)
		if err != nil {
			return nil, &caisson.Error{Kind: caisson.Invalid, Field: "providerCA", Msg: "cannot be read: " + err.Error(), Err: err}
		}
		roots = string(pem)
	}
	g.catalog = models.NewCatalog(models.CatalogConfig{
		Offer: cfg.Models.Offer, Roots: roots, WarmModel: runs.WarmModel, ServedRemotely: cfg.Models.Gateway.RemoteURL != "",
		Secrets: g.vault, Prices: data.store.Ledger(), Wire: g.manager, Events: hub,
	})
	if g.settings, err = models.NewSettings(models.SettingsConfig{
		Catalog: g.catalog, Gateway: cfg.Models.Gateway, WarmScript: openclaw.WarmScript, Listen: cfg.Addresses.Listen,
		PublicAddresses: cfg.Addresses.Public, Wire: g.manager, Log: cfg.Log.With("component", "models"),
	}); err != nil {
		return nil, err
	}
	if g.ledger, err = ledger.NewService(ledger.ServiceConfig{
		Book: g.book, Invalidate: g.manager.Forget, Events: hub, SpendLogs: g.catalog.SpendLogs, FindAccount: data.store.Accounts().Get,
	}); err != nil {
		return nil, err
	}
	g.runs = models.NewGatewayRuns(models.GatewayRunsConfig{
		Serves: cfg.Models.Gateway.Listen != "", Store: data.store, Catalog: g.catalog, Budget: cfg.Limits.Budget,
		Wire: g.manager, Events: hub,
	})
	g.wires = &models.Wires{Wires: g.manager, IngestCalls: g.book.Ingest, Owners: owners}
	if cfg.Models.Gateway.RemoteURL != "" {
		g.remote = models.NewRemoteClient(cfg.Models.Gateway, g.vault, g.ledger.Calls)
		g.wires.Remote = models.NewRemoteRuns(g.remote.Runs, cfg.Limits.Budget, cfg.Log.With("component", "gateway"))
	}
	return g, nil
}

// calls returns a page of the calls in the ledger of the gateway that serves the sandboxes, local or remote, and whether more
// follow.
func (g *gateway) calls(ctx context.Context, q caisson.UsageQuery, after caisson.ID, limit int) ([]caisson.Call, bool, error) {
	if g.remote != nil {
		return g.remote.Calls(ctx, q, after, limit)
	}
	return g.ledger.Calls(ctx, q, after, limit)
}

// run serves the wire process, and reads its journals, until ctx ends. It sets handlers.Runs to a function that returns the
// gateway runs.
func (g *gateway) run(ctx context.Context, handlers wire.Handlers) error {
	handlers.Runs = g.runs.Live
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return g.manager.Run(ctx, handlers) })
	group.Go(func() error { return g.book.Run(ctx) })
	group.Go(func() error { return g.settings.WatchNameservers(ctx) })
	if g.wires.Remote != nil {
		group.Go(func() error { return g.wires.Remote.Run(ctx) })
	}
	return group.Wait()
}

// Close stops listening for other machines and requests of routes.
func (g *gateway) Close() error {
	var errs []error
	for _, l := range []*os.File{g.listener, g.ingress} {
		if l != nil {
			errs = append(errs, l.Close())
		}
	}
	return errors.Join(errs...)
}

// netNS returns a function that opens the network namespace of a running sandbox.
func netNS(runtime sandboxes.Runtime) func(id caisson.ID) (*os.File, error) {
	return func(id caisson.ID) (*os.File, error) {
		list, err := runtime.List(context.Background())
		if err != nil {
			return nil, err
		}
		for _, s := range list {
			if s.ID == id && s.Running {
				return os.Open(fmt.Sprintf("/proc/%d/ns/net", s.PID))
			}
		}
		return nil, caisson.Errorf(caisson.NotFound, "sandbox %s does not run", id)
	}
}
