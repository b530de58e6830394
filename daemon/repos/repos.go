// Package repos is the core of the relay: git repositories that sandboxes clone and push to without a connection to their
// remotes, and the delivery of their commits.
//
// A sandbox is granted some branches of a repository to read and one to push to. It fetches from and pushes to a store of its
// own, which has only the branches that were granted; commits that it pushes are checked and stay in the store, in quarantine.
// When its run has ended, the commits become a delivery: a stored plan to push one branch to the remote, and to open a pull
// request if one was requested. The plan is executed as it was stored, and retried while the remote is unavailable; each attempt
// checks again whether the delivery is still allowed. All git data is parsed by packages relay and forge, in jobs without
// privileges.
//
// docs/architecture.md names the components, what each of them owns, and the order of their locks. On disk a repository is one
// directory, which is removed with it:
//
//	<dir>/relay/<account>/<repo>/
//	    mirror/          the remote's branches and tags
//	    views/<key>/     the part of the mirror that a grant covers; shared by equal grants
//	    stores/<sb>/     the store of one sandbox, with the commits that it has pushed; kept until its deliveries have ended
//	    stores/<sb>.json the grant of that sandbox
package repos

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/background"
	"github.com/caisson-dev/caisson/internal/reach"
	"github.com/caisson-dev/caisson/internal/smallfile"
	"github.com/caisson-dev/caisson/job/forge"
	"github.com/caisson-dev/caisson/job/gate/check"
	"github.com/caisson-dev/caisson/job/relay/transport"
	"github.com/caisson-dev/caisson/job/worker"
)

// Transport connects to remotes, in worker jobs that get the credential. [*transport.Tool] implements it.
type Transport interface {
	// Run serves the git job at the other end of conn with a remote on the network, until that end is closed.
	Run(ctx context.Context, conn *os.File, req transport.Request) error
	// RunLocal serves the git job at the other end of conn with the repository in a directory of the host. push allows pushes.
	RunLocal(ctx context.Context, conn, dir *os.File, push bool) error
}

// Forges opens pull requests, and gets tokens for GitHub Apps. [*forge.Tool] implements it.
type Forges interface {
	// Pull returns the open pull request of the branches in req, and creates it if there is none; see [forge.Tool.Pull].
	Pull(ctx context.Context, s forge.Server, req forge.PullRequest) (*forge.Pull, error)
	// Token returns a token of a GitHub App for one project, and the time when it expires; see [forge.Tool.Token].
	Token(ctx context.Context, app forge.App, s forge.Server) (caisson.Secret, time.Time, error)
}

// Settings configure the relay. [Settings.WithDefaults] replaces zero fields by the defaults.
type Settings struct {
	// CA is a PEM file of CAs to trust for remotes and forges, in addition to the host's; "" for none.
	CA string `yaml:"ca" json:"ca"`
	// FirstRetry is the delay before the second attempt of a delivery. Each further delay is three times as long, up to 1 hour.
	FirstRetry caisson.Duration `yaml:"firstRetry" json:"firstRetry"`
	Tries      caisson.Duration `yaml:"tries" json:"tries"` // time for which a delivery is retried
	Keep       caisson.Duration `yaml:"keep" json:"keep"`   // time for which commits that were not delivered are kept
	// Space limits the total size of an account's mirrors, views and stores: when it is reached, fetches, grants and pushes are
	// refused.
	Space caisson.Size `yaml:"space" json:"space"`
}

// WithDefaults returns s with zero fields replaced by the defaults.
func (s Settings) WithDefaults() Settings {
	const second, day = caisson.Duration(time.Second), caisson.Duration(24 * time.Hour)
	return Settings{
		CA: s.CA, FirstRetry: cmp.Or(s.FirstRetry, 5*second), Tries: cmp.Or(s.Tries, 3*day), Keep: cmp.Or(s.Keep, 30*day),
		Space: cmp.Or(s.Space, 20<<30),
	}
}

// Validate returns an Invalid error for every invalid setting, joined.
func (s *Settings) Validate() error {
	var errs []error
	if s.CA != "" && !filepath.IsAbs(s.CA) {
		errs = append(errs, caisson.Invalidf("ca", "%q is not an absolute path", s.CA))
	}
	for _, n := range []struct {
		field string
		value int64
	}{{"firstRetry", int64(s.FirstRetry)}, {"tries", int64(s.Tries)}, {"keep", int64(s.Keep)}, {"space", int64(s.Space)}} {
		if n.value <= 0 {
			errs = append(errs, caisson.Invalidf(n.field, "must be greater than 0"))
		}
	}
	return errors.Join(errs...)
}

// RemoteConfig contains the services that connect to remotes and their forges. Own is optional.
type RemoteConfig struct {
	Transport Transport       // connects to remotes
	Forge     Forges          // opens pull requests
	Secrets   caisson.Secrets // values of credentials
	Own       reach.Host      // this machine's own addresses; a remote there needs Repo.Local
}

// Config configures a Core. All fields but Rules, Settings, SweepInterval, Settled and Log are required.
type Config struct {
	Dir    string // the data directory
	Store  caisson.Store
	Jobs   worker.Starter // starts worker jobs
	Remote RemoteConfig   // access to remotes and forges
	Events caisson.Publisher
	// Exec starts a process in a sandbox. It is the method of [caisson.Processes].
	Exec          func(ctx context.Context, sandbox string, req caisson.ExecRequest) (caisson.Process, error)
	Rules         check.Rules   // rules that pushed commits are checked by; zero means the defaults of the gate
	Settings      Settings      // retries of deliveries, and limits of space
	SweepInterval time.Duration // interval of the removal of unused stores and views; 0 means 1 hour
	// Settled is called with each delivery whose attempt has ended or that was dropped. If nil, no function is called.
	Settled func(ctx context.Context, d *caisson.Delivery)
	Log     *slog.Logger
}

const (
	topDir   = "relay" // name of this package's directory in the data directory
	maxRepos = 1000    // maximum number of repositories of one account
)

// Core combines the components of this package. Its methods are for package engine, and are safe for concurrent use.
type Core struct {
	background *background.Group // runs the goroutines of git requests and attempts
	keeper     *keeper           // removes unused files, and limits space
	access     *access           // grants the use of repositories
	streams    *streams          // serves git requests of sandboxes
	planner    *planner          // creates deliveries
	queue      *queue            // sends deliveries when they are due
	service    *Service          // API of the relay
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
	roots, settings := "", cfg.Settings.WithDefaults()
	if settings.CA != "" {
		pem, err := smallfile.Read(settings.CA)
		if err != nil {
			return nil, caisson.Wrap(err, caisson.Invalid, "the CA file for the relay cannot be read")
		}
		roots = string(pem)
	}
	root := filepath.Join(cfg.Dir, topDir)
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, err
	}
	table, sandboxes, deliveries := cfg.Store.Repos(), cfg.Store.Sandboxes(), deliveries{cfg.Store.Deliveries()}
	background := background.New()
	dirs := &directories{root: root, accounts: cfg.Store.Accounts()}
	grants := &grants{dirs: dirs, byID: map[caisson.ID]map[string]*grant{}}
	remotes := &remotes{RemoteConfig: cfg.Remote, roots: roots}
	inSandbox := &sandboxGit{exec: cfg.Exec, dirs: dirs}
	keeper := &keeper{
		repos: table, sandboxes: sandboxes, deliveries: deliveries, dirs: dirs, grants: grants,
		space: &space{dirs: dirs, limit: settings.Space, measured: map[string]usage{}}, keep: time.Duration(settings.Keep),
		interval: cmp.Or(cfg.SweepInterval, time.Hour), log: cfg.Log,
	}
	mirrors := &mirrors{repos: table, jobs: cfg.Jobs, dirs: dirs, remotes: remotes, keeper: keeper, log: cfg.Log}
	access := &access{
		repos: table, deliveries: deliveries, jobs: cfg.Jobs, dirs: dirs, remotes: remotes, mirrors: mirrors, grants: grants,
		keeper: keeper, inSandbox: inSandbox, events: cfg.Events,
	}
	queue := &queue{
		deliveries: deliveries, settled: cfg.Settled, background: background,
		sender: &sender{repos: table, deliveries: deliveries, jobs: cfg.Jobs, dirs: dirs, grants: grants, remotes: remotes},
		events: cfg.Events, settings: settings, log: cfg.Log,
		wakeup: make(chan struct{}, 1), sending: map[string]int{}, attempts: map[caisson.ID]*attempt{},
	}
	planner := &planner{
		repos: table, deliveries: deliveries, jobs: cfg.Jobs, dirs: dirs, grants: grants, remotes: remotes, inSandbox: inSandbox,
		queue: queue, rules: cfg.Rules,
	}
	return &Core{
		background: background, keeper: keeper, access: access, planner: planner, queue: queue,
		streams: &streams{
			repos: table, jobs: cfg.Jobs, dirs: dirs, grants: grants, keeper: keeper, background: background, events: cfg.Events,
			rules: cfg.Rules, log: cfg.Log, open: map[caisson.ID]int{},
		},
		service: &Service{
			repos: table, sandboxes: sandboxes, deliveries: deliveries, dirs: dirs, remotes: remotes, mirrors: mirrors, keeper: keeper,
			access: access, planner: planner, queue: queue, events: cfg.Events,
		},
	}, nil
}

// Reconcile brings the database and the directories into agreement after a restart. It must return before any other method is
// called.
func (c *Core) Reconcile(ctx context.Context) error {
	if err := c.queue.reconcile(ctx); err != nil {
		return err
	}
	return c.keeper.reconcile(ctx)
}

// Run sends deliveries and removes unused stores and views until ctx ends. Call it after Reconcile.
func (c *Core) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { background.Every(ctx, c.keeper.interval, c.keeper.housekeep) })
	c.queue.run(ctx)
	wg.Wait()
	return nil
}

// Close cancels streams and attempts, and waits until they have ended. After its next start the daemon repeats these attempts.
func (c *Core) Close() error {
	c.background.Close()
	return nil
}

// Repos returns the API of the relay.
func (c *Core) Repos() *Service { return c.service }

// CheckRepo implements [caisson.Relay]. It checks, without a fetch, that the repository exists and may be used as req requests.
func (c *Core) CheckRepo(ctx context.Context, account string, req caisson.RepoRequest) error {
	_, err := c.access.check(ctx, account, req)
	return err
}

// Grant implements [caisson.Relay]. It grants a sandbox access to a repository, and clones the repository there.
func (c *Core) Grant(ctx context.Context, a caisson.RepoAccess) (*caisson.RepoGrant, error) {
	return c.access.grant(ctx, a)
}

// Deliver implements [caisson.Relay]. It creates a delivery of the work in a sandbox; nil if there is none.
func (c *Core) Deliver(ctx context.Context, h caisson.DeliveryRequest) (*caisson.Delivery, error) {
	return c.planner.deliver(ctx, h)
}

// Await implements [caisson.Relay]. It waits for the end of a delivery, for at most the time most.
func (c *Core) Await(ctx context.Context, id caisson.ID, most time.Duration) (*caisson.Delivery, error) {
	return c.queue.await(ctx, id, most)
}

// SandboxRemoved implements [caisson.Relay]. It removes the stores of a sandbox, except those that a delivery needs.
func (c *Core) SandboxRemoved(ctx context.Context, sandbox caisson.ID) error {
	return c.keeper.leave(ctx, sandbox)
}

// Stream serves a git request of the sandbox that [caisson.GuestOf] finds in ctx. in is a streamRequest as JSON. A worker job
// reads the body of the request from the other end of conn, up to the end of the data, and writes the body of the answer to it.
// ended is closed when the job has ended.
func (c *Core) Stream(ctx context.Context, in json.RawMessage) (conn *os.File, ended <-chan struct{}, err error) {
	return c.streams.connect(ctx, in)
}

// rulesFor returns rules with the exceptions of a repository: its commits are checked by them.
func rulesFor(r *caisson.Repo, rules check.Rules) check.Rules {
	rules.Allow = slices.Concat(rules.Allow, r.Allow)
	rules.AskSecrets = r.AllowSecrets
	return rules
}

// now returns the current time in UTC.
func now() time.Time { return time.Now().UTC() }

// asAccount returns a context whose caller is the account.
func asAccount(ctx context.Context, account string) context.Context {
	return caisson.WithCaller(ctx, caisson.Caller{Account: account})
}
