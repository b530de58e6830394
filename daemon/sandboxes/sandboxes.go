// Package sandboxes is the core of the life of sandboxes: it combines a runtime, images and wires into sandboxes that survive the
// daemon.
//
// The store contains the intended state, the host the actual state. Every change stores its intent (a state that ends
// in -ing) before it changes the host, and its outcome afterwards; [Core.Reconcile] compares the two after a restart
// and completes or rolls back the changes that were in progress.
//
// On disk a sandbox is one directory:
//
//	<dir>/sandboxes/<id>/
//	    etc/         topmost layer: host name, hosts, resolver, machine-id
//	    output       FIFO to which the command writes; the sandbox keeps it open
//	    log, log.old the command's output, bounded
//	    mounts.json  host directories the sandbox was created with
//	    placeholder/ empty directory for the workspaces of forks
//	    depends.json dependencies the sandbox was started with
//	    files.tar    changes to the root file system while it is stopped
//	    pause/       memory and files while it is paused
//	    runtime/     files of the runtime
//	<dir>/snapshots/<id>/   files of a checkpoint
package sandboxes

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/background"
	"github.com/caisson-dev/caisson/internal/meminfo"
)

// Images is the interface of the image driver that the core requires. Image records are kept in the store.
type Images interface {
	// Pull downloads or imports an image for an account. It calls progress during the download.
	Pull(ctx context.Context, req caisson.PullRequest, account string, progress func(caisson.Progress)) (*caisson.Image, error)
	// Host returns the image of the host's own programs.
	Host(ctx context.Context) (*caisson.Image, error)
	// MakeLayer makes a layer from a tar archive of the changes to a root file system, and returns its digest and directory.
	MakeLayer(ctx context.Context, account string, archive *os.File) (digest, dir string, err error)
	// ProtectLayers protects layers from being pruned until release is called.
	ProtectLayers() (release func())
	// Prune removes the layers for whose directory inUse returns false, and returns the freed space in bytes.
	Prune(ctx context.Context, inUse func(dir string) bool) (freed caisson.Size, err error)
	// Canonical returns the form of a reference under which an image is stored.
	Canonical(ref string) (string, error)
}

// Config configures a Core. All fields are required except Limits, Log and those whose comments allow nil.
type Config struct {
	Dir     string // the data directory
	Store   caisson.Store
	Events  caisson.Publisher // receives the events about the objects of this package
	Runtime Runtime           // driver for sandboxes
	Images  Images            // driver for images
	Network NetworkConfig     // what sandboxes can reach
	// Workspaces creates the workspaces of sandboxes; nil: no sandbox can have one.
	Workspaces caisson.WorkspaceLayers
	// Volumes attaches volumes to sandboxes; nil: no sandbox can have one.
	Volumes caisson.VolumeAttachments
	Host    HostConfig // memory, disk and name of the host
	// Programs are the set of programs that sandboxes are started with, and the other sets that this daemon supports. The id of
	// the set in use is recorded in each sandbox and snapshot.
	Programs caisson.Programs
	Limits   Limits // limits of all sandboxes together
	Log      *slog.Logger
}

// NetworkConfig configures what sandboxes can reach.
type NetworkConfig struct {
	Wires   caisson.Wires // attaches wires; nil: sandboxes have a loopback device only
	Egress  Egress        // validates policies; required with Wires
	Gateway Gateway       // validates model grants; nil: no sandbox can be granted models
	Traffic Traffic       // returns traffic counters and refusals of wires; nil: there are none
	// Disconnect closes connections from outside to a sandbox that is being suspended, paused or stopped; nil: there are none.
	Disconnect func(ctx context.Context, id caisson.ID) error
}

// HostConfig describes the host.
type HostConfig struct {
	Node string // name of this machine, recorded in each sandbox
	// Available returns the available memory of the host in bytes; nil: read from the kernel.
	Available func() (caisson.Size, error)
	// Free returns the free space in bytes on the file system of the data directory; nil: read from the kernel.
	Free func() (caisson.Size, error)
	// CheckHost checks whether the host has everything that every sandbox needs, and otherwise returns an error that names what
	// is missing. It is called after a start of a sandbox has failed with an internal error. nil: the host is not checked.
	CheckHost func() error
}

// Limits bounds the host resources of all sandboxes together. 0 means no limit.
type Limits struct {
	MaxSandboxes  int          `yaml:"maxSandboxes" json:"maxSandboxes"`   // maximum number of live sandboxes
	MemoryReserve caisson.Size `yaml:"memoryReserve" json:"memoryReserve"` // bytes of memory that must remain available
	// DiskReserve is the space in bytes that must remain free on the file system of the data directory: with less, no
	// sandbox starts, and with less than half of it, the sandbox that writes most is stopped.
	DiskReserve caisson.Size   `yaml:"diskReserve" json:"diskReserve"`
	PIDsReserve int            `yaml:"pidsReserve" json:"pidsReserve"` // process ids that must remain available on the host
	PoolMemory  caisson.Size   `yaml:"poolMemory" json:"poolMemory"`   // maximum bytes of memory of all pooled forks
	Budget      caisson.Limits `yaml:"-" json:"-"`                     // default budget, for a sandbox whose model grant has none
}

// DefaultLimits returns the limits of a daemon whose configuration sets none. They include no default budget.
func DefaultLimits() Limits {
	return Limits{MaxSandboxes: 1000, MemoryReserve: 512 << 20, DiskReserve: 1 << 30, PIDsReserve: 1024, PoolMemory: 4 << 30}
}

// Validate returns an Invalid error for every invalid setting, joined. It does not accept 0 for MaxSandboxes.
func (l *Limits) Validate() error {
	var errs []error
	check := func(ok bool, field, format string, args ...any) {
		if !ok {
			errs = append(errs, caisson.Invalidf(field, format, args...))
		}
	}
	check(l.MaxSandboxes >= 1, "maxSandboxes", "%d is not at least 1", l.MaxSandboxes)
	check(l.DiskReserve >= 0, "diskReserve", "is negative")
	check(l.MemoryReserve >= 0, "memoryReserve", "is negative")
	check(l.PoolMemory >= 0, "poolMemory", "is negative")
	check(l.PIDsReserve >= 0, "pidsReserve", "%d is negative", l.PIDsReserve)
	return errors.Join(errs...)
}

// Core combines the components of this package. Its methods are for the engine and safe for concurrent use.
type Core struct {
	node       string            // name of this machine
	background *background.Group // background goroutines of the core
	states     states            // stored records of sandboxes
	deadlines  *deadlines        // timers for TTLs and autoPause
	clients    *fileClients      // clients that access files in sandboxes
	diskGuard  *diskGuard        // stops sandboxes that fill the disk
	admission  *admission        // decides whether the host has room
	expiry     *expiry           // pauses and removes sandboxes, and takes other steps, when they are due
	reconciler *reconciler       // reconciles store and host
	wires      *wireChanges      // changes policies and assignments
	decisions  *decisions        // records decisions of wires
	api        services          // services that implement the API
}

// services contains the services of a Core that implement the API.
type services struct {
	lifecycle *Lifecycle
	processes *Processes
	files     *Files
	snapshots *Snapshots
	templates *Templates
	images    *ImageService // finds and pulls images
	policies  *PolicyService
	services  *ServiceService
}

// New returns a Core. It accesses neither the store nor the runtime; call Reconcile before use.
func New(cfg Config) (*Core, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Host.Available == nil {
		cfg.Host.Available = meminfo.Available
	}
	if cfg.Host.Free == nil {
		cfg.Host.Free = func() (caisson.Size, error) { return freeSpace(cfg.Dir) }
	}
	for _, dir := range []string{"sandboxes", "snapshots"} {
		if err := os.MkdirAll(filepath.Join(cfg.Dir, dir), 0o700); err != nil {
			return nil, err
		}
	}
	// Optional interfaces of the runtime driver; nil if the driver does not implement them.
	memory, _ := cfg.Runtime.Runtime.(caisson.MemoryWaiter)
	recorder, _ := cfg.Runtime.Runtime.(caisson.WriterRecorder)
	randomness, _ := cfg.Runtime.Runtime.(caisson.RandomnessReporter)
	ends, _ := cfg.Runtime.Runtime.(caisson.EndReporter)

	runtime, log := cfg.Runtime, cfg.Log
	accounts, boxes := cfg.Store.Accounts(), cfg.Store.Sandboxes()
	snapshots, templates := cfg.Store.Snapshots(), cfg.Store.Templates()
	background, locks, dirs := background.New(), &locks{}, dirs{cfg.Dir}
	unstored, leftovers, unresolved := &idSet{}, &idSet{}, &idSet{}
	finder, states, catalog := finder{boxes, cfg.Programs}, states{boxes, cfg.Events}, catalog{templates}
	network := network{
		wires: cfg.Network.Wires, egress: cfg.Network.Egress, gateway: cfg.Network.Gateway, ledger: cfg.Store.Ledger(),
		budget: cfg.Limits.Budget,
	}
	logs := &logs{dirs: dirs, states: states, background: background, log: log}
	writers := &writers{states: states, runtime: recorder, dirs: dirs, log: log}
	freezer := &freezer{runtime: runtime, states: states}
	activity := newActivity(cfg.Programs)
	deadlines := &deadlines{background: background, due: make(chan caisson.ID), activity: activity, timers: map[caisson.ID]*time.Timer{}}
	clients := &fileClients{runtime: runtime, background: background, open: map[caisson.ID]*fileClient{}}
	images := &ImageService{
		driver: cfg.Images, images: cfg.Store.Images(), accounts: accounts, catalog: catalog, events: cfg.Events,
		users: rootfsUsers{boxes, snapshots, templates},
	}
	workspaces := &workspaces{
		layers: cfg.Workspaces, volumes: cfg.Volumes, accounts: accounts, states: states, dirs: dirs,
	}
	specs := &specs{
		accounts: accounts, images: cfg.Images, runtime: runtime, workspaces: workspaces, dirs: dirs, programs: cfg.Programs,
	}
	processes := &processes{
		runtime: runtime, randomness: randomness, specs: specs, network: network, writers: writers, clients: clients,
		leftovers: leftovers, checkHost: cfg.Host.CheckHost,
	}
	supervisors := &supervisors{
		runtime: runtime, states: states, programs: cfg.Programs, background: background, log: log, followers: map[caisson.ID]*followerHandle{},
	}
	watches := &watches{
		runtime: runtime, ends: ends, states: states, locks: locks, processes: processes, logs: logs, services: supervisors,
		background: background, log: log, stops: map[caisson.ID]func(){},
	}
	remover := &remover{
		states: states, locks: locks, watches: watches, deadlines: deadlines, processes: processes, workspaces: workspaces, dirs: dirs,
		network: network, unresolved: unresolved,
	}
	admission := &admission{
		limits: cfg.Limits, runtime: runtime, memory: memory, evictor: &evictor{states, remover, dirs, log},
		available: cfg.Host.Available, free: cfg.Host.Free, background: background, log: log, starting: map[caisson.ID]bool{}, reservedMemory: map[caisson.ID]caisson.Size{},
	}
	resolver := &resolver{
		runtime: runtime, states: states, dirs: dirs, freezer: freezer, processes: processes, watches: watches, deadlines: deadlines,
		remover: remover, unresolved: unresolved, log: log,
	}
	changes := &changes{
		finder: finder, states: states, locks: locks, resolver: resolver, watches: watches, deadlines: deadlines, dirs: dirs,
		unresolved: unresolved, disconnect: cfg.Network.Disconnect, log: log,
	}
	verbs := &verbs{
		runtime: runtime, states: states, admission: admission, processes: processes, freezer: freezer, clients: clients,
		watches: watches, dirs: dirs, programs: cfg.Programs,
	}
	planner := &planner{
		catalog: catalog, images: images, holds: cfg.Images, snapshots: snapshots, network: network, workspaces: workspaces, dirs: dirs,
		node: cfg.Host.Node, programs: cfg.Programs,
	}
	creator := &creator{
		accounts: accounts, sandboxes: boxes, states: states, locks: locks, admission: admission, dirs: dirs, workspaces: workspaces,
		network: network, processes: processes, watches: watches, deadlines: deadlines,
	}
	pools := &pools{
		planner: planner, creator: creator, remover: remover, states: states, network: network, deadlines: deadlines,
		admission: admission, background: background, log: log, filling: map[poolKey]int{},
	}
	wires := &wireChanges{finder: finder, states: states, locks: locks, network: network, activity: activity, log: log}
	captures := &captures{runtime: runtime, freezer: freezer, clients: clients, workspaces: workspaces, dirs: dirs}
	keeper := &keeper{
		snapshots: snapshots, events: cfg.Events, dirs: dirs, unstored: unstored, captures: captures, workspaces: workspaces,
		start: activity.start, retryFor: finalRetry,
	}
	garbage := &garbage{
		runtime: runtime, states: states, snapshots: snapshots, dirs: dirs, unstored: unstored, leftovers: leftovers, processes: processes,
	}
	return &Core{
		node: cfg.Host.Node, background: background, states: states, deadlines: deadlines, clients: clients,
		admission: admission,
		diskGuard: &diskGuard{
			runtime: runtime, states: states, workspaces: workspaces, locks: locks, watches: watches, free: cfg.Host.Free,
			reserve: cfg.Limits.DiskReserve, log: log,
		},
		expiry: &expiry{
			states: states, locks: locks, deadlines: deadlines, remover: remover, keeper: keeper, changes: changes, verbs: verbs,
			background: background, log: log, retry: deadlineRetry,
		},
		reconciler: &reconciler{
			runtime: runtime, states: states, resolver: resolver, garbage: garbage, network: network,
			watches: watches, deadlines: deadlines, pools: pools, unresolved: unresolved, log: log,
			missing: &missingObjects{snapshots: snapshots, images: cfg.Store.Images(), templates: templates, dirs: dirs, events: cfg.Events, log: log},
		},
		wires:     wires,
		decisions: &decisions{events: cfg.Events, background: background, log: log},
		api: services{
			lifecycle: &Lifecycle{
				finder: finder, sandboxes: boxes, planner: planner, creator: creator, pools: pools, changes: changes, verbs: verbs,
				remover: remover, deadlines: deadlines, writers: writers,
			},
			processes: &Processes{finder: finder, states: states, runtime: runtime, activity: activity, traffic: cfg.Network.Traffic, logs: logs},
			files: &Files{&fileAccess{
				finder: finder, locks: locks, activity: activity, clients: clients, admission: admission, unstored: unstored, specs: specs, runtime: runtime,
				dirs: dirs, log: log,
			}},
			snapshots: &Snapshots{
				finder: finder, locks: locks, snapshots: snapshots, events: cfg.Events, dirs: dirs, unstored: unstored,
				captures: captures, keeper: keeper, workspaces: workspaces, forker: &forker{planner, creator, remover}, pools: pools,
			},
			templates: &Templates{
				catalog: catalog, accounts: accounts, driver: cfg.Images, images: images, network: network,
				events: cfg.Events, pools: pools, builder: &builder{
					planner: planner, accounts: accounts, admission: admission, unstored: unstored, processes: processes, clients: clients,
					dirs: dirs, images: cfg.Images, runtime: runtime,
				},
			},
			images:   images,
			services: &ServiceService{finder: finder, states: states, locks: locks, supervisors: supervisors},
			policies: &PolicyService{
				finder: finder, states: states, wires: wires, network: network, egress: cfg.Network.Egress, traffic: cfg.Network.Traffic,
			},
		},
	}, nil
}

// ForgetMissing removes snapshots and images without files from the store, and the build results of templates whose layers are
// missing, so that they are built again on the next use. Call it only at the first start after the data directory was restored
// or copied, before Reconcile. At other times, files may be missing because a file system of the data directory is not mounted.
func (c *Core) ForgetMissing(ctx context.Context) error { return c.reconciler.missing.forget(ctx) }

// Reconcile makes store and host consistent after a start of the daemon: acknowledged sandboxes are recovered or marked
// as failed, incomplete changes are completed or rolled back, and processes and directories of unknown sandboxes are
// removed and returned. netns opens the network namespace of a running sandbox, for its wire. Reconcile must return
// before the core is used otherwise.
func (c *Core) Reconcile(ctx context.Context, netns func(caisson.ID) (*os.File, error)) ([]caisson.Garbage, error) {
	garbage, err := c.reconciler.reconcile(ctx, netns)
	if err != nil {
		return garbage, err
	}
	if err := c.reconciler.pools.refillAll(ctx); err != nil {
		return garbage, err
	}
	c.background.Start(c.expiry.run)
	c.background.Start(c.diskGuard.run)
	c.background.Start(c.admission.run)
	return garbage, nil
}

// Close stops the background work of the core. Sandboxes keep running.
func (c *Core) Close() error {
	c.background.Stop()
	c.deadlines.close()
	c.clients.close()
	c.background.Close()
	return nil
}

// Sandboxes returns the service that manages the lifecycle of sandboxes.
func (c *Core) Sandboxes() *Lifecycle { return c.api.lifecycle }

// Processes returns the service that manages the processes in sandboxes.
func (c *Core) Processes() *Processes { return c.api.processes }

// Files returns the service for the files in sandboxes.
func (c *Core) Files() *Files { return c.api.files }

// Snapshots returns the service for snapshots and forks.
func (c *Core) Snapshots() *Snapshots { return c.api.snapshots }

// Templates returns the service that manages templates.
func (c *Core) Templates() *Templates { return c.api.templates }

// ImageService returns the service that manages images.
func (c *Core) ImageService() *ImageService { return c.api.images }

// Policies returns the service that manages the policies of sandboxes.
func (c *Core) Policies() *PolicyService { return c.api.policies }

// Services returns the service that manages the services of sandboxes.
func (c *Core) Services() *ServiceService { return c.api.services }

// Node returns the name of this machine.
func (c *Core) Node() string { return c.node }

// RecordDecisions records the decisions of a sandbox's wire: a log message and an event for each. It does not block; decisions
// beyond the queue's limit are dropped, which is logged.
func (c *Core) RecordDecisions(g caisson.Guest, list []caisson.Decision) { c.decisions.add(g, list) }

// Assign sets the run that a sandbox of the caller's account serves; nil clears it. Returns a Conflict error while the
// sandbox serves another run or another attempt of the same run: the caller must call Assign with nil in between. When
// Assign returns, model calls through the sandbox's wire are charged to the run and use the run's model grant instead
// of the sandbox's. Calls already in progress are not affected. If Assign fails, the previous assignment is restored.
func (c *Core) Assign(ctx context.Context, id caisson.ID, a *caisson.Assignment) (*caisson.Sandbox, error) {
	return c.wires.assign(ctx, id, a)
}

// RecordRequests records a report that the ingress has passed requests to a sandbox. active reports whether any of the requests
// is still in progress; the sandbox then counts as in use for 10 seconds after the report.
func (c *Core) RecordRequests(id caisson.ID, active bool) {
	c.deadlines.activity.recordRequests(id, active)
}

// LayersInUse returns the directories of the layers that images and other objects of any account use.
func (c *Core) LayersInUse(ctx context.Context) (map[string]bool, error) {
	return c.api.images.layersInUse(ctx)
}

// ProgramsInUse returns the ids of the sets of programs that sandboxes and snapshots of any account depend on.
func (c *Core) ProgramsInUse(ctx context.Context) (map[string]bool, error) {
	return c.reconciler.garbage.programsInUse(ctx)
}

// CollectGarbage removes the processes and directories of this data directory that belong to no object of the store,
// and returns them.
func (c *Core) CollectGarbage(ctx context.Context) ([]caisson.Garbage, error) {
	return c.reconciler.garbage.collect(ctx)
}

// Idle reports whether no sandbox needs a running daemon: none is live, changes its state, or has a deadline or another
// time at which something is to be done with it.
func (c *Core) Idle(ctx context.Context) (bool, error) {
	boxes, err := c.states.list(ctx, caisson.AllAccounts())
	if err != nil {
		return false, err
	}
	for _, sb := range boxes {
		if sb.State.Live() || sb.State.Transient() || len(c.deadlines.activity.steps(sb)) > 0 {
			return false, nil
		}
	}
	return true, nil
}
