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
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/background"
	"github.com/caisson-dev/caisson/internal/keylock"
	"github.com/caisson-dev/caisson/internal/meminfo"
)

// Images is the interface of the image driver that the core requires. Image records are kept in the store.
type Images interface {
	// Pull downloads or imports an image for an account. It calls progress during the download.
	Pull(ctx context.Context, req caisson.PullRequest, account string, progress func(caisson.Progress)) (*caisson.Image, error)
	// Host returns the image of the host's own programs.
	Host(ctx context.Context) (*caisson.Image, error)
	// Freeze makes a layer of the changes that Checkpointer.SaveFiles wrote, and returns its digest and directory.
	Freeze(ctx context.Context, account string, archive io.Reader) (digest, dir string, err error)
	// Hold protects layers from being pruned until release is called.
	Hold() (release func())
	// Prune removes the layers for whose directory inUse returns false, and returns the freed space in bytes.
	Prune(ctx context.Context, inUse func(dir string) bool) (freed caisson.Size, err error)
	// Canonical returns the form of a reference under which an image is stored.
	Canonical(ref string) (string, error)
}

// Runtime is the interface of the runtime that the core requires.
type Runtime interface {
	caisson.Runtime
	caisson.Checkpointer
	caisson.Freezer
	// Written returns the disk space in bytes of the files that a sandbox has written to its root file system. Returns
	// NotFound or Conflict if the sandbox does not run.
	Written(id caisson.ID) (caisson.Size, error)
	// Remains returns the ids of sandboxes of this data directory that still have resources on the host, but are not in
	// List.
	Remains() ([]caisson.ID, error)
}

// Config configures a Core. All fields are required except Limits, Log and those whose comments allow nil.
type Config struct {
	Dir     string // the data directory
	Store   caisson.Store
	Events  caisson.Publisher
	Runtime Runtime
	Images  Images
	Wires   caisson.Wires // nil: sandboxes have a loopback device only
	Egress  Egress        // required with Wires
	Gateway Gateway       // nil: no sandbox can be granted models
	Traffic Traffic       // nil: no traffic statistics
	// Workspaces creates the workspaces of sandboxes; nil: no sandbox can have one.
	Workspaces caisson.WorkspaceLayers
	// Volumes attaches volumes to sandboxes; nil: no sandbox can have one.
	Volumes caisson.VolumeAttachments
	Node    string // name of this machine, recorded in each sandbox
	Build   string // identifies this build of Caisson, recorded in each sandbox and snapshot
	Limits  Limits
	Log     *slog.Logger
	// Available returns the available memory of the host in bytes; nil: read from the kernel.
	Available func() (caisson.Size, error)
	// Free returns the free space in bytes on the file system of Dir; nil: read from the kernel.
	Free func() (caisson.Size, error)
}

// Limits bounds the host resources of all sandboxes together. 0 means no limit.
type Limits struct {
	MaxSandboxes  int          `yaml:"maxSandboxes" json:"maxSandboxes"`   // maximum number of live sandboxes
	MemoryReserve caisson.Size `yaml:"memoryReserve" json:"memoryReserve"` // memory of the host that must remain available
	// DiskReserve is the space in bytes that must remain free on the file system of the data directory: with less, no
	// sandbox starts, and with less than half of it, the sandbox that writes most is stopped.
	DiskReserve caisson.Size   `yaml:"diskReserve" json:"diskReserve"`
	PIDsReserve int            `yaml:"pidsReserve" json:"pidsReserve"` // processes of the host that must remain available
	Budget      caisson.Limits `yaml:"-" json:"-"`                     // default budget, for a sandbox whose model grant has none
}

// DefaultLimits returns the default limits.
func DefaultLimits() Limits {
	return Limits{MaxSandboxes: 1000, MemoryReserve: 512 << 20, DiskReserve: 1 << 30, PIDsReserve: 1024}
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
	check(l.PIDsReserve >= 0, "pidsReserve", "%d is negative", l.PIDsReserve)
	return errors.Join(errs...)
}

// Core is the state that the services of this package share. Its exported methods are for the engine.
type Core struct {
	Config
	dirs
	locks       *locks
	builds      keylock.Locks // held while a template is built; the key is account/name
	processes   *processes
	fileClients *fileClients
	watches     *watches
	deadlines   *deadlines
	pool        *pool
	diskGuard   *diskGuard
	network     network
	admission   *admission
	catalog     catalog
	images      *ImageService
	logs        *logs
	writers     *writers
	policies    *PolicyService
	execs       *Processes
	assignments *assignments
	workspaces  *workspaces
	freezer     *freezer
	specs       *specs
	files       *Files
	decisions   *decisions
	unresolved  idSet // sandboxes whose last change has an outcome that could not be stored, or that were not reconciled
	finder      finder
	states      states
	background  *background.Group
	hidden      *idSet // ids that are in use but not in the store: of stand-ins, template builds and captures of forks
}

// New returns a Core. It accesses neither the store nor the runtime; call Reconcile before use.
func New(cfg Config) (*Core, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Available == nil {
		cfg.Available = meminfo.Available
	}
	if cfg.Free == nil {
		cfg.Free = func() (caisson.Size, error) { return freeSpace(cfg.Dir) }
	}
	for _, dir := range []string{"sandboxes", "snapshots"} {
		if err := os.MkdirAll(filepath.Join(cfg.Dir, dir), 0o700); err != nil {
			return nil, err
		}
	}
	c := &Core{Config: cfg, dirs: dirs{cfg.Dir}, hidden: &idSet{}, background: background.New()}
	c.finder, c.states = finder{cfg.Store.Sandboxes(), cfg.Build}, states{cfg.Store.Sandboxes(), cfg.Events}
	c.deadlines = &deadlines{c: c, retry: deadlineRetry, timers: map[caisson.ID]*time.Timer{}}
	c.pool = newPool(c)
	c.locks = &locks{}
	c.network = network{wires: cfg.Wires, egress: cfg.Egress, gateway: cfg.Gateway, ledger: cfg.Store.Ledger(), budget: cfg.Limits.Budget}
	memory, _ := cfg.Runtime.(caisson.MemoryWaiter)
	c.admission = &admission{
		limits: cfg.Limits, runtime: cfg.Runtime, memory: memory, available: cfg.Available, free: cfg.Free, background: c.background,
		log: cfg.Log, starting: map[caisson.ID]bool{}, reservedMemory: map[caisson.ID]caisson.Size{},
	}
	c.catalog = catalog{cfg.Store.Templates()}
	c.images = &ImageService{
		driver: cfg.Images, images: cfg.Store.Images(), accounts: cfg.Store.Accounts(), catalog: c.catalog, events: cfg.Events,
		users: rootfsUsers{cfg.Store.Sandboxes(), cfg.Store.Snapshots(), cfg.Store.Templates()},
	}
	c.logs = &logs{dirs: c.dirs, states: c.states, background: c.background, log: cfg.Log}
	recorder, _ := cfg.Runtime.(caisson.WriterRecorder)
	c.writers = &writers{states: c.states, runtime: recorder, dirs: c.dirs, log: cfg.Log}
	c.workspaces = &workspaces{
		layers: cfg.Workspaces, volumes: cfg.Volumes, sandboxes: cfg.Store.Sandboxes(), accounts: cfg.Store.Accounts(), states: c.states,
		dirs: c.dirs,
	}
	c.freezer = &freezer{runtime: cfg.Runtime, states: c.states}
	c.fileClients = &fileClients{runtime: cfg.Runtime, background: c.background, open: map[caisson.ID]*fileClient{}}
	c.specs = &specs{
		accounts: cfg.Store.Accounts(), images: cfg.Images, runtime: cfg.Runtime, workspaces: c.workspaces, dirs: c.dirs, build: cfg.Build,
	}
	randomness, _ := cfg.Runtime.(caisson.RandomnessReporter)
	c.processes = &processes{
		runtime: cfg.Runtime, randomness: randomness, specs: c.specs, network: c.network, writers: c.writers, clients: c.fileClients,
		leftovers: &idSet{},
	}
	ends, _ := cfg.Runtime.(caisson.EndReporter)
	c.watches = &watches{
		runtime: cfg.Runtime, ends: ends, sandboxes: cfg.Store.Sandboxes(), states: c.states, locks: c.locks, processes: c.processes,
		logs: c.logs, background: c.background, log: cfg.Log, stops: map[caisson.ID]func(){},
	}
	c.diskGuard = &diskGuard{
		runtime: cfg.Runtime, states: c.states, workspaces: c.workspaces, locks: c.locks, watches: c.watches, free: cfg.Free,
		reserve: cfg.Limits.DiskReserve, log: cfg.Log,
	}
	c.files = &Files{finder: c.finder, access: &fileAccess{
		finder: c.finder, locks: c.locks, clients: c.fileClients, admission: c.admission, hidden: c.hidden, specs: c.specs,
		runtime: cfg.Runtime, dirs: c.dirs, log: cfg.Log,
	}}
	c.policies = &PolicyService{
		finder: c.finder, states: c.states, sandboxes: cfg.Store.Sandboxes(), locks: c.locks, network: c.network, egress: cfg.Egress,
		traffic: cfg.Traffic,
	}
	c.execs = &Processes{finder: c.finder, states: c.states, runtime: cfg.Runtime, traffic: cfg.Traffic, logs: c.logs}
	c.assignments = &assignments{finder: c.finder, sandboxes: cfg.Store.Sandboxes(), locks: c.locks, network: c.network, log: cfg.Log}
	c.decisions = &decisions{events: cfg.Events, background: c.background, log: cfg.Log}
	return c, nil
}

// Close stops the background work of the core. Sandboxes keep running.
func (c *Core) Close() error {
	c.background.Stop()
	c.deadlines.close()
	c.fileClients.close()
	c.background.Close()
	return nil
}

// RecordDecisions records the decisions of a sandbox's wire: a log message and an event for each. It does not block; decisions
// beyond the queue's limit are dropped, which is logged.
func (c *Core) RecordDecisions(g caisson.Guest, list []caisson.Decision) { c.decisions.add(g, list) }

// Assign sets the run that a sandbox of the caller's account serves; nil clears it. Returns a Conflict error while the
// sandbox serves another run or another attempt of the same run: the caller must call Assign with nil in between. When
// Assign returns, model calls through the sandbox's wire are charged to the run and use the run's model grant instead
// of the sandbox's. Calls already in progress are not affected. If Assign fails, the previous assignment is restored.
func (c *Core) Assign(ctx context.Context, id caisson.ID, a *caisson.Assignment) (*caisson.Sandbox, error) {
	return c.assignments.assign(ctx, id, a)
}

// LayersInUse returns the directories of the layers that images and other objects of any account use.
func (c *Core) LayersInUse(ctx context.Context) (map[string]bool, error) {
	return c.images.layersInUse(ctx)
}
