// Package runs is the core that gives tasks to agents: it queues them, gives each a sandbox and a budget, hands the prompt over, records what
// the agent says, and leaves one result behind.
//
// The store holds what is meant to be: a run is there before anything is done for it, and its result before anything of it is
// removed. What an agent says is read inside its sandbox (package agent/drive); here only its small language arrives (agent/task).
//
// On disk a run is one directory, which goes with it:
//
//	<dir>/runs/<id>/
//	    workspace.tar  what is put into the workspace of each attempt, until one succeeds
//	    <attempt>/     stdout and stderr of the agent's program, bounded
package runs

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/agent/task"
	"github.com/caisson-dev/caisson/internal/keylock"
)

// Sandboxes is what runs need of the lifecycle core.
type Sandboxes interface {
	caisson.Sandboxes
	caisson.Processes
	caisson.Files
	caisson.Snapshots
	caisson.Templates
	// Assign makes a sandbox serve a run, or none: calls of models that begin afterwards are charged to it, or refused. Conflict while it
	// serves another.
	Assign(ctx context.Context, id caisson.ID, a *caisson.Assignment) (*caisson.Sandbox, error)
	// SetPolicy is that of [caisson.Policies].
	SetPolicy(ctx context.Context, ref string, p caisson.Policy) (*caisson.Policy, error)
}

// Catalog is where agents are kept. Its methods are those of [caisson.Agents].
type Catalog interface {
	ListAgents(ctx context.Context) ([]*caisson.Agent, error)
	GetAgent(ctx context.Context, id string) (*caisson.Agent, error)
	PutAgent(ctx context.Context, a caisson.Agent) (*caisson.Agent, error)
	RemoveAgent(ctx context.Context, id string) error
}

// A Recipe is what is known of an agent's program beyond its entry in the catalog. Its methods are pure and safe for concurrent use.
type Recipe interface {
	// Complete returns the entry with what it leaves to code: set-up, service, files.
	Complete(a caisson.Agent) (caisson.Agent, error)
	// Files returns what has to be in the sandbox before the service starts, so that it can call these models.
	Files(a *caisson.Agent, models []caisson.Model) ([]caisson.SeedFile, error)
	// Turn completes the task of one turn.
	Turn(t *task.Task, turn Turn) error
	// Settle returns programs that are run, one after another, before a warm snapshot is taken, to make it small.
	Settle(a *caisson.Agent) [][]string
	// Check says what the agent lacks, given the template that it starts from.
	Check(ctx context.Context, a *caisson.Agent, in Inspection) ([]caisson.AgentCheck, error)
}

// A Turn is what a recipe has to know of a turn.
type Turn struct {
	Agent  *caisson.Agent
	Run    *caisson.Run
	Models []caisson.Model // that may be called, the one that holds first
	Fork   bool            // the sandbox has just been forked from the warm snapshot
	First  bool            // nobody has given the sandbox a prompt yet
	Warmup bool
}

// An Inspection looks into a sandbox of an agent's template.
type Inspection interface {
	// Tree returns a tar archive of the tree at a path, as [caisson.Files] has it.
	Tree(ctx context.Context, path string) ([]byte, error)
	// Has reports whether a program is on the PATH.
	Has(ctx context.Context, program string) (bool, error)
}

// Limits bound what all runs together may take, and say how long sessions are kept how. Zero fields mean the default of [DefaultLimits].
type Limits struct {
	Concurrent   int           // attempts under way on this host, those within others not counted
	PerAccount   int           // attempts of one account under way
	Waiting      int           // runs of one account that are not ended, those within others not counted
	SessionIdle  time.Duration // after which a session's memory goes to disk
	SessionFiles time.Duration // after which only its files are kept
	Keep         time.Duration // for which a run that has ended is kept
	Grace        time.Duration // that an agent has to end by itself once it was asked to
	Workspace    caisson.Size  // bytes that may be copied into a workspace
	Deliver      time.Duration // for which a run's result waits until its commits are delivered
	Settle       time.Duration // for which the end of a run waits until its last calls of models are in the ledger
}

// DefaultLimits returns the limits that hold if nothing else is said.
func DefaultLimits() Limits {
	return Limits{
		Concurrent: 16, PerAccount: 8, Waiting: 200, SessionIdle: 10 * time.Minute, SessionFiles: 24 * time.Hour,
		Keep: 30 * 24 * time.Hour, Grace: 5 * time.Second, Workspace: 4 << 30, Deliver: time.Minute,
		Settle: 5 * time.Second,
	}
}

// Config is what a Core is made of. All fields but Limits, Recipes, Budget, UnderWay and Log are required.
type Config struct {
	Dir       *os.Root // the data directory
	Store     caisson.Store
	Sandboxes Sandboxes
	Catalog   Catalog
	Models    caisson.Models
	// Workspaces says what has changed in directories that runs were given; nil if directories can only be copied.
	Workspaces Workspaces
	Masker     Masker
	// Relay lets runs into repositories; nil if there are none.
	Relay caisson.Relay
	// Calls returns a page of calls in the ledger, those that were answered a moment ago included.
	Calls func(ctx context.Context, q caisson.UsageQuery, after caisson.ID, limit int) ([]caisson.Call, bool, error)
	// UnderWay returns how many calls of a run have begun and are not in the ledger, and the most that they can cost. nil: none ever has.
	UnderWay func(ctx context.Context, account, run string) (calls int64, most caisson.USD, err error)
	// Forget makes the model gateway ask for these budgets anew.
	Forget  func(ctx context.Context, budgets ...string) error
	Events  caisson.Publisher
	Recipes map[string]Recipe // by driver
	Budget  caisson.Limits    // of a run whose agent has no limit of cost
	Limits  Limits
	Build   string // of Caisson: warm snapshots of others are of no use
	Version string
	Log     *slog.Logger
}

// Core is the state that the services of this package share. All methods of all of them are safe for concurrent use.
type Core struct {
	Config
	runs     runs
	guests   guests
	entrance entrance
	sessions sessions
	restart  restart
	making   making
	hands    hands
	budgets  budgets

	queue   *queue
	streams *streams
	warmth  *warmth

	mu      sync.Mutex
	live    map[caisson.ID]*live         // attempts that wait or are under way; guarded by mu
	leaving map[caisson.ID]chan struct{} // of attempts that have ended; closed when nothing is left of them; guarded by mu

	uploads map[string]int // archives of accounts that are being received; guarded by mu

	retries keylock.Locks // held by whoever begins another attempt, by run
	resting keylock.Locks // held by whoever takes up a session or puts it to rest, by session

	ctx  context.Context // ends with Close
	stop context.CancelCauseFunc
	wg   sync.WaitGroup // attempts and what they leave to be done; none is added once ctx has ended
}

// live is an attempt that waits or is under way.
type live struct {
	cancel context.CancelCauseFunc
	tell   func(...caisson.RunEvent) // adds to the run's events; nil before it has begun; guarded by the core's mu
	done   chan struct{}             // closed when the attempt has ended, its result is stored, and its place is free
}

// The services, and the parts of the core that they are made of. Each has the core, and through it the others.
type (
	runs     struct{ *Core } // what callers do with runs and sessions; implements [caisson.Runs]
	guests   struct{ *Core } // what agents do with runs; implements [caisson.GuestRuns]
	entrance struct{ *Core } // from a request to a place in the queue
	sessions struct{ *Core } // conversations, and what is kept of them
	restart  struct{ *Core } // what an earlier daemon has left
	making   struct{ *Core } // templates, files and services of agents
	hands    struct{ *Core } // what is done inside sandboxes
	budgets  struct{ *Core } // what attempts may cost
)

var (
	_ caisson.Runs      = runs{}
	_ caisson.GuestRuns = guests{}
)

// Runs returns the execution of tasks by agents.
func (c *Core) Runs() caisson.Runs { return c.runs }

// Guests returns what agents may do with runs of others.
func (c *Core) Guests() caisson.GuestRuns { return c.guests }

// Reconcile brings runs, sessions and sandboxes into agreement after a restart. It must return before anything else is asked of the core.
func (c *Core) Reconcile(ctx context.Context) error { return c.restart.reconcile(ctx) }

// errClosing is why work stops when the daemon ends. What was under way is found by the next one.
var errClosing = errors.New("the daemon is ending")

// New returns a Core. Nothing runs before Reconcile.
func New(cfg Config) *Core {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	d := DefaultLimits()
	for _, l := range []struct{ have, or *int }{
		{&cfg.Limits.Concurrent, &d.Concurrent}, {&cfg.Limits.PerAccount, &d.PerAccount}, {&cfg.Limits.Waiting, &d.Waiting},
	} {
		if *l.have == 0 {
			*l.have = *l.or
		}
	}
	for _, l := range []struct{ have, or *time.Duration }{
		{&cfg.Limits.SessionIdle, &d.SessionIdle}, {&cfg.Limits.SessionFiles, &d.SessionFiles}, {&cfg.Limits.Keep, &d.Keep},
		{&cfg.Limits.Grace, &d.Grace}, {&cfg.Limits.Deliver, &d.Deliver}, {&cfg.Limits.Settle, &d.Settle},
	} {
		if *l.have == 0 {
			*l.have = *l.or
		}
	}
	if cfg.Limits.Workspace == 0 {
		cfg.Limits.Workspace = d.Workspace
	}
	c := &Core{Config: cfg, live: map[caisson.ID]*live{}, uploads: map[string]int{}, leaving: map[caisson.ID]chan struct{}{}}
	// The core's own lifetime, not a request's: it carries no caller.
	c.ctx, c.stop = context.WithCancelCause(context.Background())
	c.queue = newQueue(cfg.Limits.Concurrent, cfg.Limits.PerAccount)
	c.streams = newStreams(cfg.Store.Runs(), c.ctx.Done())
	c.warmth = newWarmth(c)
	c.runs, c.guests, c.entrance, c.sessions = runs{c}, guests{c}, entrance{c}, sessions{c}
	c.restart, c.making, c.hands, c.budgets = restart{c}, making{c}, hands{c}, budgets{c}
	return c
}

// Close ends what runs in this process and waits for it. Sandboxes run on, and the next daemon's Reconcile finds what was under way.
func (c *Core) Close() error {
	c.stop(errClosing)
	c.mu.Lock()
	for _, l := range c.live {
		l.cancel(errClosing)
	}
	c.mu.Unlock()
	c.wg.Wait()
	return nil
}

// Live reports whether any run waits or is under way.
func (c *Core) Live() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.live) > 0
}

// settled waits until nothing is left of an attempt that has ended, if there is one.
func (c *Core) settled(ctx context.Context, run caisson.ID) error {
	for {
		c.mu.Lock()
		l, gone := c.live[run], c.leaving[run]
		c.mu.Unlock()
		wait := gone
		if l != nil {
			wait = l.done
		}
		if wait == nil {
			return nil
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// do runs f in a goroutine of the core's, and reports false if the core is closed.
func (c *Core) do(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		return false
	}
	c.wg.Go(f)
	return true
}

// scope is what the caller in ctx may touch.
func scope(ctx context.Context) (caisson.Scope, caisson.Caller, error) {
	caller, err := caisson.CallerOf(ctx)
	return caisson.In(caller.Account), caller, err
}

func now() time.Time { return time.Now().UTC() }
