// Package sandboxes is the lifecycle core: it combines a runtime, images and wires into sandboxes that survive the daemon.
//
// The store holds what is meant to be, the host what is. Every change writes its intent (a state that ends in -ing) before
// it touches the host, and its outcome afterwards; [Core.Reconcile] compares the two after a restart and finishes or undoes
// what was under way.
//
// On disk a sandbox is one directory:
//
//	<dir>/sandboxes/<id>/
//	    etc/         topmost layer: host name, hosts, resolver, machine-id
//	    output       FIFO to which the command writes; the sandbox keeps it open
//	    log, log.old what came out of it, bounded
//	    mounts.json  host directories it was made with
//	    placeholder/ empty directory for the workspaces of forks
//	    depends.json what it was started on
//	    files.tar    changes to the root file system while it is stopped
//	    pause/       memory and files while it is paused
//	    runtime/     the runtime's own
//	<dir>/snapshots/<id>/   what a checkpoint wrote
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

// Images is what the core needs of the image driver. Image records are kept here, in the store.
type Images interface {
	Pull(ctx context.Context, req caisson.PullRequest, account string, progress func(caisson.Progress)) (*caisson.Image, error)
	Host(ctx context.Context) (*caisson.Image, error)
	// Freeze makes a layer of the changes that Checkpointer.SaveFiles wrote and returns its digest and directory.
	Freeze(ctx context.Context, account string, archive io.Reader) (digest, dir string, err error)
	// Hold keeps layers from being pruned until release.
	Hold() (release func())
	// Prune removes layers whose directory inUse denies.
	Prune(ctx context.Context, inUse func(dir string) bool) (freed caisson.Size, err error)
	// Canonical returns the form of a reference under which an image is stored.
	Canonical(ref string) (string, error)
}

// Runtime is what the core needs of a runtime.
type Runtime interface {
	caisson.Runtime
	caisson.Checkpointer
	caisson.Freezer
	// Written returns what the files that a sandbox has written to its root file system take on the host's disk. NotFound or Conflict
	// if it does not run.
	Written(id caisson.ID) (caisson.Size, error)
	// Remains returns ids of this data directory's sandboxes of which the host still has something that List does not show.
	Remains() ([]caisson.ID, error)
}

// Config is what a Core is made of. All fields but those that say so, Limits and Log are required.
type Config struct {
	Dir     string // the data directory
	Store   caisson.Store
	Events  caisson.Publisher
	Runtime Runtime
	Images  Images
	Wires   caisson.Wires // nil: sandboxes have a loopback device only
	Egress  Egress        // required with Wires
	Gateway Gateway       // nil: no sandbox can be granted models
	Traffic Traffic       // nil: what passes wires is not known
	// Workspaces makes the workspaces of sandboxes; nil: none can have one.
	Workspaces caisson.WorkspaceLayers
	// Volumes says which sandbox has which volume; nil: none can have one.
	Volumes caisson.VolumeHolds
	Node    string
	Build   string
	Limits  Limits
	Log     *slog.Logger
	// Available is how much memory of the host can be had; nil asks the kernel.
	Available func() (caisson.Size, error)
	// Free is how much can be written to the file system of Dir; nil asks the kernel.
	Free func() (caisson.Size, error)
}

// Limits bound what all sandboxes together may take of the host. Zero means no bound.
type Limits struct {
	MaxSandboxes  int          // that are live at once
	MemoryReserve caisson.Size // memory of the host that must remain available
	PIDsReserve   int          // processes of the host that must remain available
	// DiskReserve must remain available on the file system of the data directory: with less no sandbox starts, and with less than half of it
	// the sandbox that writes most is ended.
	DiskReserve caisson.Size
	// Budget is that of a sandbox whose grant of models has none.
	Budget caisson.Limits
}

// Core is the state that the services of this package share. Its exported methods are for the engine.
type Core struct {
	Config
	dirs
	locks     locks
	builds    keylock.Locks // held by whoever builds a template, by account and name
	host      *host
	guests    *guests
	watches   *watches
	deadlines *deadlines
	pool      *pool
	guard     *guard
	network   network
	spaces    workspaces
	decisions *decisions
	unclear   marks // the outcome of their last change could not be stored

	mu     sync.Mutex
	hidden map[caisson.ID]bool // in use, but not in the store; guarded by mu
	closed bool                // guarded by mu
	wg     sync.WaitGroup      // goroutines of this core; none is added once closed
	ctx    context.Context     // ends with Close; for work that outlives a request
	stop   context.CancelCauseFunc
}

// New returns a Core. It touches neither store nor host: call Reconcile before use.
func New(cfg Config) (*Core, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Available == nil {
		cfg.Available = meminfo.Available
	}
	if cfg.Free == nil {
		cfg.Free = func() (caisson.Size, error) { return free(cfg.Dir) }
	}
	for _, dir := range []string{"sandboxes", "snapshots"} {
		if err := os.MkdirAll(filepath.Join(cfg.Dir, dir), 0o700); err != nil {
			return nil, err
		}
	}
	c := &Core{Config: cfg, dirs: dirs{cfg.Dir}, hidden: map[caisson.ID]bool{}}
	c.host = &host{c: c, starting: map[caisson.ID]bool{}, promised: map[caisson.ID]caisson.Size{}}
	c.guests = &guests{c: c, open: map[caisson.ID]*guest{}}
	c.watches = &watches{c: c, ends: map[caisson.ID]func(){}}
	c.deadlines = &deadlines{c: c, retry: dueRetry, timers: map[caisson.ID]*time.Timer{}}
	c.pool = newPool(c)
	c.guard = &guard{c: c}
	// The core's own lifetime, not a request's: it carries no caller.
	c.ctx, c.stop = context.WithCancelCause(context.Background())
	c.network, c.spaces = network{c}, workspaces{c}
	c.decisions = &decisions{c: c}
	return c, nil
}

var errClosing = errors.New("the daemon is ending")

// Close ends everything that runs in this process. Sandboxes run on.
func (c *Core) Close() error {
	c.stop(errClosing)
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.deadlines.close()
	c.guests.close()
	c.wg.Wait()
	return nil
}

// do runs f in a goroutine of the core's, and reports false if the core is closed.
func (c *Core) do(f func(ctx context.Context)) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.wg.Go(func() { f(c.ctx) })
	return true
}

// hide keeps what is in use but in no table (a stand-in, the sandbox of a set-up, the capture of a fork) from being taken for
// garbage, until show.
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

// marks are sandboxes of which something is to be remembered until it is seen to.
type marks struct {
	mu  sync.Mutex
	ids map[caisson.ID]bool // guarded by mu
}

func (m *marks) set(id caisson.ID, to bool) {
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

func (m *marks) has(id caisson.ID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ids[id]
}

func (m *marks) list() []caisson.ID {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Keys(m.ids))
}

// scope is what the caller in ctx may touch.
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

// use returns a sandbox of the caller's account if its state allows v.
func (c *Core) use(ctx context.Context, ref string, v caisson.Verb) (*caisson.Sandbox, error) {
	sb, err := c.find(ctx, ref)
	if err != nil {
		return nil, err
	}
	return sb, c.allow(sb, v)
}

// allow reports whether v may be done to sb as it is. A sandbox that another build started speaks that build's protocol: it
// may be stopped and removed, and started again by this one.
func (c *Core) allow(sb *caisson.Sandbox, v caisson.Verb) error {
	if err := sb.State.Allow(v); err != nil {
		return err
	}
	if wired(sb) && sb.Build != c.Build && v != caisson.VerbStop && v != caisson.VerbRemove {
		return caisson.Errorf(caisson.Conflict, "cannot %s a sandbox that another build of caisson started; stop and start it first", v)
	}
	return nil
}

// errUnchanged ends an update that finds nothing to do.
var errUnchanged = errors.New("unchanged")

// event publishes what happened to a sandbox.
func (c *Core) event(ctx context.Context, sb *caisson.Sandbox, kind string, data map[string]string) {
	c.Events.Publish(ctx, sb.Account, kind, string(sb.ID), data)
}

// setState stores a state, and what else change sets.
func (c *Core) setState(ctx context.Context, id caisson.ID, to caisson.State, change func(*caisson.Sandbox) error) (*caisson.Sandbox, error) {
	return c.Store.Sandboxes().Update(ctx, caisson.Everyone(), string(id), func(s *caisson.Sandbox) error {
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
			s.PauseAt = nil // only what runs can be paused
		}
		return nil
	})
}

func now() time.Time { return time.Now().UTC() }
