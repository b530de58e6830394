package caisson

import (
	"context"
	"time"
)

// DeliveryPrefix is the prefix of the IDs of deliveries.
const DeliveryPrefix = "dl"

// A Forge names the API that the server of a remote repository has besides git.
type Forge string

// The forges.
const (
	ForgeNone   Forge = "none" // git only: branches, and no pull requests
	ForgeGitHub Forge = "github"
	ForgeGitLab Forge = "gitlab"
	ForgeGitea  Forge = "gitea" // Gitea or Forgejo
)

// What the relay does with the authors of commits.
const (
	AuthorKeep = "keep" // authors and committers are not changed
	AuthorSet  = "set"  // author and committer of every new commit are the repository's AuthorName and AuthorEmail
)

// A Repo is a git repository that sandboxes can be granted access to through the relay, at
// http://git.caisson.internal/<name>. Its credential never leaves the host. Authors determines whether new commits keep their
// author (keep) or get the author AuthorName and AuthorEmail (set).
type Repo struct {
	Name    string `json:"name" pattern:"^[a-z0-9][a-z0-9._-]{0,63}$"`
	Account string `json:"account"`
	URL     string `json:"url" doc:"https://…, http://…, ssh://…, user@host:path, or an absolute path; without a password"`
	Forge   Forge  `json:"forge,omitempty" enum:"none,github,gitlab,gitea," doc:"Default by the URL's host"`
	API     string `json:"api,omitempty" doc:"Base URL of the forge's REST API; default by forge and host"`
	// Credential is the name of a credential, whose value is a token, a password (user:password), an SSH private key, or a
	// GitHub App (JSON with appId, privateKey and optionally installationId).
	Credential string   `json:"credential,omitempty" doc:"Name of the credential for it; empty: that of the well-known name for the forge (GITHUB_TOKEN, GITLAB_TOKEN, GITEA_TOKEN) if there is one, else none"`
	HostKeys   []string `json:"hostKeys,omitempty" maxItems:"20" doc:"Host keys of an SSH server, in the format of known_hosts; required for ssh"`
	Protected  []string `json:"protected,omitempty" maxItems:"100" doc:"Patterns of branches that are never pushed to, besides the default branch"`
	Allow      []string `json:"allow,omitempty" maxItems:"100" doc:"Patterns of protected files, as workflow definitions, that commits may change"`
	// AllowSecrets has patterns of files with false positives: a suspected secret in such a file does not reject a push, but holds
	// the delivery of the push.
	AllowSecrets []string `json:"allowSecrets,omitempty" maxItems:"100" doc:"Patterns of files in which text that looks like a secret needs review, instead of being denied"`
	Authors      string   `json:"authors,omitempty" enum:"keep,set," doc:"Default set"`
	AuthorName   string   `json:"authorName,omitempty" maxLength:"200" doc:"Default Caisson"`
	AuthorEmail  string   `json:"authorEmail,omitempty" maxLength:"200" doc:"Default caisson@localhost"`
	SigningKey   string   `json:"signingKey,omitempty" doc:"Name of a credential with an SSH private key that new commits are signed with"`
	// PullBody is a template of package text/template with the fields Title, Answer, Run, Agent, Branch, Base, Delivery and Commits,
	// the subjects of the commits. Only functions that do not produce text are available, and range accepts only .Commits.
	PullBody  string    `json:"pullBody,omitempty" maxLength:"16384" doc:"Template of the text of pull requests; default the agent's answer, and which run and delivery it is"`
	Local     bool      `json:"local,omitempty" doc:"Whether it was added over the unix socket: only then may its remote be in the host's own networks"`
	Head      string    `json:"head,omitempty" doc:"The remote's default branch, when it was last fetched"`
	CreatedAt time.Time `json:"createdAt"`
	FetchedAt time.Time `json:"fetchedAt,omitzero"` // when the last successful fetch from the remote began
}

// A Branch is a branch in the mirror of a repository.
type Branch struct {
	Name   string `json:"name"`
	Commit string `json:"commit"` // id of its newest commit
}

// A RepoRequest requests a repository for a run, or for a sandbox without a run.
type RepoRequest struct {
	Name string `json:"name" doc:"Of the repository"`
	// Base is the branch that work starts from, and the target of a pull request.
	Base string `json:"base,omitempty" doc:"Default: the repository's default branch"`
	// Branch is the branch that the commits are pushed to: never a protected one.
	Branch string   `json:"branch,omitempty" doc:"Default caisson/<run>"`
	Read   []string `json:"read,omitempty" maxItems:"100" doc:"Other branches that the sandbox may read"`
	Pull   bool     `json:"pull,omitempty" doc:"Whether a pull request is opened"`
	Ready  bool     `json:"ready,omitempty" doc:"Whether the pull request is ready for review, not a draft"`
	Title  string   `json:"title,omitempty" maxLength:"256" doc:"Of the pull request; default the subject of the first commit"`
}

// A DeliveryState is the state of a delivery.
type DeliveryState string

// The states of deliveries.
const (
	DeliveryHeld      DeliveryState = "held"      // waits for RetryDelivery, because the run failed or a check has findings
	DeliveryWaiting   DeliveryState = "waiting"   // the delivery is in the queue for its first or its next try
	DeliverySending   DeliveryState = "sending"   // a try to deliver the commits is in progress
	DeliveryDelivered DeliveryState = "delivered" // the remote has confirmed the branch, and the forge the pull request
	DeliveryFailed    DeliveryState = "failed"    // the remote refused the commits, or the time for tries is over; may be retried
	DeliveryDropped   DeliveryState = "dropped"   // a client has dropped the delivery
)

// Ended reports whether a delivery in s stays in s unless a client requests a change.
func (s DeliveryState) Ended() bool {
	return s == DeliveryDelivered || s == DeliveryFailed || s == DeliveryDropped || s == DeliveryHeld
}

// A Delivery contains the commits of a sandbox on their way from the relay's quarantine to the repository's remote. The
// commits are kept until they are delivered or dropped.
type Delivery struct {
	ID      ID     `json:"id"`
	Account string `json:"account"`
	Repo    string `json:"repo"`
	Run     ID     `json:"run,omitempty"`
	Session ID     `json:"session,omitempty"`
	// Sandbox is the sandbox that pushed the commits. It may have been removed since.
	Sandbox  ID            `json:"sandbox" doc:"Whose quarantine the commits are in, whether it is still there or not"`
	State    DeliveryState `json:"state" enum:"held,waiting,sending,delivered,failed,dropped"`
	Base     string        `json:"base"`   // branch that the work started from, and the target of the pull request
	Branch   string        `json:"branch"` // branch that the commits are pushed to
	From     string        `json:"from" doc:"Commit of the base branch that the work started from"`
	Pushed   string        `json:"pushed" doc:"Commit as the sandbox pushed it"`
	Commit   string        `json:"commit,omitempty" doc:"Commit as it is sent: authors set, signed"`
	Sent     string        `json:"sent,omitempty" doc:"Commit that Caisson last pushed to the remote's branch"`
	Commits  int           `json:"commits"` // number of commits
	Findings []Finding     `json:"findings,omitempty" doc:"Why it is held"`
	Pull     bool          `json:"pull,omitempty"`  // whether a pull request is opened
	Ready    bool          `json:"ready,omitempty"` // whether the pull request is not a draft
	Title    string        `json:"title,omitempty"` // title of the pull request
	Body     string        `json:"body,omitempty"`  // text of the pull request
	URL      string        `json:"url,omitempty" doc:"Of the pull request, or else of the branch"`
	Number   int64         `json:"number,omitempty" doc:"Of the pull request"`
	// Attempts is the number of tries since the delivery was created, or since a client last requested another try.
	Attempts  int       `json:"attempts" doc:"Number of attempts since its creation, or since the last request for another attempt"`
	Error     string    `json:"error,omitempty" doc:"Why the last try failed; for a dropped delivery, what the remote may have received"`
	NextAt    time.Time `json:"nextAt,omitzero"` // time of the next try; zero: at once, or none
	CreatedAt time.Time `json:"createdAt"`
	RetriedAt time.Time `json:"retriedAt,omitzero"` // when a client last requested another try
	EndedAt   time.Time `json:"endedAt,omitzero"`   // when the commits were delivered or dropped, or the delivery failed
}

// A DeliveryFilter selects deliveries. Zero fields select everything.
type DeliveryFilter struct {
	States []DeliveryState
	Repo   string // name of a repository
	Run    ID     // the run whose commits are delivered
	// Before is the id of the last delivery of the previous page; pages are sorted from new to old. Limit is the size of a page, at
	// most 1000; 0 means 100.
	Before ID
	Limit  int
}

// Repos is the service of the relay for API clients. All methods are safe for concurrent use, and act for the account
// of the [Caller] in ctx.
type Repos interface {
	// AddRepo adds a repository and fetches it. Conflict if the name is taken; Denied for a path on the host unless the
	// caller is local; otherwise errors of the remote.
	AddRepo(ctx context.Context, r Repo) (*Repo, error)
	GetRepo(ctx context.Context, name string) (*Repo, error)
	// ListRepos returns the account's repositories, sorted by name.
	ListRepos(ctx context.Context) ([]*Repo, error)
	// ListBranches returns the branches in the mirror of a repository.
	ListBranches(ctx context.Context, name string) ([]Branch, error)
	// FetchRepo updates the mirror of a repository from its remote.
	FetchRepo(ctx context.Context, name string) (*Repo, error)
	// RemoveRepo removes a repository with its mirror. Conflict while a delivery of it is held, waiting or sending.
	RemoveRepo(ctx context.Context, name string) error

	// GrantRepo grants a running sandbox, given by id or name, access to a repository, and clones it into dir, an
	// absolute path in the sandbox.
	GrantRepo(ctx context.Context, sandbox string, req RepoRequest, dir string) (*RepoGrant, error)
	// DeliverRepo creates a delivery of the commits that a sandbox with a grant from GrantRepo has pushed and, unless dir is empty,
	// of the changes in dir. Only Name, Pull, Ready and Title of req are used. NotFound if there are no new commits or changes.
	DeliverRepo(ctx context.Context, sandbox string, req RepoRequest, dir string) (*Delivery, error)

	// GetDelivery finds a delivery by its id, or the newest of the run with that id.
	GetDelivery(ctx context.Context, ref string) (*Delivery, error)
	ListDeliveries(ctx context.Context, f DeliveryFilter) (page []*Delivery, more bool, err error)
	// RetryDelivery starts a new series of tries, now, for a delivery that is held, has failed, or waits for its next
	// try. It returns at once.
	RetryDelivery(ctx context.Context, id ID) (*Delivery, error)
	// DropDelivery drops a delivery; a try in progress is cancelled. Conflict if it was delivered, or cannot be
	// cancelled at present. If the remote may have the branch nevertheless, the Error of the result reports this.
	DropDelivery(ctx context.Context, id ID) (*Delivery, error)
}

// DeliveryStore holds deliveries.
type DeliveryStore interface {
	Insert(ctx context.Context, d *Delivery) error
	// Get finds a delivery by its id, or the newest of the run with that id.
	Get(ctx context.Context, in Scope, ref string) (*Delivery, error)
	List(ctx context.Context, in Scope, f DeliveryFilter) (page []*Delivery, more bool, err error)
	// Update calls change with the stored delivery, maybe more than once, and stores the result unless change returns an error.
	Update(ctx context.Context, in Scope, id ID, change func(*Delivery) error) (*Delivery, error)
	Delete(ctx context.Context, in Scope, id ID) error
}

// A RepoAccess requests access to a repository for a sandbox.
type RepoAccess struct {
	Account string            // owner of the repository and of the sandbox
	Sandbox ID                // the sandbox that gets the access
	Run     ID                // the run that the pushes belong to; empty for none
	Session ID                // session of Run, whose runs by default push to one branch; empty for none
	Repo    RepoRequest       // the repository and its branches
	Dir     string            // directory in the sandbox to clone into; empty means no clone
	Warn    func(what string) // called with warnings; may be nil
}

// A RepoGrant describes the access of a sandbox to a repository.
type RepoGrant struct {
	URL    string `json:"url" doc:"In the sandbox"` // URL with which the sandbox accesses the repository
	Start  string `json:"start" doc:"Branch that the work starts from"`
	Branch string `json:"branch" doc:"Branch that work is pushed to"`
	From   string `json:"from" doc:"Commit of the base branch that the work started from"`
}

// A DeliveryRequest is the input of [Relay.Deliver].
type DeliveryRequest struct {
	Sandbox ID
	Repo    RepoRequest
	Dir     string // directory in the sandbox with changes that were not pushed; empty for none
	Subject string // subject of the commit that is made of uncommitted changes
	Agent   string // the agent that made the changes; empty if a person made them
	Body    string // the agent's final answer, for the text of a pull request
	Hold    bool   // hold the delivery until a client releases it
	// OnIncomplete is called with the reason if a part of the unpushed changes in Dir could not be taken, while the rest is
	// delivered. If OnIncomplete is nil, this is an error.
	OnIncomplete func(why error)
}

// Relay is the interface of the relay for runs. All methods are safe for concurrent use.
type Relay interface {
	// CheckRepo validates a request, as far as that is possible before the repository is fetched.
	CheckRepo(ctx context.Context, account string, req RepoRequest) error
	// Grant grants a sandbox access to a repository and clones it there. A sandbox that has access already keeps its clone; from
	// then on, its pushes belong to the run of the new request.
	Grant(ctx context.Context, a RepoAccess) (*RepoGrant, error)
	// Deliver creates a delivery of the commits that the sandbox has pushed since it was granted the repository for its run, and of
	// its changes that were not pushed. It returns nil if there are no such commits and changes.
	Deliver(ctx context.Context, h DeliveryRequest) (*Delivery, error)
	// Await waits until a delivery is delivered, held, failed or dropped, ctx ends, or the time most has passed, and returns the
	// delivery in its current state.
	Await(ctx context.Context, id ID, most time.Duration) (*Delivery, error)
	// SandboxRemoved removes the stores that a sandbox has pushed to, except those that a delivery needs. It must be called after
	// the sandbox was removed. Idempotent.
	SandboxRemoved(ctx context.Context, sandbox ID) error
}
