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
//	    workspace.tar  copy of a host directory, for the workspace of each attempt until one succeeds
//	    upload.tar     archive from the client, for the same purpose
//	    directory.json the host directory of a workspace that is not a copy
//	    <attempt>/     stdout and stderr of the agent's program, bounded
package runs

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/agent"
	"github.com/caisson-dev/caisson/guest/task"
	"github.com/caisson-dev/caisson/internal/background"
)

// Policies sets the policies of sandboxes. SetPolicy is the method of [caisson.Policies].
type Policies interface {
	SetPolicy(ctx context.Context, ref string, p caisson.Policy) (*caisson.Policy, error)
}

// Services manages the services of sandboxes. ServeAgent adds or changes the service of a sandbox's agent.
type Services interface {
	caisson.Services
	ServeAgent(ctx context.Context, ref string, s caisson.Service) error
}

// Snapshots manages snapshots. SetPool sets how many forks of a snapshot are made in advance.
type Snapshots interface {
	caisson.Snapshots
	SetPool(ctx context.Context, ref string, size int) error
}

// Sandboxes contains the services of package sandboxes that this package requires.
type Sandboxes struct {
	Lifecycle caisson.Sandboxes // creates, changes and removes sandboxes
	Processes caisson.Processes
	Terminals caisson.Terminals
	Files     caisson.Files
	Snapshots Snapshots // takes, forks and pools snapshots
	Templates caisson.Templates
	Policies  Policies   // sets the policies of sandboxes
	Services  Services   // manages the services in sandboxes
	Assign    assignFunc // assigns a sandbox to a run
}

// assignFunc is a function that assigns a sandbox to a run: model calls that begin afterwards are charged to the run. If a is
// nil, the sandbox is assigned to no run, and model calls are refused. Returns Conflict while the sandbox is assigned to
// another run.
type assignFunc func(ctx context.Context, id caisson.ID, a *caisson.Assignment) (*caisson.Sandbox, error)

// A Recipe implements what the agents of one driver need beyond their entry in the catalog. Its methods have no side effects
// and are safe for concurrent use.
type Recipe interface {
	// Complete returns a with the fields that the recipe generates, such as set-up steps, service and files.
	Complete(a caisson.Agent) (caisson.Agent, error)
	// Files returns the files that the sandbox needs before the agent's service starts, so that the service can call these
	// models.
	Files(a *caisson.Agent, models []caisson.Model) ([]caisson.SeedFile, error)
	// Turn fills in the fields of t, the task of one turn, that the agent's program needs.
	Turn(t *task.Task, turn Turn) error
	// Settle returns programs that are run, one after another, before a warm snapshot is taken, to reduce its size.
	Settle(a *caisson.Agent) [][]string
	// Check returns the problems of the agent that it finds in a sandbox of the agent's template.
	Check(ctx context.Context, a *caisson.Agent, in Inspection) ([]caisson.AgentCheck, error)
}

// A Turn describes one turn of a run: the agent, the models that it may call, and the state of its sandbox before the turn.
type Turn struct {
	Agent  *caisson.Agent  // agent of the run
	Run    *caisson.Run    // run of the turn
	Models []caisson.Model // models that the agent may call, beginning with the model of the run
	Fork   bool            // the sandbox has just been forked from the warm snapshot
	First  bool            // the sandbox has not had a prompt yet
	Warmup bool            // the turn warms up the agent for its warm snapshot, and Run is not a stored run
}

// An Inspection reads the files in a sandbox of an agent's template.
type Inspection interface {
	// ReadTree returns the directory at a path as a tar archive, in the format of [caisson.Files].
	ReadTree(ctx context.Context, path string) ([]byte, error)
	// HasProgram reports whether a program is in one of the usual directories of the sandbox, such as /usr/bin.
	HasProgram(ctx context.Context, program string) (bool, error)
}

// Limits bounds the resources of all runs together, and defines how long sessions and runs are kept. Zero fields mean
// the defaults; see [Limits.WithDefaults]. Grace and Settle are not configurable.
type Limits struct {
	Concurrent   int              `yaml:"concurrent" json:"concurrent"`     // max running attempts on this host, without sub-runs
	PerAccount   int              `yaml:"perAccount" json:"perAccount"`     // max running attempts of one account
	Waiting      int              `yaml:"waiting" json:"waiting"`           // max queued or running runs of an account, no sub-runs
	SessionIdle  caisson.Duration `yaml:"sessionIdle" json:"sessionIdle"`   // idle time until a session's memory is moved to disk
	SessionFiles caisson.Duration `yaml:"sessionFiles" json:"sessionFiles"` // idle time until only a session's files are kept
	Keep         caisson.Duration `yaml:"keep" json:"keep"`                 // how long a run is kept after its end
	Workspace    caisson.Size     `yaml:"workspace" json:"workspace"`       // max bytes that are copied into a workspace
	Deliver      caisson.Duration `yaml:"deliver" json:"deliver"`           // how long a result waits until commits are delivered
	Grace        time.Duration    `yaml:"-" json:"-"`                       // time that an agent has to exit when asked to stop
	// Settle is how long the end of a run waits until its last model calls are in the ledger.
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

// AgentConfig configures the agents and the default budget of their runs. Recipes and Budget are optional.
type AgentConfig struct {
	Catalog *agent.Catalog    // entries of agents
	Models  caisson.Models    // models that can be granted
	Recipes map[string]Recipe // recipes by the name of the agent's driver
	Budget  caisson.Limits    // default budget of a run whose agent has no cost limit
}

// WorkConfig configures the directories and repositories that runs work on.
type WorkConfig struct {
	// Workspaces reads the mounted workspaces of runs, and the changes in them. If it is nil, directories are copied into
	// sandboxes and never mounted.
	Workspaces Workspaces
	Masker     Masker // hides files whose names indicate credentials in copies of directories
	// Relay gives runs access to repositories; nil if the daemon has no relay.
	Relay caisson.Relay
}

// LedgerConfig contains functions that read the model calls of runs and their costs. UnderWay and Forget are optional.
type LedgerConfig struct {
	Calls listCalls // lists the calls in the ledger
	// UnderWay returns the number of a run's calls that have begun and are not in the ledger yet, and their maximum cost. nil
	// means that there are never such calls.
	UnderWay func(ctx context.Context, account, run string) (calls int64, most caisson.USD, err error)
	// Forget makes the model gateway read the budgets with these keys again.
	Forget func(ctx context.Context, budgets ...string) error
}

// listCalls is a function that returns a page of the calls in the ledger, including calls that have just ended, and whether
// there are more after it.
type listCalls func(ctx context.Context, q caisson.UsageQuery, after caisson.ID, limit int) ([]caisson.Call, bool, error)

// Config configures a Core. All fields are required except Limits and Log, and those that are documented as optional.
type Config struct {
	Dir       *os.Root // the data directory
	Store     caisson.Store
	Sandboxes Sandboxes    // services of package sandboxes
	Agents    AgentConfig  // agents, and the budget of their runs
	Work      WorkConfig   // workspaces and repositories
	Ledger    LedgerConfig // calls of models, with their costs
	Events    caisson.Publisher
	Limits    Limits           // limits of runs and sessions
	Programs  caisson.Programs // programs of sandboxes; a warm snapshot that needs programs which are not supported is not used
	Version   string           // version of Caisson
	Log       *slog.Logger
}

// Core combines the components of this package. Its methods are for the engine and safe for concurrent use.
type Core struct {
	background *background.Group
	live       *live          // queued and running attempts
	streams    *streams       // sends events to watchers
	warm       *warmSnapshots // makes warm snapshots
	recovery   *recovery      // reconciles runs after a start
	keeper     *keeper        // pauses idle sessions, and removes old runs
	service    *service       // API of runs and sessions
	guests     *guests        // requests of agents about runs
	agents     *Agents        // API of agents
}

// New returns a Core. No run starts before Reconcile.
func New(cfg Config) *Core {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	limits, boxes, recipes := cfg.Limits.WithDefaults(), cfg.Sandboxes, cfg.Agents.Recipes
	runs, sessionTable, sandboxTable := cfg.Store.Runs(), cfg.Store.Sessions(), cfg.Store.Sandboxes()
	background, live, queue := background.New(), newLive(), newQueue(limits.Concurrent, limits.PerAccount)
	streams := &streams{store: runs, done: background.Context().Done()}
	subRuns := &subRuns{runs: runs, live: live}
	budgets := &budgets{ledger: cfg.Store.Ledger(), forget: cfg.Ledger.Forget}
	dirs := &directories{root: cfg.Dir, runs: runs, masker: cfg.Work.Masker, limits: limits, uploads: map[string]int{}}
	guestExec := &guestExec{
		processes: boxes.Processes, lifecycle: boxes.Lifecycle, services: boxes.Services, grace: limits.Grace, log: cfg.Log,
	}
	sessions := &sessions{
		table: sessionTable, runs: runs, sandboxes: sandboxTable, lifecycle: boxes.Lifecycle, live: live, limits: limits, events: cfg.Events,
		log: cfg.Log,
	}
	builder := &builder{catalog: cfg.Agents.Catalog, recipes: recipes, templates: boxes.Templates}
	services := &services{recipes: recipes, models: cfg.Agents.Models, files: boxes.Files, service: boxes.Services, guestExec: guestExec}
	snapshots := &snapshots{service: boxes.Snapshots, services: services, programs: cfg.Programs}
	warm := &warmSnapshots{
		capturer: &capturer{
			recipes: recipes, builder: builder, services: services, guestExec: guestExec, snapshots: snapshots,
			lifecycle: boxes.Lifecycle, service: boxes.Snapshots, assign: boxes.Assign, placeholder: cfg.Work.Workspaces != nil,
			grace: limits.Grace, events: cfg.Events,
		},
		service: boxes.Snapshots, background: background, events: cfg.Events, log: cfg.Log, captures: map[string]*capture{},
		scheduled: map[string]bool{}, retryAfter: map[string]time.Time{}, failed: map[string]string{},
	}
	planner := &planner{
		builder: builder, models: cfg.Agents.Models, relay: cfg.Work.Relay, mounts: cfg.Work.Workspaces != nil, budget: cfg.Agents.Budget,
	}
	retrier := &retrier{
		sessions: sessions, live: live, queue: queue, runs: runs, sandboxes: sandboxTable, volumes: cfg.Store.Volumes(),
	}
	provisioner := &provisioner{
		resumer: &resumer{
			sessions: sessionTable, lifecycle: boxes.Lifecycle, policies: boxes.Policies, assign: boxes.Assign, services: services,
			workspaces: cfg.Work.Workspaces, dirs: dirs, retrier: retrier, programs: cfg.Programs,
		},
		retrier: retrier, services: services, warm: warm, snapshots: snapshots, lifecycle: boxes.Lifecycle, service: boxes.Snapshots,
		files: boxes.Files, dirs: dirs, relay: cfg.Work.Relay,
	}
	usage := &usageReader{calls: cfg.Ledger.Calls, underWay: cfg.Ledger.UnderWay, done: background.Context().Done()}
	deliverer := &deliverer{relay: cfg.Work.Relay, maxWait: time.Duration(limits.Deliver)}
	turns := &turns{recipes: recipes, services: services, sessions: sessions, guestExec: guestExec, dirs: dirs, grace: limits.Grace}
	executor := &executor{
		runs: runs, streams: streams, builder: builder, planner: planner, budgets: budgets, provisioner: provisioner,
		turns: turns,
		finisher: &finisher{
			subRuns: subRuns, deliverer: deliverer, workspaces: cfg.Work.Workspaces, lifecycle: boxes.Lifecycle, assign: boxes.Assign,
			guestExec: guestExec, sessions: sessions, usage: usage, settle: limits.Settle, done: background.Context().Done(),
			cleaner: &cleaner{
				lifecycle: boxes.Lifecycle, assign: boxes.Assign, usage: usage, deliverer: deliverer, budgets: budgets, dirs: dirs, live: live,
				background: background,
			},
		},
		interactive: &interactive{
			runs: runs, builder: builder, turns: turns, lifecycle: boxes.Lifecycle, terminals: boxes.Terminals, files: boxes.Files,
			guestExec: guestExec, grace: limits.Grace,
		},
		events: cfg.Events, version: cfg.Version, log: cfg.Log,
	}
	admission := &admission{
		runs: runs, sessions: sessions, dirs: dirs, queue: queue, live: live, subRuns: subRuns, executor: executor, background: background,
		events: cfg.Events, maxUnended: limits.Waiting,
	}
	return &Core{
		background: background, live: live, streams: streams, warm: warm,
		recovery: &recovery{
			runs: runs, sandboxes: sandboxTable, table: sessionTable, sessions: sessions, lifecycle: boxes.Lifecycle, assign: boxes.Assign,
			budgets: budgets, dirs: dirs, admission: admission, executor: executor, log: cfg.Log,
		},
		keeper: &keeper{runs: runs, sessions: sessions, dirs: dirs, limits: limits, log: cfg.Log},
		service: &service{
			runs: runs, planner: planner, admission: admission, sessions: sessions, subRuns: subRuns, streams: streams, live: live, dirs: dirs,
			logs: &runLogs{dirs: dirs, calls: cfg.Ledger.Calls, events: cfg.Store.Events()}, events: cfg.Events,
		},
		guests: &guests{
			runs: runs, sandboxes: sandboxTable, catalog: cfg.Agents.Catalog, planner: planner, admission: admission, subRuns: subRuns,
			live: live, events: cfg.Events,
		},
		agents: &Agents{
			catalog: cfg.Agents.Catalog, models: cfg.Agents.Models, recipes: recipes, builder: builder, warm: warm, snapshots: snapshots,
			templates: boxes.Templates, lifecycle: boxes.Lifecycle, files: boxes.Files, events: cfg.Events,
		},
	}
}

var (
	_ caisson.Runs      = (*service)(nil)
	_ caisson.GuestRuns = (*guests)(nil)
)

// Runs returns the service that manages runs.
func (c *Core) Runs() caisson.Runs { return c.service }

// Guests returns the service with which agents start sub-runs.
func (c *Core) Guests() caisson.GuestRuns { return c.guests }

// Agents returns the service that manages agents.
func (c *Core) Agents() *Agents { return c.agents }

// Reconcile makes runs, sessions and sandboxes consistent after a restart. It must return before the core is used otherwise.
func (c *Core) Reconcile(ctx context.Context) error { return c.recovery.reconcile(ctx) }

// Run pauses idle sessions and removes old runs and sessions periodically, until ctx ends.
func (c *Core) Run(ctx context.Context) error { return c.keeper.run(ctx) }

// Close stops the work in this process and waits for it. Sandboxes keep running, and the next daemon's Reconcile
// handles the runs that were in progress.
func (c *Core) Close() error {
	c.live.close()
	c.background.Close()
	return nil
}

// Live reports whether any run is queued or running.
func (c *Core) Live() bool { return c.live.any() }

// now returns the current time in UTC.
func now() time.Time { return time.Now().UTC() }
