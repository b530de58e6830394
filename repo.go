package caisson

import (
	"context"
	"time"
)

// DeliveryPrefix begins the IDs of deliveries.
const DeliveryPrefix = "dl"

// A Forge is what a repository's remote can do besides git.
type Forge string

// The forges.
const (
	ForgeNone   Forge = "none" // git only: branches, and no pull requests
	ForgeGitHub Forge = "github"
	ForgeGitLab Forge = "gitlab"
	ForgeGitea  Forge = "gitea" // and Forgejo
)

// What the relay does with the authors of commits.
const (
	AuthorKeep = "keep" // as the agent wrote them
	AuthorSet  = "set"  // author and committer of every new commit are the repository's AuthorName and AuthorEmail
)

// A Repo is a git repository that sandboxes may be let into through the relay, at http://git.caisson.internal/<name>. Its
// credential never leaves the host.
type Repo struct {
	Name    string `json:"name" pattern:"^[a-z0-9][a-z0-9._-]{0,63}$"`
	Account string `json:"account"`
	URL     string `json:"url" doc:"https://…, http://…, ssh://…, user@host:path, or an absolute path; without a password"`
	Forge   Forge  `json:"forge,omitempty" enum:"none,github,gitlab,gitea," doc:"Default by the URL's host"`
	API     string `json:"api,omitempty" doc:"Base URL of the forge's REST API; default by forge and host"`
	// Credential is a token, a password (user:password), an SSH private key, or a GitHub App (JSON with appId, privateKey and
	// perhaps installationId).
	Credential string   `json:"credential,omitempty" doc:"Name of the credential for it; empty: that of the well-known name for the forge (GITHUB_TOKEN, GITLAB_TOKEN, GITEA_TOKEN) if there is one, else none"`
	HostKeys   []string `json:"hostKeys,omitempty" maxItems:"20" doc:"Of an SSH server, as lines of known_hosts have them; required for ssh"`
	Protected  []string `json:"protected,omitempty" maxItems:"100" doc:"Patterns of branches that are never pushed to, besides the default branch"`
	Allow      []string `json:"allow,omitempty" maxItems:"100" doc:"Patterns of protected files, as workflow definitions, that commits may change"`
	// AllowSecrets are for false alarms: what looks like a secret in these files does not refuse a push, but holds its delivery.
	AllowSecrets []string `json:"allowSecrets,omitempty" maxItems:"100" doc:"Patterns of files in which what looks like a secret is asked about, and not denied"`
	Authors      string   `json:"authors,omitempty" enum:"keep,set," doc:"Default set"`
	AuthorName   string   `json:"authorName,omitempty" maxLength:"200" doc:"Default Caisson"`
	AuthorEmail  string   `json:"authorEmail,omitempty" maxLength:"200" doc:"Default caisson@localhost"`
	SigningKey   string   `json:"signingKey,omitempty" doc:"Name of a credential with an SSH private key that new commits are signed with"`
	// PullBody is a template of package text/template over Title, Answer, Run, Agent, Branch, Base, Delivery and Commits, the subjects. Of
	// its functions those that make no text are there, and range goes over .Commits only.
	PullBody  string    `json:"pullBody,omitempty" maxLength:"16384" doc:"Template of the text of pull requests; default the agent's answer, and which run and delivery it is"`
	Local     bool      `json:"local,omitempty" doc:"Whether it was added over the unix socket: only then may its remote be in the host's own networks"`
	Head      string    `json:"head,omitempty" doc:"The remote's default branch, when it was last fetched"`
	CreatedAt time.Time `json:"createdAt"`
	FetchedAt time.Time `json:"fetchedAt,omitzero"`
}

// A Branch is a branch of a repository as its mirror has it.
type Branch struct {
	Name   string `json:"name"`
	Commit string `json:"commit"`
}

// A RepoRequest asks for a repository in a run.
type RepoRequest struct {
	Name string `json:"name" doc:"Of the repository"`
	// Base is the branch that work starts from, and that a pull request wants to be merged into.
	Base string `json:"base,omitempty" doc:"Default: the repository's default branch"`
	// Branch is where the commits go: never a protected one.
	Branch string   `json:"branch,omitempty" doc:"Default caisson/<run>"`
	Read   []string `json:"read,omitempty" maxItems:"100" doc:"Other branches that the sandbox may read"`
	Pull   bool     `json:"pull,omitempty" doc:"Whether a pull request is opened"`
	Ready  bool     `json:"ready,omitempty" doc:"Whether the pull request is no draft"`
	Title  string   `json:"title,omitempty" maxLength:"256" doc:"Of the pull request; default the subject of the first commit"`
}

// A DeliveryState is where a delivery is in its life.
type DeliveryState string

// The states of deliveries.
const (
	DeliveryHeld      DeliveryState = "held"      // nobody has said that it may go: its run failed, or a check asks; retry sends it
	DeliveryWaiting   DeliveryState = "waiting"   // for its turn, or for the next try
	DeliverySending   DeliveryState = "sending"   // a try is under way
	DeliveryDelivered DeliveryState = "delivered" // the remote has confirmed the branch, and the forge the pull request
	DeliveryFailed    DeliveryState = "failed"    // the remote refuses, or it was tried for too long; retry tries again
	DeliveryDropped   DeliveryState = "dropped"
)

// Ended reports whether nothing more will happen in s unless somebody asks for it.
func (s DeliveryState) Ended() bool {
	return s == DeliveryDelivered || s == DeliveryFailed || s == DeliveryDropped || s == DeliveryHeld
}

// A Delivery is the commits of a run on their way from the relay's quarantine to the repository's remote. What it needs is kept
// until it is delivered or dropped.
type Delivery struct {
	ID       ID            `json:"id"`
	Account  string        `json:"account"`
	Repo     string        `json:"repo"`
	Run      ID            `json:"run,omitempty"`
	Session  ID            `json:"session,omitempty"`
	Sandbox  ID            `json:"sandbox" doc:"Whose quarantine the commits are in, whether it is still there or not"`
	State    DeliveryState `json:"state" enum:"held,waiting,sending,delivered,failed,dropped"`
	Base     string        `json:"base"`
	Branch   string        `json:"branch"`
	From     string        `json:"from" doc:"Commit of the base branch that the work started from"`
	Pushed   string        `json:"pushed" doc:"Commit as the sandbox pushed it"`
	Commit   string        `json:"commit,omitempty" doc:"Commit as it is sent: authors set, signed"`
	Sent     string        `json:"sent,omitempty" doc:"What the remote's branch is known to be at, because Caisson put it there"`
	Commits  int           `json:"commits"`
	Findings []Finding     `json:"findings,omitempty" doc:"Why it is held"`
	Pull     bool          `json:"pull,omitempty"`
	Ready    bool          `json:"ready,omitempty"`
	Title    string        `json:"title,omitempty"`
	Body     string        `json:"body,omitempty"`
	URL      string        `json:"url,omitempty" doc:"Of the pull request, or else of the branch"`
	Number   int64         `json:"number,omitempty" doc:"Of the pull request"`
	Attempts int           `json:"attempts" doc:"Since it was made, or somebody has last asked for another"`
	Error    string        `json:"error,omitempty" doc:"Why the last try failed; of one that was dropped, what the remote may have of it"`
	NextAt   time.Time     `json:"nextAt,omitzero"`
	// CreatedAt is when the commits were taken; RetriedAt when somebody has last asked for another try; EndedAt when they were delivered,
	// given up or dropped.
	CreatedAt time.Time `json:"createdAt"`
	RetriedAt time.Time `json:"retriedAt,omitzero"`
	EndedAt   time.Time `json:"endedAt,omitzero"`
}

// A DeliveryFilter chooses among deliveries. Zero fields choose everything.
type DeliveryFilter struct {
	States []DeliveryState
	Repo   string
	Run    ID
	// Before is the id of the last one of the previous page; pages go from new to old. Limit is at most 1000; 0 means 100.
	Before ID
	Limit  int
}

// Repos is the relay as its callers see it. All methods are safe for concurrent use, and act for the account of the [Caller] in ctx.
type Repos interface {
	// AddRepo makes a repository known and fetches it. Conflict if the name is taken; Denied for a path on the host unless the caller
	// is local; what the remote says otherwise.
	AddRepo(ctx context.Context, r Repo) (*Repo, error)
	GetRepo(ctx context.Context, name string) (*Repo, error)
	// ListRepos returns the account's repositories by name.
	ListRepos(ctx context.Context) ([]*Repo, error)
	// ListBranches returns the branches that the mirror has.
	ListBranches(ctx context.Context, name string) ([]Branch, error)
	// FetchRepo brings the mirror up to date.
	FetchRepo(ctx context.Context, name string) (*Repo, error)
	// RemoveRepo forgets a repository with its mirror. Conflict while a delivery of it waits.
	RemoveRepo(ctx context.Context, name string) error

	// GrantRepo lets a running sandbox, named by id or name, into a repository and clones it into dir, an absolute path there.
	GrantRepo(ctx context.Context, sandbox string, req RepoRequest, dir string) (*RepoGrant, error)
	// DeliverRepo makes a delivery of what such a sandbox has pushed, and of what is in dir besides, unless it is empty. Of req only Name, Pull,
	// Ready and Title count. NotFound if there is nothing new.
	DeliverRepo(ctx context.Context, sandbox string, req RepoRequest, dir string) (*Delivery, error)

	// GetDelivery finds a delivery by its id, or the newest of the run with that id.
	GetDelivery(ctx context.Context, ref string) (*Delivery, error)
	ListDeliveries(ctx context.Context, f DeliveryFilter) (page []*Delivery, more bool, err error)
	// RetryDelivery sends what is held, has failed, or waits for its next try, now, and again as if it were new. It returns at once.
	RetryDelivery(ctx context.Context, id ID) (*Delivery, error)
	// DropDelivery gives a delivery up; a try that is under way is ended. Conflict if it was delivered, or cannot be ended at present. Error of the
	// result says so if the remote may have the branch all the same.
	DropDelivery(ctx context.Context, id ID) (*Delivery, error)
}

// DeliveryStore holds deliveries.
type DeliveryStore interface {
	Insert(ctx context.Context, d *Delivery) error
	// Get finds a delivery by its id, or the newest of the run with that id.
	Get(ctx context.Context, in Scope, ref string) (*Delivery, error)
	List(ctx context.Context, in Scope, f DeliveryFilter) (page []*Delivery, more bool, err error)
	// Update is as in [Table].
	Update(ctx context.Context, in Scope, id ID, change func(*Delivery) error) (*Delivery, error)
	Delete(ctx context.Context, in Scope, id ID) error
}

// A RepoAccess asks to let a sandbox into a repository.
type RepoAccess struct {
	Account string
	Sandbox ID
	Run     ID // that pushes are charged to; empty for none
	Session ID
	Repo    RepoRequest
	Dir     string            // in the sandbox, where it is cloned; empty for nowhere
	Warn    func(what string) // told of what does not go as it should; nil for nobody
}

// A RepoGrant says where a sandbox finds a repository, and what it may do there.
type RepoGrant struct {
	URL    string `json:"url" doc:"In the sandbox"`
	Start  string `json:"start" doc:"Branch that work starts from"`
	Branch string `json:"branch" doc:"Branch that work is pushed to"`
	From   string `json:"from" doc:"Commit of the base branch that counts as old"`
}

// A RepoHandover says what is to become of what a sandbox has done in a repository.
type RepoHandover struct {
	Sandbox ID
	Repo    RepoRequest
	Dir     string // in the sandbox, where what was not pushed is taken from; empty for nowhere
	Subject string // of the commit of what was not even committed
	Agent   string // that has worked; empty if somebody did by hand
	Body    string // what the agent said at the end, for the text of a pull request
	Hold    bool   // nothing is sent until somebody says so
	// Left is told why something in Dir was not taken that was not pushed, although other things were: they are delivered then. nil makes
	// that an error.
	Left func(why error)
}

// Relay is how runs use repositories. All methods are safe for concurrent use.
type Relay interface {
	// CheckRepo says whether a request makes sense, as far as that can be said before the repository is fetched.
	CheckRepo(ctx context.Context, account string, req RepoRequest) error
	// Grant lets a sandbox into a repository and clones it there. One that was let in before keeps what it has, and begins a new run.
	Grant(ctx context.Context, a RepoAccess) (*RepoGrant, error)
	// Deliver makes a delivery of what the sandbox has pushed since it was granted the repository for its run, and of what it has not
	// pushed. It returns nil if that is nothing.
	Deliver(ctx context.Context, h RepoHandover) (*Delivery, error)
	// Await returns a delivery once nothing more happens to it by itself, or as it is when ctx or the time is over.
	Await(ctx context.Context, id ID, most time.Duration) (*Delivery, error)
	// Leave says that a sandbox has gone. What it has pushed is kept as long as a delivery needs it. Idempotent.
	Leave(ctx context.Context, sandbox ID) error
}
