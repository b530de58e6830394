// Package engine constructs the cores and their drivers, reconciles store and host at start, and closes everything in
// order. It contains no logic about sandboxes.
package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/agent/openclaw"
	"github.com/caisson-dev/caisson/daemon/credential"
	"github.com/caisson-dev/caisson/daemon/events"
	"github.com/caisson-dev/caisson/daemon/models"
	"github.com/caisson-dev/caisson/daemon/repos"
	"github.com/caisson-dev/caisson/daemon/runs"
	"github.com/caisson-dev/caisson/daemon/sandboxes"
	"github.com/caisson-dev/caisson/daemon/sqlite"
	"github.com/caisson-dev/caisson/daemon/volumes"
	"github.com/caisson-dev/caisson/daemon/workspaces"
	"github.com/caisson-dev/caisson/internal/reach"
	"github.com/caisson-dev/caisson/internal/smallfile"
	"github.com/caisson-dev/caisson/internal/undo"
	"github.com/caisson-dev/caisson/job/worker"
	"github.com/caisson-dev/caisson/ledger"
	"github.com/caisson-dev/caisson/wire"
	"github.com/caisson-dev/caisson/wire/subruns"
)

// workUID is the host uid of the process that pulls images. No account uses it. The wire process has wire.DefaultUID;
// the uids of accounts begin at 0x50000000, those of layers at caisson.LayerUIDBase.
const workUID = worker.DefaultUID

// Config configures an Engine. Dir is required.
type Config struct {
	Dir                string // the data directory
	Platform           string // gVisor's platform: systrap or ptrace; "" and auto mean systrap
	Limits             sandboxes.Limits
	InsecureRegistries []string
	RegistryCA         string        // PEM file of CAs to trust in addition to the host's; "" for none
	EventRetention     time.Duration // 0 keeps events for ever
	Providers          []caisson.Provider
	Models             []caisson.Model
	ProviderCA         string         // PEM file of CAs to trust for providers, in addition to the host's; "" for none
	Listen             []string       // addresses of the daemon's own listeners, which sandboxes must not reach
	PublicAddresses    []netip.Prefix // addresses that lead to this machine although no interface has them
	Gateway            models.GatewayConfig
	Agents             AgentConfig
	Workspaces         WorkspaceConfig
	Relay              RelayConfig
	// LockWait is how long New waits for another daemon to release the data directory; 0 means not at all.
	LockWait time.Duration
	// CredentialKey is the source of the key that encrypts credentials; the zero value means a file in the data
	// directory.
	CredentialKey credential.KeySource
	Version       string
	Log           *slog.Logger
}

// ownAddresses returns the addresses of this machine.
func (c *Config) ownAddresses() reach.Host { return reach.Host{PublicAddresses: c.PublicAddresses} }

// Engine contains everything below the API servers. The exported fields are the services that those call.
type Engine struct {
	Core       *sandboxes.Core
	Workspaces *workspaces.Core
	Relay      *repos.Core
	Store      caisson.Store
	Events     *events.Hub

	cfg           Config
	on            *Drivers
	manager       Wires
	wires         *models.Wires
	remoteGateway *models.RemoteClient // the gateway of another machine; nil: the local one serves the sandboxes
	root          *os.Root
	book          *ledger.Book
	ledger        *ledger.Service
	vault         *credential.Vault
	catalog       *models.Catalog
	settings      *models.Settings
	gatewayRuns   *models.GatewayRuns
	runs          *runs.Core
	volumes       *volumes.Core
	listener      *os.File // listens for other machines; nil for none
	instance      caisson.ID
	build         string
	started       time.Time
	unlock        func() error
}

// New constructs an engine on a data directory, which it locks until Close. Returns Conflict if another daemon uses it.
func New(ctx context.Context, cfg Config) (*Engine, error) {
	if err := hardenProcess(); err != nil {
		return nil, err
	}
	return construct(ctx, cfg, (*Engine).product)
}

// NewOn constructs an engine as [New] does, but on other drivers than the product's, which Close closes, and without changing the
// umask and the limits of the process.
func NewOn(ctx context.Context, cfg Config, drivers *Drivers) (*Engine, error) {
	return construct(ctx, cfg, func(*Engine) (*Drivers, error) { return drivers, nil })
}

// construct constructs an engine. It calls drivers once the engine has its data directory, instance and build.
func construct(ctx context.Context, cfg Config, drivers func(*Engine) (*Drivers, error)) (_ *Engine, err error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Platform == "auto" {
		cfg.Platform = ""
	}
	if cfg.Dir, err = filepath.Abs(cfg.Dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, caisson.Wrap(err, caisson.Unavailable, "cannot make the data directory %s", cfg.Dir)
	}
	// If the directory already existed with a wider mode, other users could read it.
	if err := os.Chmod(cfg.Dir, 0o700); err != nil {
		return nil, err
	}
	var back undo.Stack
	defer func() { err = errors.Join(err, back.Run()) }()
	e := &Engine{cfg: cfg, started: time.Now().UTC()}
	if e.unlock, err = lockDir(ctx, cfg.Dir, cfg.LockWait); err != nil {
		return nil, err
	}
	back.Push(e.unlock)
	if e.build, err = buildID(); err != nil {
		return nil, err
	}
	if e.instance, err = instanceID(cfg.Dir); err != nil {
		return nil, err
	}
	if e.root, err = os.OpenRoot(cfg.Dir); err != nil {
		return nil, err
	}
	back.Push(e.root.Close)
	if e.Store, err = sqlite.Open(ctx, sqlite.Config{
		Path: filepath.Join(cfg.Dir, "caisson.db"), Log: cfg.Log,
		AuditKey: func() (caisson.Secret, bool, error) {
			return credential.LoadKeyFile(filepath.Join(cfg.Dir, "audit.key"))
		},
	}); err != nil {
		return nil, err
	}
	back.Push(e.Store.Close)
	e.Events = events.New(e.Store.Events(), cfg.Log.With("component", "events"))
	back.Push(e.Events.Close)
	if e.on, err = drivers(e); err != nil {
		return nil, err
	}
	back.Push(e.on.Close)
	if addr := cfg.Gateway.Listen; addr != "" {
		if e.listener, err = listen(addr); err != nil {
			return nil, err
		}
	}
	back.Push(e.closeListener)
	if err := e.gateway(); err != nil {
		return nil, err
	}
	if e.Workspaces, err = newWorkspaces(e); err != nil {
		return nil, err
	}
	back.Push(e.Workspaces.Close)
	if e.volumes, err = newVolumes(e); err != nil {
		return nil, err
	}
	back.Push(e.volumes.Close)
	node, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	e.Core, err = sandboxes.New(sandboxes.Config{
		Dir: cfg.Dir, Store: e.Store, Events: e.Events, Runtime: e.on.Runtime, Images: e.on.Images, Wires: e.wires,
		Egress: policies{cfg.ownAddresses()}, Gateway: e.catalog, Traffic: e.manager,
		Workspaces: e.Workspaces.Layers(), Volumes: e.volumes.Attachments(),
		Node: node, Build: e.build, Limits: cfg.Limits, Log: cfg.Log.With("component", "sandboxes"),
	})
	if err != nil {
		return nil, err
	}
	e.Workspaces.SetSandboxes(workspaces.Sandboxes{Lifecycle: e.Core.Sandboxes(), Exec: e.Core.Processes().Exec})
	if e.Relay, err = newRepos(e); err != nil {
		return nil, err
	}
	back.Release()
	e.runs = newRuns(e)
	return e, nil
}

// gateway constructs the wires, their settings, and the services for secrets, budgets and the ledger.
func (e *Engine) gateway() (err error) {
	owners := models.NewOwners(e.Store)
	if e.book, err = ledger.NewBook(ledger.BookConfig{
		Dir: e.root, Store: e.Store.Ledger(), Owner: owners.AccountOf, Log: e.cfg.Log,
	}); err != nil {
		return err
	}
	if e.manager, err = e.on.Wires(wire.Config{
		Exe: selfExe, NetNS: e.netNS, Ledger: journals{e.book}, Record: e.openCallLog, Listen: e.listener,
		Log: e.cfg.Log.With("component", "wire"),
	}); err != nil {
		return err
	}
	key := e.cfg.CredentialKey
	if key.File == "" && key.Value.IsZero() && len(key.Command) == 0 {
		key.File = filepath.Join(e.cfg.Dir, "credential.key")
	}
	keys := &models.CredentialWatcher{Providers: e.cfg.Providers, RunKeys: e.cfg.Gateway.RunKeys, Wire: e.manager, Log: e.cfg.Log}
	if e.vault, err = credential.New(credential.Config{
		Store: e.Store.Credentials(), Key: key, Events: e.Events, Log: e.cfg.Log,
		Changed: keys.Changed,
	}); err != nil {
		return err
	}
	roots := ""
	if e.cfg.ProviderCA != "" {
		pem, err := smallfile.Read(e.cfg.ProviderCA)
		if err != nil {
			return caisson.Wrap(err, caisson.Invalid, "the CA file for providers cannot be read")
		}
		roots = string(pem)
	}
	e.catalog = models.NewCatalog(models.CatalogConfig{
		Providers: e.cfg.Providers, Models: e.cfg.Models, Roots: roots, WarmModel: runs.WarmModel, ServedRemotely: e.cfg.Gateway.RemoteURL != "",
		Secrets: e.vault, Prices: e.Store.Ledger(), Wire: e.manager, Events: e.Events,
	})
	if e.settings, err = models.NewSettings(models.SettingsConfig{
		Catalog: e.catalog, Gateway: e.cfg.Gateway, WarmScript: openclaw.WarmScript, Listen: e.cfg.Listen,
		PublicAddresses: e.cfg.PublicAddresses, Wire: e.manager, Log: e.cfg.Log.With("component", "models"),
	}); err != nil {
		return err
	}
	if e.ledger, err = ledger.NewService(ledger.ServiceConfig{
		Book: e.book, Invalidate: e.manager.Forget, Events: e.Events, SpendLogs: e.catalog.SpendLogs,
	}); err != nil {
		return err
	}
	e.gatewayRuns = models.NewGatewayRuns(models.GatewayRunsConfig{
		Serves: e.cfg.Gateway.Listen != "", Store: e.Store, Catalog: e.catalog, Budget: e.cfg.Limits.Budget,
		Wire: e.manager, Events: e.Events,
	})
	e.wires = &models.Wires{Wires: e.manager, Ingest: e.book.Ingest, Owners: owners}
	if e.cfg.Gateway.RemoteURL != "" {
		e.remoteGateway = models.NewRemoteClient(e.cfg.Gateway, e.vault, e.ledger)
		e.wires.Remote = models.NewRemoteRuns(e.remoteGateway.Runs, e.cfg.Limits.Budget, e.cfg.Log.With("component", "gateway"))
	}
	return nil
}

// API returns the services of the engine.
func (e *Engine) API() caisson.API {
	return caisson.API{
		Sandboxes: e.Core.Sandboxes(), Processes: e.Core.Processes(), Snapshots: e.Core.Snapshots(), Templates: e.Core.Templates(),
		Images: e.Core.ImageService(), Files: e.Core.Files(), Policies: e.Core.Policies(), Events: e.Events, Tokens: e.Tokens(),
		Credentials: e.vault, Audit: e, Ledger: e.ledger, Models: e.catalog, GatewayRuns: e.gatewayRuns, Daemon: e,
		Agents: e.runs.Agents(), Runs: e.runs.Runs(), Workspaces: e.Workspaces.Workspaces(), Repos: e.Relay.Repos(),
		Volumes: e.volumes.Volumes(),
	}
}

// Run does the background work of the engine until ctx ends. It calls ready when store and host are consistent and
// requests can be served.
func (e *Engine) Run(ctx context.Context, ready func() error) error {
	// The ledger is recovered before anything can spend again.
	if err := e.book.Recover(ctx); err != nil {
		return fmt.Errorf("recover the ledger: %w", err)
	}
	if _, err := e.settings.Current(ctx); err != nil {
		return fmt.Errorf("settings of the model gateway: %w", err)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		host := &subruns.Executor{Guests: e.runs.Guests(), Budgets: e.Store.Ledger(), Ingest: e.book.Ingest, Log: e.cfg.Log}
		return e.manager.Run(ctx, wire.Handlers{
			Settings: e.settings.Current, Runs: e.gatewayRuns.Live, Decided: e.Core.RecordDecisions, Tool: host.Call, Stream: e.Relay.Stream,
		})
	})
	g.Go(func() error { return e.book.Run(ctx) })
	g.Go(func() error { return e.settings.WatchNameservers(ctx) })
	if e.wires.Remote != nil {
		g.Go(func() error { return e.wires.Remote.Run(ctx) })
	}
	g.Go(func() error {
		garbage, err := e.Core.Reconcile(ctx, e.netNS)
		if err != nil {
			return fmt.Errorf("reconcile: %w", err)
		}
		for _, x := range garbage {
			e.cfg.Log.WarnContext(ctx, "removed garbage of an earlier daemon", "kind", x.Kind, "name", x.Name)
		}
		if err := e.Workspaces.Reconcile(ctx); err != nil {
			return fmt.Errorf("reconcile workspaces: %w", err)
		}
		g.Go(func() error { return e.Workspaces.Run(ctx) })
		if err := e.volumes.Reconcile(ctx); err != nil {
			return fmt.Errorf("reconcile volumes: %w", err)
		}
		// A claimed request whose daemon stopped is never answered.
		if err := e.Store.Answers().Trim(ctx, time.Now().Add(-answerRetention)); err != nil {
			return err
		}
		if err := e.Relay.Reconcile(ctx); err != nil {
			return fmt.Errorf("reconcile repositories: %w", err)
		}
		if err := e.runs.Reconcile(ctx); err != nil {
			return fmt.Errorf("reconcile runs: %w", err)
		}
		g.Go(func() error { return e.runs.Run(ctx) })
		g.Go(func() error { return e.Relay.Run(ctx) })
		if err := ready(); err != nil {
			return err
		}
		return e.housekeep(ctx)
	})
	err := g.Wait()
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

const (
	housekeeping    = time.Hour
	answerRetention = 24 * time.Hour
)

// housekeep removes old records, once every housekeeping interval.
func (e *Engine) housekeep(ctx context.Context) error {
	for {
		now := time.Now()
		if e.cfg.EventRetention > 0 {
			if _, err := e.Store.Events().Trim(ctx, now.Add(-e.cfg.EventRetention)); err != nil && ctx.Err() == nil {
				e.cfg.Log.ErrorContext(ctx, "old events could not be removed", "err", err)
			}
		}
		if err := e.Store.Answers().Trim(ctx, now.Add(-answerRetention)); err != nil && ctx.Err() == nil {
			e.cfg.Log.ErrorContext(ctx, "old answers could not be removed", "err", err)
		}
		if err := e.gatewayRuns.Housekeep(ctx, now); err != nil && ctx.Err() == nil {
			e.cfg.Log.ErrorContext(ctx, "runs that have expired could not be removed", "err", err)
		}
		select {
		case <-time.After(housekeeping):
		case <-ctx.Done():
			return nil
		}
	}
}

// Close stops everything in this process. It must be called after Run has returned. Sandboxes keep running.
func (e *Engine) Close() error {
	return errors.Join(
		e.runs.Close(), e.Relay.Close(), e.Core.Close(), e.Workspaces.Close(), e.volumes.Close(), e.on.Close(), e.closeListener(),
		e.Events.Close(), e.Store.Close(), e.root.Close(), e.unlock(),
	)
}

// netNS opens the network namespace of a running sandbox.
func (e *Engine) netNS(id caisson.ID) (*os.File, error) {
	list, err := e.on.Runtime.List(context.Background())
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

// hardenProcess disables core dumps, prevents other processes from reading the daemon's memory, and denies all access
// to new files to other users.
func hardenProcess() error {
	unix.Umask(0o077)
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return err
	}
	return unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
}

// lockDir locks the data directory until unlock is called. If another process holds the lock, lockDir waits for up to
// wait, and then returns Conflict.
func lockDir(ctx context.Context, dir string, wait time.Duration) (unlock func() error, err error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(wait); ; {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f.Close, nil
		}
		if ctx.Err() != nil || !errors.Is(err, unix.EWOULDBLOCK) || !time.Now().Before(deadline) {
			f.Close()
			return nil, caisson.Wrap(err, caisson.Conflict, "another caisson daemon uses %s; stop it, or use another --data directory", dir)
		}
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// instanceID returns the id of the data directory, which is part of the names of all objects on the host.
func instanceID(dir string) (caisson.ID, error) {
	path := filepath.Join(dir, "instance")
	data, err := os.ReadFile(path)
	if err == nil {
		return caisson.ParseID(caisson.InstancePrefix, string(data))
	}
	if !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	id := caisson.NewID(caisson.InstancePrefix)
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, []byte(id), 0o600); err != nil {
		return "", err
	}
	return id, os.Rename(tmp, path)
}
