// Package runs is the core that gives tasks to agents: it queues them, provisions a sandbox and a budget for each,
// gives the prompt to the agent, records the agent's events, and stores one result.
//
// The store contains the intended state: a run is stored before any work for it begins, and its result is stored before
// anything of the run is removed. The agent's output is parsed inside its sandbox (package guest/drive); this package
// reads only the driver's protocol (guest/task).
//
// On disk a run is one directory, which is removed with it:
//
//	<dir>/runs/<id>/
//	    workspace.tar  files for the workspace of each attempt, until one succeeds
//	    upload.tar     the same, if the client has sent an archive
//	    directory.json the host directory of a workspace that is not a copy
//	    <attempt>/     stdout and stderr of the agent's program, bounded
package runs

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/task"
	"github.com/caisson-dev/caisson/internal/keylock"
)

// Sandboxes contains the services of package sandboxes that runs require.
type Sandboxes struct {
	Lifecycle caisson.Sandboxes
	Processes caisson.Processes
	Terminals caisson.Terminals
	Files     caisson.Files
	Snapshots caisson.Snapshots
	Templates caisson.Templates
	Policies  interface {
		// SetPolicy is the method of [caisson.Policies].
		SetPolicy(ctx context.Context, ref string, p caisson.Policy) (*caisson.Policy, error)
	}
	// Assign makes a sandbox serve a run, or none if a is nil: model calls that begin afterwards are charged to the
	// run, or refused. Returns Conflict while the sandbox serves another run.
	Assign func(ctx context.Context, id caisson.ID, a *caisson.Assignment) (*caisson.Sandbox, error)
}

// Catalog stores agents. Its methods are those of [caisson.Agents].
type Catalog interface {
	ListAgents(ctx context.Context) ([]*caisson.Agent, error)
	GetAgent(ctx context.Context, id string) (*caisson.Agent, error)
	PutAgent(ctx context.Context, a caisson.Agent) (*caisson.Agent, error)
	RemoveAgent(ctx context.Context, id string) error
}

// A Recipe implements what an agent's program needs beyond its entry in the catalog. Its methods are pure and safe for
// concurrent use.
type Recipe interface {
	// Complete returns the entry with the parts that code generates: set-up, service, files.
	Complete(a caisson.Agent) (caisson.Agent, error)
	// Files returns the files that the sandbox needs before the service starts, so that the service can call these
	// models.
	Files(a *caisson.Agent, models []caisson.Model) ([]caisson.SeedFile, error)
	// Turn fills in the task of one turn.
	Turn(t *task.Task, turn Turn) error
	// Settle returns programs that are run, one after another, before a warm snapshot is taken, to reduce its size.
	Settle(a *caisson.Agent) [][]string
	// Check returns the problems of the agent, given a sandbox of its template.
	Check(ctx context.Context, a *caisson.Agent, in Inspection) ([]caisson.AgentCheck, error)
}

// A Turn is the input of [Recipe.Turn].
type Turn struct {
	Agent  *caisson.Agent
	Run    *caisson.Run
	Models []caisson.Model // models that may be called; the selected one is first
	Fork   bool            // the sandbox has just been forked from the warm snapshot
	First  bool            // the sandbox has not had a prompt yet
	Warmup bool            // the turn warms up the agent for its warm snapshot, and Run is not a stored run
}

// An Inspection reads files in a sandbox of an agent's template.
type Inspection interface {
	// Tree returns the tree at a path as a tar archive, in the format of [caisson.Files].
	Tree(ctx context.Context, path string) ([]byte, error)
	// Has reports whether a program is on the PATH.
	Has(ctx context.Context, program string) (bool, error)
}

// Limits bounds the resources of all runs together, and defines how long sessions and runs are kept. Zero fields mean
// the defaults; see [Limits.WithDefaults]. Grace and Settle are not configurable.
type Limits struct {
	Concurrent   int              `yaml:"concurrent" json:"concurrent"`     // running attempts on this host, without sub-runs
	PerAccount   int              `yaml:"perAccount" json:"perAccount"`     // running attempts of one account
	Waiting      int              `yaml:"waiting" json:"waiting"`           // queued and running runs of one account, no sub-runs
	SessionIdle  caisson.Duration `yaml:"sessionIdle" json:"sessionIdle"`   // idle time until a session's memory goes to disk
	SessionFiles caisson.Duration `yaml:"sessionFiles" json:"sessionFiles"` // idle time until only its files are kept
	Keep         caisson.Duration `yaml:"keep" json:"keep"`                 // time for which a run is kept after its end
	Workspace    caisson.Size     `yaml:"workspace" json:"workspace"`       // bytes that may be copied into a workspace
	Deliver      caisson.Duration `yaml:"deliver" json:"deliver"`           // time that a result waits for its commits' delivery
	Grace        time.Duration    `yaml:"-" json:"-"`                       // time that an agent has to exit after a request to stop
	// Settle is the time for which the end of a run waits until its last model calls are in the ledger.
	Settle time.Duration `yaml:"-" json:"-"`
}

// WithDefaults returns l with zero limits replaced by the defaults.
func (l Limits) WithDefaults() Limits {
	const minute, day = caisson.Duration(time.Minute), caisson.Duration(24 * time.Hour)
	return Limits{
		Concurrent: cmp.Or(l.Concurrent, 16), PerAccount: cmp.Or(l.PerAccount, 8), Waiting: cmp.Or(l.Waiting, 200),
		SessionIdle: cmp.Or(l.SessionIdle, 10*minute), SessionFiles: cmp.Or(l.SessionFiles, day), Keep: cmp.Or(l.Keep, 30*day),
		Workspace: cmp.Or(l.Workspace, 4<<30), Deliver: cmp.Or(l.Deliver, minute),
		Grace: cmp.Or(l.Grace, 5*time.Second), Settle: cmp.Or(l.Settle, 5*time.Second),
	}
}

// Validate returns an Invalid error for every invalid setting, joined.
func (l *Limits) Validate() error {
	var errs []error
	for _, n := range []struct {
		field string
		value int64
	}{
		{"concurrent", int64(l.Concurrent)}, {"perAccount", int64(l.PerAccount)}, {"waiting", int64(l.Waiting)},
		{"workspace", int64(l.Workspace)}, {"sessionIdle", int64(l.SessionIdle)}, {"keep", int64(l.Keep)},
		{"deliver", int64(l.Deliver)},
	} {
		if n.value < 1 {
			errs = append(errs, caisson.Invalidf(n.field, "must be greater than 0"))
		}
	}
	if l.SessionFiles < l.SessionIdle {
		errs = append(errs, caisson.Invalidf("sessionFiles", "%s is less than runs.sessionIdle", l.SessionFiles))
	}
	return errors.Join(errs...)
}

// Config configures a Core. All fields are required except Limits, Recipes, Budget, Forget, Log and those whose
// comments allow nil.
type Config struct {
	Dir       *os.Root // the data directory
	Store     caisson.Store
	Sandboxes Sandboxes
	Catalog   Catalog
	Models    caisson.Models
	// Workspaces returns the changes in the directories of runs; nil if directories can only be copied.
	Workspaces Workspaces
	Masker     Masker // hides files in copies of directories
	// Relay gives runs access to repositories; nil if there are none.
	Relay caisson.Relay
	// Calls returns a page of the calls in the ledger, including calls that have just ended.
	Calls func(ctx context.Context, q caisson.UsageQuery, after caisson.ID, limit int) ([]caisson.Call, bool, error)
	// UnderWay returns the number of a run's calls that have begun and are not in the ledger yet, and their maximum
	// cost. nil means that there are never any.
	UnderWay func(ctx context.Context, account, run string) (calls int64, most caisson.USD, err error)
	// Forget makes the model gateway read these budgets again.
	Forget  func(ctx context.Context, budgets ...string) error
	Events  caisson.Publisher
	Recipes map[string]Recipe // by driver
	Budget  caisson.Limits    // default budget of a run whose agent has no cost limit
	Limits  Limits
	Build   string // of Caisson: warm snapshots of other builds cannot be used
	Version string
	Log     *slog.Logger
}

// Core is the state that the services of this package share. All methods of the services are safe for concurrent use.
type Core struct {
	Config
	runs      runs
	guests    guests
	admission admission
	sessions  sessions
	recovery  recovery
	builder   builder
	guestExec guestExec
	budgets   budgets

	queue         *queue
	streams       *streams
	warmSnapshots *warmSnapshots

	mu       sync.Mutex
	live     map[caisson.ID]*liveAttempt  // queued and running attempts; guarded by mu
	cleanups map[caisson.ID]chan struct{} // attempts being cleaned up; closed when that is done; guarded by mu

	uploads map[string]int // number of archives being received, by account; guarded by mu

	retryLocks   keylock.Locks // held while another attempt is started, by run
	sessionLocks keylock.Locks // held while a session is claimed, paused or stopped, by session

	ctx  context.Context // cancelled by Close
	stop context.CancelCauseFunc
	wg   sync.WaitGroup // attempts and their cleanup; none is added once ctx has ended
}

// liveAttempt is a queued or running attempt.
type liveAttempt struct {
	cancel    context.CancelCauseFunc
	addEvents func(...caisson.RunEvent) // adds to the run's events; nil before the attempt has begun; guarded by Core.mu
	done      chan struct{}             // closed when the attempt has ended, its result is stored, and its queue slot is free
}

// The services, and the parts of the core that implement them. Each embeds the core, and uses the others through it.
type (
	runs      struct{ *Core } // requests of callers about runs and sessions; implements [caisson.Runs]
	guests    struct{ *Core } // requests of agents about runs; implements [caisson.GuestRuns]
	admission struct{ *Core } // admission: from a request to a place in the queue
	sessions  struct{ *Core } // sessions and their sandboxes
	recovery  struct{ *Core } // recovery from a restart of the daemon
	builder   struct{ *Core } // builds the templates, files and services of agents
	guestExec struct{ *Core } // executes commands in sandboxes
	budgets   struct{ *Core } // budgets of attempts
)

var (
	_ caisson.Runs      = runs{}
	_ caisson.GuestRuns = guests{}
)

// Runs returns the service that manages runs.
func (c *Core) Runs() caisson.Runs { return c.runs }

// Guests returns the service with which agents start sub-runs.
func (c *Core) Guests() caisson.GuestRuns { return c.guests }

// Reconcile makes runs, sessions and sandboxes consistent after a restart. It must return before the core is used
// otherwise.
func (c *Core) Reconcile(ctx context.Context) error { return c.recovery.reconcile(ctx) }

// errClosing is the cause when work stops because the daemon stops. The next daemon reconciles that work.
var errClosing = errors.New("the daemon is shutting down")

// New returns a Core. No run starts before Reconcile.
func New(cfg Config) *Core {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	cfg.Limits = cfg.Limits.WithDefaults()
	c := &Core{Config: cfg, live: map[caisson.ID]*liveAttempt{}, uploads: map[string]int{}, cleanups: map[caisson.ID]chan struct{}{}}
	// This context belongs to the core, not to a request: it carries no caller.
	c.ctx, c.stop = context.WithCancelCause(context.Background())
	c.queue = newQueue(cfg.Limits.Concurrent, cfg.Limits.PerAccount)
	c.streams = newStreams(cfg.Store.Runs(), c.ctx.Done())
	c.warmSnapshots = newWarmSnapshots(c)
	c.runs, c.guests, c.admission, c.sessions = runs{c}, guests{c}, admission{c}, sessions{c}
	c.recovery, c.builder, c.guestExec, c.budgets = recovery{c}, builder{c}, guestExec{c}, budgets{c}
	return c
}

// Close stops the work in this process and waits for it. Sandboxes keep running, and the next daemon's Reconcile
// handles the runs that were in progress.
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

// Live reports whether any run is queued or running.
func (c *Core) Live() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.live) > 0
}

// awaitCleanup waits until the last attempt of a run has ended and is cleaned up.
func (c *Core) awaitCleanup(ctx context.Context, run caisson.ID) error {
	for {
		c.mu.Lock()
		l, gone := c.live[run], c.cleanups[run]
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

// goBackground runs f in a goroutine that Close waits for, and returns false if the core is closed.
func (c *Core) goBackground(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		return false
	}
	c.wg.Go(f)
	return true
}

// scope returns the scope that the caller in ctx may access, and the caller.
func scope(ctx context.Context) (caisson.Scope, caisson.Caller, error) {
	caller, err := caisson.CallerOf(ctx)
	return caisson.In(caller.Account), caller, err
}

func now() time.Time { return time.Now().UTC() }
