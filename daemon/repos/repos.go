// Package repos is the core of the relay: git repositories that sandboxes clone and push to without a connection to their
// remotes, and the delivery of their commits.
//
// A sandbox is granted some branches of a repository to read and one to push to. It reads and writes a store of its own, which
// has what was granted and nothing else; what it pushes is checked and stays there, in quarantine. When its run has ended, the
// commits become a delivery: a stored plan to push one branch to the remote, and to open a pull request if one was requested. The
// plan is executed from what is stored, and retried while the remote is unavailable; each attempt checks again whether it is
// still allowed. All git data is parsed by packages relay and forge, in jobs without privileges.
//
// docs/architecture.md names the components, what each of them owns, and the order of their locks. On disk a repository is one
// directory, which is removed with it:
//
//	<dir>/relay/<account>/<repo>/
//	    mirror/          the remote's branches and tags
//	    views/<key>/     the part of the mirror that a grant covers; shared by equal grants
//	    stores/<sb>/     what one sandbox reads and has pushed; kept until its deliveries have ended
//	    stores/<sb>.json its grant
package repos

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/background"
	"github.com/caisson-dev/caisson/internal/reach"
	"github.com/caisson-dev/caisson/job/forge"
	"github.com/caisson-dev/caisson/job/gate/check"
	"github.com/caisson-dev/caisson/job/relay/receive"
	"github.com/caisson-dev/caisson/job/relay/transport"
	"github.com/caisson-dev/caisson/job/worker"
)

// Transport connects to remotes, in jobs that have the credential: [*transport.Tool].
type Transport interface {
	Run(ctx context.Context, conn *os.File, req transport.Request) error
	RunLocal(ctx context.Context, conn, dir *os.File, push bool) error
}

// Forges opens pull requests: [*forge.Tool].
type Forges interface {
	Pull(ctx context.Context, s forge.Server, req forge.PullRequest) (*forge.Pull, error)
	Token(ctx context.Context, app forge.App, s forge.Server) (caisson.Secret, time.Time, error)
}

// Limits bound the relay. Zero fields mean the default.
type Limits struct {
	Push receive.Limits // of one push
	// First is the wait before the second attempt of a delivery; default 5 s. Each further wait is three times as long, up to an
	// hour.
	First time.Duration
	Tries time.Duration // how long a delivery is retried; default 3 days
	Keep  time.Duration // how long commits that were not delivered are kept; default 30 days
	Fetch time.Duration // time limit of the fetch of a mirror; default 1 hour
	Sweep time.Duration // between two removals of unused stores and views; default 1 hour
	// Space is the size of an account's mirrors, views and stores from which on fetches, grants and pushes are refused; default
	// 20 GiB.
	Space caisson.Size
}

// RemoteConfig says how remotes and their forges are reached. Roots and Own are optional.
type RemoteConfig struct {
	Transport Transport
	Forge     Forges
	Secrets   caisson.Secrets
	Roots     string     // PEM of certificate authorities to trust besides the host's
	Own       reach.Host // which addresses are this host's
}

// Config configures a Core. All fields but Rules, Limits, Settled and Log are required.
type Config struct {
	Dir    string // the data directory
	Store  caisson.Store
	Jobs   worker.Starter
	Remote RemoteConfig
	Events caisson.Publisher
	// Exec starts a process in a sandbox, as that of [caisson.Processes].
	Exec   func(ctx context.Context, sandbox string, req caisson.ExecRequest) (caisson.Process, error)
	Rules  check.Rules // for changes by commits; zero means the gate's defaults
	Limits Limits
	// Settled, unless nil, is called with each delivery whose state has changed.
	Settled func(ctx context.Context, d *caisson.Delivery)
	Log     *slog.Logger
}

const (
	topDir   = "relay" // in the data directory
	maxRepos = 1000    // of an account
)

// Core combines the components of this package. Its methods are for the engine and safe for concurrent use.
type Core struct {
	background *background.Group
	keeper     *keeper
	access     *access
	streams    *streams
	planner    *planner
	queue      *queue
	service    *Service
}

var _ caisson.Relay = (*Core)(nil)

// New returns a Core, or an Invalid error if cfg is invalid. Call Reconcile before use.
func New(cfg Config) (*Core, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if err := cfg.Rules.Validate(); err != nil {
		return nil, err
	}
	limits := cfg.Limits
	for d, or := range map[*time.Duration]time.Duration{
		&limits.First: 5 * time.Second, &limits.Tries: 72 * time.Hour, &limits.Keep: 30 * 24 * time.Hour, &limits.Fetch: time.Hour, &limits.Sweep: time.Hour,
	} {
		if *d <= 0 {
			*d = or
		}
	}
	limits.Space = cmp.Or(max(limits.Space, 0), 20<<30)
	root := filepath.Join(cfg.Dir, topDir)
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, err
	}
	table, sandboxes, deliveries := cfg.Store.Repos(), cfg.Store.Sandboxes(), deliveries{cfg.Store.Deliveries()}
	background := background.New()
	dirs := &directories{root: root, accounts: cfg.Store.Accounts()}
	grants := &grants{dirs: dirs, byID: map[caisson.ID]map[string]*grant{}}
	remotes := &remotes{RemoteConfig: cfg.Remote}
	inSandbox := &sandboxGit{exec: cfg.Exec, dirs: dirs}
	keeper := &keeper{
		repos: table, sandboxes: sandboxes, deliveries: deliveries, dirs: dirs, grants: grants,
		space: &space{dirs: dirs, limit: limits.Space, measured: map[string]usage{}}, keep: limits.Keep, interval: limits.Sweep, log: cfg.Log,
	}
	mirrors := &mirrors{
		repos: table, jobs: cfg.Jobs, dirs: dirs, remotes: remotes, keeper: keeper, timeout: limits.Fetch, log: cfg.Log,
	}
	access := &access{
		repos: table, deliveries: deliveries, jobs: cfg.Jobs, dirs: dirs, remotes: remotes, mirrors: mirrors, grants: grants,
		keeper: keeper, inSandbox: inSandbox, events: cfg.Events,
	}
	queue := &queue{
		deliveries: deliveries, notifier: &notifier{settled: cfg.Settled, waiting: map[caisson.ID][]chan struct{}{}}, background: background,
		sender: &sender{repos: table, deliveries: deliveries, jobs: cfg.Jobs, dirs: dirs, grants: grants, remotes: remotes},
		events: cfg.Events, limits: limits, log: cfg.Log,
		kick: make(chan struct{}, 1), sending: map[string]int{}, attempts: map[caisson.ID]*attempt{},
	}
	planner := &planner{
		repos: table, deliveries: deliveries, jobs: cfg.Jobs, dirs: dirs, grants: grants, remotes: remotes, inSandbox: inSandbox,
		queue: queue, rules: cfg.Rules,
	}
	return &Core{
		background: background, keeper: keeper, access: access, planner: planner, queue: queue,
		streams: &streams{
			repos: table, jobs: cfg.Jobs, dirs: dirs, grants: grants, keeper: keeper, background: background, events: cfg.Events,
			rules: cfg.Rules, limits: limits.Push, log: cfg.Log, open: map[caisson.ID]int{},
		},
		service: &Service{
			repos: table, sandboxes: sandboxes, deliveries: deliveries, dirs: dirs, remotes: remotes, mirrors: mirrors, keeper: keeper,
			access: access, planner: planner, queue: queue, events: cfg.Events,
		},
	}, nil
}

// Reconcile makes store and directories agree after a restart. It must return before any other method is called.
func (c *Core) Reconcile(ctx context.Context) error {
	if err := c.queue.reconcile(ctx); err != nil {
		return err
	}
	return c.keeper.reconcile(ctx)
}

// Run sends deliveries and removes unused stores and views until ctx ends. Call it after Reconcile.
func (c *Core) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { c.keeper.run(ctx) })
	c.queue.run(ctx)
	wg.Wait()
	return nil
}

// Close cancels streams and attempts, and waits until they have ended. Their deliveries are sent by the next daemon.
func (c *Core) Close() error {
	c.background.Close()
	return nil
}

// Repos returns the API of the relay.
func (c *Core) Repos() *Service { return c.service }

// CheckRepo implements [caisson.Relay].
func (c *Core) CheckRepo(ctx context.Context, account string, req caisson.RepoRequest) error {
	_, err := c.access.check(ctx, account, req)
	return err
}

// Grant implements [caisson.Relay].
func (c *Core) Grant(ctx context.Context, a caisson.RepoAccess) (*caisson.RepoGrant, error) {
	return c.access.grant(ctx, a)
}

// Deliver implements [caisson.Relay].
func (c *Core) Deliver(ctx context.Context, h caisson.DeliveryRequest) (*caisson.Delivery, error) {
	return c.planner.deliver(ctx, h)
}

// Await implements [caisson.Relay].
func (c *Core) Await(ctx context.Context, id caisson.ID, most time.Duration) (*caisson.Delivery, error) {
	return c.queue.await(ctx, id, most)
}

// Leave implements [caisson.Relay].
func (c *Core) Leave(ctx context.Context, sandbox caisson.ID) error {
	return c.keeper.leave(ctx, sandbox)
}

// Stream connects the sandbox of the guest in ctx with git: data read from the file, up to its end, is the request's body, and
// data written to it is the answer's. ended is closed when the job behind it has ended.
func (c *Core) Stream(ctx context.Context, in json.RawMessage) (conn *os.File, ended <-chan struct{}, err error) {
	return c.streams.connect(ctx, in)
}

// rulesFor returns the rules that commits for a repository are checked by.
func rulesFor(r *caisson.Repo, rules check.Rules) check.Rules {
	rules.Allow = slices.Concat(rules.Allow, r.Allow)
	rules.AskSecrets = r.AllowSecrets
	return rules
}

func now() time.Time { return time.Now().UTC() }

// asAccount returns a context whose caller is the account.
func asAccount(ctx context.Context, account string) context.Context {
	return caisson.WithCaller(ctx, caisson.Caller{Account: account})
}
