// Package workspaces is the core of workspaces: host directories that a sandbox sees as they are and changes only for itself,
// until somebody applies the changes.
//
// It lays the layers of a new sandbox's workspace, says what was changed in them, and applies what was reviewed, each time with a
// receipt. Everything that reads or writes trees is done by package gate in jobs without privileges; here are the objects, the
// directories, the order of things, and what is left to do after a crash.
//
// The store holds what is meant to be; it has a workspace when all of its directory is there. On disk a workspace is one directory, which goes with it:
//
//	<dir>/workspaces/<id>/
//	    layers/upper/        what the sandbox has written, in overlayfs's format; layers/work is overlayfs's own
//	    mask/                a layer of whiteouts for what is hidden
//	    manifest             what the host's directory was like when the sandbox was made
//	    base/                small files of it, as they were then
//	    copy/                all of it, of kind copy and while its sandbox is there: what the sandbox sees instead
//	    frozen/<rv>/         a copy of what the sandbox had written at a review; <rv>.json says what was found in it
//	    saved/<rc>/          what a sync has replaced, and its journal; <rc>.json says what it is to do until the store knows
//	                         what has become of it, and is <rc>.done afterwards
//	    dropped              a change on its way out of the layer
//	    declined.json        paths that were undone: they are not applied automatically again
//	    removals.json        of earlier versions, which counted removals for each workspace
//	    show.json            patterns of names that are not hidden after all
//	    seen.json            changes of which there is an event: path to hash
//	    writers.json         which process was the last to change what, as the sandbox last said
//	    suspects.json        files that may contain secrets, as their content says
//	    refused.json         what the last command that failed has said of which changes
//
// All of it is root's and 0700, except what a job has to write: layers and mask are the guest's root's, frozen and base as well,
// and copy and what is in saved belong to the owner of the host's directory.
package workspaces

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/gate/baseline"
	"github.com/caisson-dev/caisson/gate/check"
	"github.com/caisson-dev/caisson/internal/keylock"
)

// Config is what a Core is made of. All fields but Hide, Rules, Commands, Keep, Every, SearchAfter and Log are required.
type Config struct {
	Dir    string // the data directory
	Store  caisson.Store
	Tool   Tool
	Events caisson.Publisher
	// Running reports whether a sandbox may be using its layers at present. NotFound if there is no such sandbox.
	Running func(ctx context.Context, sandbox caisson.ID) (bool, error)
	// Hide are patterns of names that sandboxes do not see; nil means [baseline.DefaultHidden].
	Hide  []string
	Rules check.Rules // of what may be applied; zero means the gate's defaults
	// Commands are run, in this order, on what is to be applied, after all other checks.
	Commands []Command
	Keep     time.Duration // for which changes wait after the sandbox has gone; 0 means 7 days
	Every    time.Duration // between automatic applies; 0 means 30 s
	// SearchAfter is for how long the files of a new workspace are not searched for secrets yet, because its sandbox is being started
	// then; 0 means 1 s.
	SearchAfter time.Duration
	Log         *slog.Logger
}

// How long things are kept, and how many.
const (
	keepChanges = 7 * 24 * time.Hour
	keepSettled = 24 * time.Hour
	keepReviews = 24 * time.Hour
	maxReviews  = 8
	applyEvery  = 30 * time.Second
	searchAfter = time.Second
	housekeep   = 10 * time.Minute
	// leaveTime bounds what is done for a workspace while somebody waits for its sandbox to go.
	leaveTime = 2 * time.Minute
)

// Core is the state that the services of this package share. Its exported methods are for the engine.
type Core struct {
	Config
	sandboxes Sandboxes // set by Attach
	data      *os.File  // Dir
	reviews   reviews
	syncs     syncs
	laying    laying
	searching searching
	refusals  refusals
	boxing    boxing
	removals  *removalCounts
	locks     keylock.Locks // held by whoever looks at a workspace or changes it, by id
	writing   keylock.Locks // held by whoever writes writers.json, by id of the workspace; after locks
	still     keylock.Locks // held by whoever takes changes out of a layer, by id of the workspace; after locks
	jobs      chan struct{} // a token for each that may read trees at the same time
	trials    *trials

	mu       sync.Mutex
	closed   bool                              // guarded by mu
	baseless map[caisson.ID]*caisson.Workspace // whose files are not kept yet; guarded by mu
	wg       sync.WaitGroup                    // goroutines of this core; none is added once closed
	ctx      context.Context
	stop     context.CancelCauseFunc
}

// New returns a Core, or an Invalid error that says what is wrong with cfg. Call Reconcile before use.
func New(cfg Config) (*Core, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Hide == nil {
		cfg.Hide = baseline.DefaultHidden()
	}
	if _, err := baseline.NewMask(cfg.Hide, nil); err != nil {
		return nil, err
	}
	if err := ValidateCommands(cfg.Commands); err != nil {
		return nil, err
	}
	if cfg.Keep <= 0 {
		cfg.Keep = keepChanges
	}
	if cfg.Every <= 0 {
		cfg.Every = applyEvery
	}
	if cfg.SearchAfter <= 0 {
		cfg.SearchAfter = searchAfter
	}
	data, err := os.Open(cfg.Dir)
	if err != nil {
		return nil, err
	}
	for _, dir := range []string{topDir, removalDir} {
		if err := os.MkdirAll(filepath.Join(cfg.Dir, dir), 0o700); err != nil {
			data.Close()
			return nil, err
		}
	}
	c := &Core{Config: cfg, data: data, jobs: make(chan struct{}, 4), trials: newTrials(), baseless: map[caisson.ID]*caisson.Workspace{}}
	c.reviews, c.syncs, c.laying, c.refusals, c.boxing, c.searching = reviews{c}, syncs{c}, laying{c}, refusals{c}, boxing{c}, searching{c}
	c.removals = &removalCounts{dir: filepath.Join(cfg.Dir, removalDir), workspaces: filepath.Join(cfg.Dir, topDir)}
	c.ctx, c.stop = context.WithCancelCause(context.Background())
	return c, nil
}

// Attach gives the core the lifecycle of sandboxes, whose core needs the layers of this one. Call it once, before anything else.
func (c *Core) Attach(s Sandboxes) { c.sandboxes = s }

var errClosing = errors.New("the daemon is ending")

// Close ends what runs in the background. Workspaces stay as they are.
func (c *Core) Close() error {
	c.stop(errClosing)
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.wg.Wait()
	return c.data.Close()
}

// do runs f in a goroutine of the core's. If the core is closed it does not, and reports false.
func (c *Core) do(f func(ctx context.Context)) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.wg.Go(func() { f(c.ctx) })
	}
	return !c.closed
}

// lock takes a workspace and a place among those who read trees.
func (c *Core) lock(ctx context.Context, id caisson.ID) (release func(), err error) {
	unlock, err := c.locks.Acquire(ctx, string(id))
	if err != nil {
		return nil, err
	}
	if err := c.place(ctx); err != nil {
		unlock()
		return nil, err
	}
	c.laying.keepBaseNow(c.ctx, id)
	return func() { <-c.jobs; unlock() }, nil
}

// place takes a place among those who read trees. Who has it gives it back by taking a token out of jobs.
func (c *Core) place(ctx context.Context) error {
	select {
	case c.jobs <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Layers returns how the lifecycle of sandboxes uses workspaces.
func (c *Core) Layers() *Layers { return &Layers{c} }

// Workspaces returns the gate as its callers see it.
func (c *Core) Workspaces() *Gate { return &Gate{c} }

// event publishes what happened to a workspace.
func (c *Core) event(ctx context.Context, w *caisson.Workspace, kind string, data map[string]string) {
	c.Events.PublishAll(ctx, []*caisson.Event{newEvent(w, kind, data)})
}

func newEvent(w *caisson.Workspace, kind string, data map[string]string) *caisson.Event {
	if data == nil {
		data = map[string]string{}
	}
	data["sandbox"] = string(w.Sandbox)
	if w.Run != "" {
		data["run"] = string(w.Run)
	}
	return &caisson.Event{Account: w.Account, Type: kind, Subject: string(w.ID), Data: data}
}

func now() time.Time { return time.Now().UTC() }
