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
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
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
	locks       locks
	builds      keylock.Locks // held while a template is built; the key is account/name
	processes   *processes
	fileClients *fileClients
	watches     *watches
	deadlines   *deadlines
	pool        *pool
	diskGuard   *diskGuard
	network     network
	workspaces  workspaces
	decisions   *decisions
	unresolved  idSet // sandboxes whose last change has an outcome that could not be stored, or that were not reconciled

	mu     sync.Mutex
	hidden map[caisson.ID]bool     // ids that are in use, but not in the store; guarded by mu
	closed bool                    // guarded by mu
	wg     sync.WaitGroup          // goroutines of this core; none is added once closed
	ctx    context.Context         // cancelled by Close; for work that outlives a request
	stop   context.CancelCauseFunc // cancels ctx
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
	c := &Core{Config: cfg, dirs: dirs{cfg.Dir}, hidden: map[caisson.ID]bool{}}
	c.processes = &processes{c: c, starting: map[caisson.ID]bool{}, reservedMemory: map[caisson.ID]caisson.Size{}}
	c.fileClients = &fileClients{c: c, open: map[caisson.ID]*fileClient{}}
	c.watches = &watches{c: c, stops: map[caisson.ID]func(){}}
	c.deadlines = &deadlines{c: c, retry: deadlineRetry, timers: map[caisson.ID]*time.Timer{}}
	c.pool = newPool(c)
	c.diskGuard = &diskGuard{c: c}
	// This context belongs to the core, not to a request: it carries no caller.
	c.ctx, c.stop = context.WithCancelCause(context.Background())
	c.network, c.workspaces = network{c}, workspaces{c}
	c.decisions = &decisions{c: c}
	return c, nil
}

// errClosing is the cause of the cancellation of Core.ctx.
var errClosing = errors.New("the daemon is shutting down")

// Close stops the background work of the core. Sandboxes keep running.
func (c *Core) Close() error {
	c.stop(errClosing)
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.deadlines.close()
	c.fileClients.close()
	c.wg.Wait()
	return nil
}

// goBackground runs f in a goroutine that Close waits for, and returns false if the core is closed.
func (c *Core) goBackground(f func(ctx context.Context)) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.wg.Go(func() { f(c.ctx) })
	return true
}

// hide protects an id that is in use but not in the store (of a stand-in, the sandbox of a template build, or the
// capture of a fork) from garbage collection until show is called.
func (c *Core) hide(id caisson.ID) (show func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hidden[id] = true
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.hidden, id)
	}
}

// idSet is a set of sandbox ids that is safe for concurrent use.
type idSet struct {
	mu  sync.Mutex
	ids map[caisson.ID]bool // guarded by mu
}

// set adds id to the set if to is true, else removes it.
func (m *idSet) set(id caisson.ID, to bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ids == nil {
		m.ids = map[caisson.ID]bool{}
	}
	delete(m.ids, id)
	if to {
		m.ids[id] = true
	}
}

// has reports whether id is in the set.
func (m *idSet) has(id caisson.ID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ids[id]
}

// list returns the ids in the set, in no particular order.
func (m *idSet) list() []caisson.ID {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Keys(m.ids))
}

// scope returns the scope that the caller in ctx may access, and the caller.
func scope(ctx context.Context) (caisson.Scope, caisson.Caller, error) {
	caller, err := caisson.CallerOf(ctx)
	return caisson.In(caller.Account), caller, err
}

// find returns a sandbox of the caller's account.
func (c *Core) find(ctx context.Context, ref string) (*caisson.Sandbox, error) {
	in, _, err := scope(ctx)
	if err != nil {
		return nil, err
	}
	return c.Store.Sandboxes().Get(ctx, in, ref)
}

// findFor returns a sandbox of the caller's account if its state allows v.
func (c *Core) findFor(ctx context.Context, ref string, v caisson.Verb) (*caisson.Sandbox, error) {
	sb, err := c.find(ctx, ref)
	if err != nil {
		return nil, err
	}
	return sb, c.allow(sb, v)
}

// allow returns an error if v is not allowed in the state of sb. A sandbox that another build started uses that build's
// protocol: it can only be stopped or removed, and started again by this build.
func (c *Core) allow(sb *caisson.Sandbox, v caisson.Verb) error {
	if err := sb.State.Allow(v); err != nil {
		return err
	}
	if wired(sb) && sb.Build != c.Build && v != caisson.VerbStop && v != caisson.VerbRemove {
		return caisson.Errorf(caisson.Conflict, "cannot %s a sandbox that another build of caisson started; stop and start it first", v)
	}
	return nil
}

// errUnchanged is returned by the function of an update to cancel the update, because there is nothing to change.
var errUnchanged = errors.New("unchanged")

// event publishes an event about a sandbox.
func (c *Core) event(ctx context.Context, sb *caisson.Sandbox, kind string, data map[string]string) {
	c.Events.Publish(ctx, sb.Account, kind, string(sb.ID), data)
}

// setState stores a state, and the fields that change sets.
func (c *Core) setState(ctx context.Context, id caisson.ID, to caisson.State, change func(*caisson.Sandbox) error) (*caisson.Sandbox, error) {
	return c.Store.Sandboxes().Update(ctx, caisson.AllAccounts(), string(id), func(s *caisson.Sandbox) error {
		if change != nil {
			if err := change(s); err != nil {
				return err
			}
		}
		if s.State != to {
			s.ChangedAt = now()
		}
		s.State = to
		if !to.Live() {
			s.PauseAt = nil // only live sandboxes can be paused
		}
		return nil
	})
}

// now returns the current time in UTC, as it is stored.
func now() time.Time { return time.Now().UTC() }
