package caisson

import (
	"context"
	"net/netip"
	"time"
)

// A GatewayConfig is the configuration of the wire process, apart from the specs of single wires. The engine sends it to that
// process over a private socket, and nowhere else: it is the only place where the values of credentials are not in a [Secret].
type GatewayConfig struct {
	Providers []Provider `json:"providers"`
	Models    []Model    `json:"models"` // the models to serve, with imported prices filled in
	// Keys are the values of providers' credentials, by the provider's name.
	Keys map[string]string `json:"keys"`
	// Scripts are the contents of scripted providers' scripts, by the provider's name.
	Scripts map[string]string `json:"scripts,omitempty"`
	// Nameservers are the nameservers of the host. The wire process resolves names for sandboxes with them.
	Nameservers []netip.AddrPort `json:"nameservers"`
	// Forbidden contains the addresses of the daemon's own listeners, to which no policy can allow connections.
	Forbidden []netip.AddrPort `json:"forbidden,omitempty"`
	// PublicAddresses are addresses that lead to this machine although none of its interfaces has them.
	PublicAddresses []netip.Prefix `json:"publicAddresses,omitempty"`
	// Roots is a PEM bundle of CAs to trust for providers, in addition to the host's.
	Roots string `json:"roots,omitempty"`
	// Remote configures model calls to and from other machines; the zero value means that there are none.
	Remote RemoteConfig `json:"remote,omitzero"`
	// Ingress is the configuration of the ingress, with its routes; nil if there is no ingress.
	Ingress *IngressConfig `json:"ingress,omitempty"`
}

// A RemoteConfig configures the wire process to serve sandboxes of other machines, or to use the model gateway of one.
type RemoteConfig struct {
	// RunKeys are the keys that verify run tokens, which calls of other machines' runs contain: one, or two during a rotation. The
	// first key also signs new tokens. Without keys, no other machine is served.
	RunKeys []string `json:"runKeys,omitempty"`
	// Certificate and CertificateKey are the TLS certificate for clients over TCP, in PEM. Without them only loopback is served.
	Certificate    string `json:"certificate,omitempty"`
	CertificateKey string `json:"certificateKey,omitempty"`
	// URL is that of the model gateway of another machine, which the local sandboxes use. If it is empty, this process serves them.
	URL string `json:"url,omitempty"`
	// Roots is a PEM bundle of CAs to trust for URL. If it is empty, the CAs of the host and those for providers are trusted.
	Roots string `json:"roots,omitempty"`
}

// A GatewayRun is a run on another machine that may use the model gateway of this one. Its calls arrive over TCP with a
// signed run token, which contains Run and Attempt; all other attributes of the caller are stored here.
type GatewayRun struct {
	Run       string     `json:"run" doc:"1 to 64 letters, digits, '_' and '-'; unique among all accounts"`
	Attempt   int        `json:"attempt,omitempty" doc:"Tokens for any other attempt are refused"`
	Account   string     `json:"account,omitempty" doc:"Account that is charged; the caller's account unless named over the unix socket"`
	Session   string     `json:"session,omitempty"`
	Agent     string     `json:"agent,omitempty"`
	User      string     `json:"user,omitempty" doc:"The account's name for the person on whose behalf the run is made"`
	Models    ModelGrant `json:"models"`
	CreatedAt time.Time  `json:"createdAt,omitzero"`
	ExpiresAt time.Time  `json:"expiresAt,omitzero" doc:"When the run ends by itself; absent: a day from now"`
}

// Guest returns the guest for the ledger rows of the run's calls. Its Sandbox is empty: the sandbox is on another machine.
func (r *GatewayRun) Guest() Guest {
	return Guest{Account: r.Account, Run: r.Run, Attempt: r.Attempt, Session: r.Session, Agent: r.Agent, User: r.User}
}

// GatewayRuns is the service that manages runs on other machines that use the model gateway of this one. All methods
// act for the account of the [Caller] in ctx.
type GatewayRuns interface {
	// PutGatewayRun adds or replaces a run: a new attempt ends the previous one. When it returns, calls for the run are
	// served. A local caller may name any account. Returns Conflict if another account has, or recently had, a run with
	// that id, or if this daemon serves no other machines; Exhausted if there are too many runs.
	PutGatewayRun(ctx context.Context, r GatewayRun) (*GatewayRun, error)
	// ListGatewayRuns returns the account's runs that have not ended, sorted by id.
	ListGatewayRuns(ctx context.Context) ([]*GatewayRun, error)
	// RemoveGatewayRun ends a run and removes its budget. Calls in progress continue; after it returns, no call can
	// begin. NotFound if there is no such run.
	RemoveGatewayRun(ctx context.Context, run string) error
}

// GatewayRunStore holds runs on other machines. Get, List and Count omit runs that have ended. The id of an ended run still
// belongs to its account until Trim deletes the run, so that calls that were in progress are charged to that account.
type GatewayRunStore interface {
	// Put adds or replaces a run. Conflict if the id belongs to another account.
	Put(ctx context.Context, in Scope, r *GatewayRun) error
	// Get returns a run that has not ended.
	Get(ctx context.Context, in Scope, run string) (*GatewayRun, error)
	// List returns the runs of the scope that have not ended, sorted by id.
	List(ctx context.Context, in Scope) ([]*GatewayRun, error)
	// Count returns how many runs of the scope have not ended.
	Count(ctx context.Context, in Scope) (int, error)
	// End records that a run has ended at the time at; NotFound if it has ended before.
	End(ctx context.Context, in Scope, run string, at time.Time) error
	// Owner returns the account of a run, even if the run has ended; NotFound if there is no such run.
	Owner(ctx context.Context, run string) (account string, err error)
	// Trim deletes the runs that ended before the given time.
	Trim(ctx context.Context, before time.Time) error
}

// A GatewayRunChange is a change of the runs that the wire process serves. Removals are applied first.
type GatewayRunChange struct {
	Remove []string      `json:"remove,omitempty"` // ids of runs that are no longer served
	Put    []*GatewayRun `json:"put,omitempty"`    // runs to add or to replace
}
