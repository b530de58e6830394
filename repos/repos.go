// Package repos is the core of the relay: git repositories that sandboxes may clone and push to without reaching their remotes, and
// what becomes of the commits.
//
// A sandbox is granted some branches of a repository and one to push to. It reads and writes a store of its own, which has what it
// was granted and nothing else; what it pushes is checked and stays there, as in quarantine. When its run has ended the commits
// become a delivery: sent to the remote as one branch, with a pull request if that was asked for, tried again while the remote
// cannot be had. Everything that reads git data is done by packages relay and forge in jobs without privileges.
//
// The store holds what is meant to be. On disk a repository is one directory, which goes with it:
//
//	<dir>/relay/<account>/<repo>/
//	    mirror/          what the remote has: branches and tags
//	    views/<key>/     the part of it that was granted to some sandbox; shared by those with the same grant
//	    stores/<sb>/     what one sandbox sees and has pushed; kept until its deliveries have ended
//	    stores/<sb>.json its grant
package repos

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/forge"
	"github.com/caisson-dev/caisson/gate/check"
	"github.com/caisson-dev/caisson/internal/keylock"
	"github.com/caisson-dev/caisson/internal/reach"
	"github.com/caisson-dev/caisson/relay/fetch"
	"github.com/caisson-dev/caisson/relay/git"
	"github.com/caisson-dev/caisson/relay/link"
	"github.com/caisson-dev/caisson/relay/prepare"
	"github.com/caisson-dev/caisson/relay/push"
	"github.com/caisson-dev/caisson/relay/receive"
	"github.com/caisson-dev/caisson/relay/serve"
)

// Git is what git does in jobs: [*relay.Tool].
type Git interface {
	Init(ctx context.Context, dir *os.File) error
	Fetch(ctx context.Context, mirror, link *os.File, req fetch.Request) (*git.Remote, error)
	Refs(ctx context.Context, dir *os.File) (*git.Remote, error)
	View(ctx context.Context, mirror, view *os.File, refs []git.Ref) error
	Store(ctx context.Context, store, view *os.File, refs []git.Ref, head string) error
	Serve(ctx context.Context, store, view, conn *os.File, req serve.Request) error
	Receive(ctx context.Context, store, view, conn *os.File, req receive.Request) (*receive.Result, error)
	Prepare(ctx context.Context, store, view *os.File, req prepare.Request) (*prepare.Result, error)
	Push(ctx context.Context, store, view, link *os.File, req push.Request) (*push.Result, error)
}

// Link is how remotes are reached, by jobs that hold the credential: [*link.Tool].
type Link interface {
	Run(ctx context.Context, conn *os.File, req link.Request) error
	RunLocal(ctx context.Context, conn, dir *os.File, push bool) error
}

// Forges opens pull requests: [*forge.Tool].
type Forges interface {
	Pull(ctx context.Context, s forge.Server, req forge.PullRequest) (*forge.Pull, error)
	Token(ctx context.Context, app forge.App, s forge.Server) (caisson.Secret, time.Time, error)
}

// Limits bound the relay. Zero fields mean the default.
type Limits struct {
	Push  receive.Limits
	First time.Duration // between the first two tries of a delivery; 5 s. Each further wait is three times as long, up to an hour
	Tries time.Duration // for which a delivery is tried; 3 days
	Keep  time.Duration // for which what was not delivered is kept after that; 30 days
	Fetch time.Duration // that bringing a mirror up to date may take; 1 hour
	Sweep time.Duration // between two looks for what nobody needs any more; 1 hour
	Space caisson.Size  // that an account's mirrors, views and stores may take before nothing more is fetched, granted or pushed; 20 GiB
}

// Config is what a Core is made of. All fields but Rules, Limits, Roots, Own, Settled and Log are required.
type Config struct {
	Dir     string // the data directory
	Store   caisson.Store
	Git     Git
	Link    Link
	Forge   Forges
	Secrets caisson.Secrets
	Events  caisson.Publisher
	// Exec starts a process in a sandbox, as that of [caisson.Processes].
	Exec   func(ctx context.Context, sandbox string, req caisson.ExecRequest) (caisson.Process, error)
	Rules  check.Rules // of what commits may change; zero means the gate's defaults
	Limits Limits
	Roots  string     // PEM of authorities to trust besides the host's
	Own    reach.Host // which addresses are this host's
	// Settled, unless nil, is told of each delivery whose state has changed.
	Settled func(ctx context.Context, d *caisson.Delivery)
	Log     *slog.Logger
}

const (
	topDir   = "relay"
	maxRepos = 1000 // of an account
	maxSends = 8    // at the same time; half of that of an account, a quarter of a repository
)

// Core is the state that the services of this package share. Its exported methods are for the engine and safe for concurrent use.
type Core struct {
	Config
	mirrors mirrors
	grants  grants
	streams streams
	sender  sender
	keeper  keeper

	locks   keylock.Locks // held by whoever changes a repository's directories, by account and name
	sends   keylock.Locks // held by whoever sends a delivery, by account, repository and branch
	changes sync.Mutex    // held by whoever changes a grant that is there
	kick    chan struct{} // wakes the sender
	tokens  tokens
	space   space

	mu      sync.Mutex
	have    map[caisson.ID]map[string]*grant // by sandbox and repository; guarded by mu
	watch   map[caisson.ID][]chan struct{}   // closed when a delivery changes; guarded by mu
	jobs    map[caisson.ID]int               // streams under way, by sandbox; guarded by mu
	sending map[string]int                   // tries under way: all, by account, and by account and repository; guarded by mu
	tries   map[caisson.ID]*try              // under way, by delivery; guarded by mu
	closed  bool                             // guarded by mu
	wg      sync.WaitGroup                   // none is added once closed
	ctx     context.Context
	stop    context.CancelCauseFunc
}

// The parts of the core. Each has the core, and through it the others.
type (
	mirrors struct{ *Core } // what is known of remotes, and how they are reached
	grants  struct{ *Core } // what sandboxes may do
	streams struct{ *Core } // what they do
	sender  struct{ *Core } // what is sent to remotes
	keeper  struct{ *Core } // what is left of all that
)

var errClosing = errors.New("the daemon is ending")

// New returns a Core, or an Invalid error that says what is wrong with cfg. Call Reconcile before use.
func New(cfg Config) (*Core, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if err := cfg.Rules.Validate(); err != nil {
		return nil, err
	}
	for _, d := range []struct {
		have *time.Duration
		or   time.Duration
	}{
		{&cfg.Limits.First, 5 * time.Second}, {&cfg.Limits.Tries, 72 * time.Hour}, {&cfg.Limits.Keep, 30 * 24 * time.Hour},
		{&cfg.Limits.Fetch, time.Hour}, {&cfg.Limits.Sweep, time.Hour},
	} {
		if *d.have <= 0 {
			*d.have = d.or
		}
	}
	if cfg.Limits.Space <= 0 {
		cfg.Limits.Space = 20 << 30
	}
	if err := os.MkdirAll(filepath.Join(cfg.Dir, topDir), 0o700); err != nil {
		return nil, err
	}
	c := &Core{
		Config: cfg, kick: make(chan struct{}, 1), have: map[caisson.ID]map[string]*grant{}, watch: map[caisson.ID][]chan struct{}{},
		jobs: map[caisson.ID]int{}, sending: map[string]int{}, tries: map[caisson.ID]*try{},
	}
	c.mirrors, c.grants, c.streams, c.sender, c.keeper = mirrors{c}, grants{c}, streams{c}, sender{c}, keeper{c}
	c.ctx, c.stop = context.WithCancelCause(context.Background())
	return c, nil
}

// Close ends what runs in the background. What is to be delivered waits for the next daemon.
func (c *Core) Close() error {
	c.stop(errClosing)
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.wg.Wait()
	return nil
}

// do runs f in a goroutine of the core's, and reports false if it is closed.
func (c *Core) do(f func(ctx context.Context)) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.wg.Go(func() { f(c.ctx) })
	return true
}

var _ caisson.Relay = (*Core)(nil)

// Repos returns the relay as its callers see it.
func (c *Core) Repos() *Service { return &Service{c} }

// rules are those that commits for a repository are checked by.
func (c *Core) rules(r *caisson.Repo) check.Rules {
	rules := c.Rules
	rules.Allow = slices.Concat(rules.Allow, r.Allow)
	rules.AskSecrets = r.AllowSecrets
	return rules
}

func now() time.Time { return time.Now().UTC() }

// as returns a context in which the account itself acts.
func as(ctx context.Context, account string) context.Context {
	return caisson.WithCaller(ctx, caisson.Caller{Account: account})
}
