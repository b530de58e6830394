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
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/credential"
	"github.com/caisson-dev/caisson/daemon/events"
	"github.com/caisson-dev/caisson/daemon/models"
	"github.com/caisson-dev/caisson/daemon/repos"
	"github.com/caisson-dev/caisson/daemon/routes"
	"github.com/caisson-dev/caisson/daemon/runs"
	"github.com/caisson-dev/caisson/daemon/sandboxes"
	"github.com/caisson-dev/caisson/daemon/sshserver"
	"github.com/caisson-dev/caisson/daemon/volumes"
	"github.com/caisson-dev/caisson/daemon/workspaces"
	"github.com/caisson-dev/caisson/internal/reach"
	"github.com/caisson-dev/caisson/internal/undo"
	"github.com/caisson-dev/caisson/job/worker"
	"github.com/caisson-dev/caisson/wire"
	"github.com/caisson-dev/caisson/wire/subruns"
)

// workUID is the host uid of the process that pulls images. No account uses it. The wire process has wire.DefaultUID;
// the uids of accounts begin at 0x50000000, those of layers at caisson.LayerUIDBase.
const workUID = worker.DefaultUID

// Config configures an Engine. Data.Dir is required.
type Config struct {
	Data      DataConfig       // data directory, events and credential key
	Platform  string           // gVisor's platform: systrap or ptrace; "" and auto mean systrap
	Limits    sandboxes.Limits // limits of all sandboxes together
	Images    ImageConfig      // how images are pulled
	Models    ModelConfig      // models, and the gateway that serves them
	Addresses AddressConfig    // addresses of this machine
	Agents    AgentConfig      // agents and their runs
	Work      WorkConfig       // workspaces and repositories
	Access    AccessConfig     // access to sandboxes from other machines
	Settings  Settings         // settings of the process; nil for none
	Version   string           // version of Caisson
	Log       *slog.Logger
}

// WorkConfig configures the directories and repositories that agents work on.
type WorkConfig struct {
	Workspaces workspaces.Settings // hidden files, and rules for applying changes
	Relay      repos.Settings      // retries and limits of the relay
}

// AccessConfig configures how other machines reach sandboxes.
type AccessConfig struct {
	Ingress routes.Settings    // address and domain of the ingress
	SSH     sshserver.Settings // address of the SSH server
}

// Settings is the configuration of the process in which an engine runs.
type Settings interface {
	// State sets the fields Settings, Background and Listen of its argument. Settings includes the keys whose values in the
	// configuration file differ from those in force.
	State(*caisson.DaemonStatus)
	Reload(ctx context.Context) (*caisson.Reloaded, error) // reads the configuration again; after an error nothing changes
}

// DataConfig configures the data directory, the retention of events, and the key that encrypts credentials.
type DataConfig struct {
	Dir            string        // path of the data directory
	ConfigFile     string        // path of the configuration file, for backups; "" for none
	LockWait       time.Duration // how long New waits for another daemon to release the directory; 0 means not at all
	EventRetention time.Duration // how long events are kept; 0 means for ever
	// CredentialKey is the source of the key that encrypts credentials; the zero value means a file in the data directory.
	CredentialKey credential.KeySource
}

// ImageConfig configures pulls of images.
type ImageConfig struct {
	InsecureRegistries []string // registries that are reached without TLS
	CA                 string   // PEM file of CAs to trust in addition to the host's; "" for none
}

// ModelConfig configures the offer of models and the model gateway.
type ModelConfig struct {
	models.Offer
	CA      string               // PEM file of CAs to trust for providers, in addition to the host's; "" for none
	Gateway models.GatewayConfig // offers the gateway of this machine to others, or uses that of another
}

// AddressConfig contains addresses of this machine.
type AddressConfig struct {
	Listen []string       // addresses of the daemon's own listeners, which sandboxes must not reach
	Public []netip.Prefix // addresses that lead to this machine although no interface has them
}

// ownAddresses returns what tells which addresses are those of this machine.
func (c *Config) ownAddresses() reach.Host { return reach.Host{PublicAddresses: c.Addresses.Public} }

// Engine contains the store, the drivers and the cores of a daemon, which is everything except the servers of the API.
type Engine struct {
	cfg        Config           // configuration
	data       *dataDir         // data directory and store
	drivers    *Drivers         // drivers that depend on the host
	events     *events.Hub      // stores events, and wakes calls that watch them
	gateway    *gateway         // wires, models and budgets
	sandboxes  *sandboxes.Core  // core of sandboxes
	workspaces *workspaces.Core // core of workspaces
	volumes    *volumes.Core    // core of volumes
	repos      *repos.Core      // core of repositories
	runs       *runs.Core       // core of runs
	access     *access          // services with which clients reach programs in sandboxes
	process    process          // the daemon's process: the id of its binary, and the time when it started
}

// process describes the process of the daemon: the id of its binary, and the time when it started.
type process struct {
	build   string    // id of the binary
	started time.Time // time when the process started
}

// New constructs an engine on a data directory, which it locks until Close. Returns Conflict if another daemon uses it.
func New(ctx context.Context, cfg Config) (*Engine, error) {
	if err := hardenProcess(); err != nil {
		return nil, err
	}
	return construct(ctx, cfg, (*Engine).newDrivers)
}

// NewOn is like [New], but uses the given drivers, which Close closes, and does not change the umask and the resource limits of
// the process.
func NewOn(ctx context.Context, cfg Config, drivers *Drivers) (*Engine, error) {
	return construct(ctx, cfg, func(*Engine) (*Drivers, error) { return drivers, nil })
}

// construct constructs an engine. It calls drivers after it has opened the data directory and determined the ids of the
// directory and of the build.
func construct(ctx context.Context, cfg Config, drivers func(*Engine) (*Drivers, error)) (_ *Engine, err error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Platform == "auto" {
		cfg.Platform = ""
	}
	var back undo.Stack
	defer func() { err = errors.Join(err, back.Run()) }()
	e := &Engine{process: process{started: time.Now().UTC()}}
	if e.data, err = openDataDir(ctx, &cfg); err != nil {
		return nil, err
	}
	e.cfg = cfg
	back.Push(e.data.Close)
	if e.process.build, err = buildID(); err != nil {
		return nil, err
	}
	e.events = events.New(e.data.store.Events(), cfg.Log.With("component", "events"))
	back.Push(e.events.Close)
	if e.drivers, err = drivers(e); err != nil {
		return nil, err
	}
	back.Push(e.drivers.Close)
	if e.gateway, err = newGateway(&cfg, e.data, e.events, e.drivers); err != nil {
		return nil, err
	}
	back.Push(e.gateway.Close)
	if e.workspaces, err = newWorkspaces(e); err != nil {
		return nil, err
	}
	back.Push(e.workspaces.Close)
	if e.volumes, err = newVolumes(e); err != nil {
		return nil, err
	}
	back.Push(e.volumes.Close)
	if e.gateway.routes, err = newRoutes(e); err != nil {
		return nil, err
	}
	back.Push(e.gateway.routes.Close)
	node, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	e.sandboxes, err = sandboxes.New(sandboxes.Config{
		Dir: cfg.Data.Dir, Store: e.data.store, Events: e.events, Runtime: e.drivers.Runtime, Images: e.drivers.Images,
		Network: sandboxes.NetworkConfig{
			Wires: e.gateway.wires, Egress: policies{cfg.ownAddresses()}, Gateway: e.gateway.catalog, Traffic: e.gateway.manager,
			Disconnect: e.gateway.routes.Connector.Disconnect,
		},
		Workspaces: e.workspaces.Layers(), Volumes: e.volumes.Attachments(),
		Host: sandboxes.HostConfig{Node: node, CheckHost: e.drivers.CheckHost}, Programs: e.programs(), Limits: cfg.Limits, Log: cfg.Log.With("component", "sandboxes"),
	})
	if err != nil {
		return nil, err
	}
	e.workspaces.SetSandboxes(workspaces.Sandboxes{Lifecycle: e.sandboxes.Sandboxes(), Exec: e.sandboxes.Processes().Exec})
	if e.repos, err = newRepos(e); err != nil {
		return nil, err
	}
	if e.access, err = newAccess(e); err != nil {
		return nil, err
	}
	back.Release()
	e.runs = newRuns(e)
	return e, nil
}

// Store returns the store, in which the API server keeps answers to requests. Tests use it, too.
func (e *Engine) Store() caisson.Store { return e.data.store }

// API returns the services of the engine.
func (e *Engine) API() caisson.API {
	return caisson.API{
		Sandboxes: e.sandboxes.Sandboxes(), Processes: e.sandboxes.Processes(), Terminals: e.access.terminals,
		Snapshots: e.sandboxes.Snapshots(), Templates: e.sandboxes.Templates(),
		Images: e.sandboxes.ImageService(), Files: e.sandboxes.Files(), Policies: e.sandboxes.Policies(), Events: e.events, Tokens: e.Tokens(),
		Credentials: e.gateway.vault, Audit: e, Ledger: e.gateway.ledger, Models: e.gateway.catalog, GatewayRuns: e.gateway.runs, Daemon: e,
		Agents: e.runs.Agents(), Runs: e.runs.Runs(), Workspaces: e.workspaces.Workspaces(), Repos: e.repos.Repos(),
		Volumes: e.volumes.Volumes(), Services: e.sandboxes.Services(), Routes: e.gateway.routes.Service, SSH: e.access.ssh,
		Connections: e.access.connections,
	}
}

// Run does the background work of the engine until ctx ends. It calls ready when store and host are consistent and
// requests can be served.
func (e *Engine) Run(ctx context.Context, ready func() error) error {
	// The ledger must be recovered before the wire process can lease budgets again.
	if err := e.gateway.book.Recover(ctx); err != nil {
		return fmt.Errorf("recover the ledger: %w", err)
	}
	if _, err := e.gateway.settings.Current(ctx); err != nil {
		return fmt.Errorf("settings of the model gateway: %w", err)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		host := &subruns.Executor{Guests: e.runs.Guests(), Budgets: e.data.store.Ledger(), Ingest: e.gateway.book.Ingest, Log: e.cfg.Log}
		return e.gateway.run(ctx, wire.Handlers{
			Settings: e.wireSettings, Decided: e.sandboxes.RecordDecisions, Tool: host.Call, Stream: e.repos.Stream,
			Dial: e.gateway.routes.Connector.Dial, Requested: e.gateway.routes.Requests.Add, Used: e.gateway.routes.Connector.Used,
		})
	})
	g.Go(func() error { return e.gateway.routes.Table.WatchCertificate(ctx) })
	g.Go(func() error {
		if e.data.unchecked {
			if err := e.sandboxes.ForgetMissing(ctx); err != nil {
				return fmt.Errorf("remove entries without files from the store: %w", err)
			}
			if err := e.data.markChecked(); err != nil {
				return err
			}
		}
		garbage, err := e.sandboxes.Reconcile(ctx, netNS(e.drivers.Runtime))
		if err != nil {
			return fmt.Errorf("reconcile: %w", err)
		}
		for _, x := range garbage {
			e.cfg.Log.WarnContext(ctx, "removed garbage of an earlier daemon", "kind", x.Kind, "name", x.Name)
		}
		if err := e.workspaces.Reconcile(ctx); err != nil {
			return fmt.Errorf("reconcile workspaces: %w", err)
		}
		g.Go(func() error { return e.workspaces.Run(ctx) })
		if err := e.volumes.Reconcile(ctx); err != nil {
			return fmt.Errorf("reconcile volumes: %w", err)
		}
		// Delete old idempotency keys. If the daemon stopped during a request, the key of the request never gets an answer, and
		// causes a Conflict until it is deleted.
		if err := e.data.store.Answers().Trim(ctx, time.Now().Add(-answerRetention)); err != nil {
			return err
		}
		if err := e.repos.Reconcile(ctx); err != nil {
			return fmt.Errorf("reconcile repositories: %w", err)
		}
		if err := e.runs.Reconcile(ctx); err != nil {
			return fmt.Errorf("reconcile runs: %w", err)
		}
		e.collectPrograms(ctx) // before requests and runs can create sandboxes that depend on programs of earlier builds
		g.Go(func() error { return e.runs.Run(ctx) })
		g.Go(func() error { return e.repos.Run(ctx) })
		if err := e.access.serve(ctx, g); err != nil {
			return err
		}
		if err := ready(); err != nil {
			return err
		}
		e.unpackPrograms(ctx)
		return e.housekeep(ctx)
	})
	err := g.Wait()
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

const (
	housekeeping    = time.Hour      // interval at which old events, answers and gateway runs are removed from the store
	answerRetention = 24 * time.Hour // how long answers to requests with idempotency keys are kept
)

// housekeep removes old events, answers and gateway runs, once every housekeeping interval, until ctx ends.
func (e *Engine) housekeep(ctx context.Context) error {
	for {
		now := time.Now()
		if e.cfg.Data.EventRetention > 0 {
			if _, err := e.data.store.Events().Trim(ctx, now.Add(-e.cfg.Data.EventRetention)); err != nil && ctx.Err() == nil {
				e.cfg.Log.ErrorContext(ctx, "old events could not be removed", "err", err)
			}
		}
		if err := e.data.store.Answers().Trim(ctx, now.Add(-answerRetention)); err != nil && ctx.Err() == nil {
			e.cfg.Log.ErrorContext(ctx, "old answers could not be removed", "err", err)
		}
		if err := e.gateway.runs.Housekeep(ctx, now); err != nil && ctx.Err() == nil {
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
		e.access.ssh.Close(), e.runs.Close(), e.repos.Close(), e.gateway.routes.Close(), e.sandboxes.Close(), e.workspaces.Close(),
		e.volumes.Close(), e.drivers.Close(), e.gateway.Close(),
		e.events.Close(), e.data.Close(),
	)
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
